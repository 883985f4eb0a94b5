"""Which algebra conditions a process on given inputs: the structure that the kernel and their layout allow."""

from jaxtyping import Array, Float

from .axis import AbstractAxis, DenseAxis
from .conditioner import Conditioner
from .grid import Grid
from .kernels import AbstractKernel
from .kronecker import KroneckerConditioner
from .toeplitz import ToeplitzAxis

# Points along an axis from which the FFT takes the place of a factor: between the two that are measured, for few points
# and for those of a default step (`vgp bench solvers --only crossing`, results/solvers.json).
CROSSING = 2000
MOST = 4096  # inputs that a dense factor is still made for


def conditioned(kernel: AbstractKernel, inputs: Float[Array, "m c"] | Grid) -> Conditioner | KroneckerConditioner:
    """The process on these inputs, made ready once per step.

    Free inputs have a dense factor. On a grid a kernel that is a product over the coordinates makes the matrix a
    Kronecker product, each of whose factors is dense, or Toeplitz where its axis is long.
    """
    if not isinstance(inputs, Grid):
        return Conditioner(kernel, inputs)
    if kernel.along(inputs.latent_dim) is not None:
        return KroneckerConditioner(kernel, inputs, tuple(map(_axis, inputs.low, inputs.high, inputs.points)))
    if inputs.size <= MOST:
        return Conditioner(kernel, inputs.inputs())
    raise ValueError(
        f"A Grid of {inputs.size} points needs a kernel that is a product of stationary ones over its "
        f"{inputs.latent_dim} coordinates, got {type(kernel).__name__}; use vgp.kernels.ARD, vgp.kernels.Separable, or "
        f"{MOST} points at most."
    )


def _axis(low: float, high: float, count: int) -> AbstractAxis:
    return (DenseAxis if count < CROSSING else ToeplitzAxis)(low, high, count)


def told(conditioner: Conditioner | KroneckerConditioner) -> str:
    """The algebra in words."""
    if isinstance(conditioner, Conditioner):
        return f"dense, {conditioner.inputs.shape[0]} inputs"
    axes = [f"{axis.count} {'dense' if isinstance(axis, DenseAxis) else 'Toeplitz'}" for axis in conditioner.axes]
    return f"{'Kronecker, ' if len(axes) > 1 else ''}{' × '.join(axes)}, {conditioner.grid.size} inputs"
