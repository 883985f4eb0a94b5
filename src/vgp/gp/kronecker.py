"""The Gaussian process conditioned on outputs at a grid, by the structure of a product kernel there.

K_ss is the Kronecker product of one matrix per axis, so its solves are those of the axes: the row of a point ξ is the
product of the rows of its coordinates, and the explained variance the product of theirs.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .axis import AbstractAxis
from .conditioner import AbstractConditioner
from .double import in_double
from .grid import Grid
from .kernels import HIGHEST, AbstractKernel


class KroneckerRows(eqx.Module):
    """Weights at points of a grid's process, as one row per axis; `rows @ u` is what the whole rows would give."""

    each: tuple[Float[Array, "..."], ...]

    def __matmul__(self, outputs: Float[Array, "m p"]) -> Float[Array, "*k p"]:
        shape = self.each[0].shape[:-1]
        rows = [row.reshape(-1, row.shape[-1]) for row in self.each]
        # The first axis is one large product that all points share, the others shrink what each has left.
        left = jnp.matmul(rows[0], outputs.reshape(rows[0].shape[1], -1), precision=HIGHEST)
        for row in rows[1:]:
            left = left.reshape(len(row), row.shape[1], -1)
            left = jnp.einsum("nm,nmr->nr", row, left, precision=HIGHEST)
        return left.reshape(*shape, outputs.shape[-1])


class KroneckerConditioner(AbstractConditioner):
    """Kernel and grid: c small matrices in place of one with m rows.

    Every call of `rows` factors them, in double precision; the compiler makes one factor of them for a whole step.
    """

    kernel: AbstractKernel
    grid: Grid
    axes: tuple[AbstractAxis, ...]

    @property
    def latent_dim(self) -> int:
        return self.grid.latent_dim

    def _kernels(self) -> tuple[AbstractKernel, ...]:
        kernels = self.kernel.along(self.latent_dim)
        assert kernels is not None
        return tuple(kernels)

    def rows(self, xi):
        weights, left = in_double(self._rows)(self._kernels(), xi.reshape(-1, self.latent_dim))
        shape = xi.shape[:-1]
        whole = KroneckerRows(tuple(row.reshape(*shape, -1) for row in weights.each))
        return whole, self.kernel.variance * left.reshape(shape)

    def _rows(self, kernels, points):
        each = [axis.rows(k, points[:, i]) for i, (axis, k) in enumerate(zip(self.axes, kernels, strict=True))]
        # What is left of one, where nearly all is explained: a difference for double precision.
        left = 1 - jnp.prod(jnp.stack([row.explained for row in each]), axis=0)
        return KroneckerRows(tuple(row.weights for row in each)), jnp.maximum(left, 0.0)

    def interpolate(
        self, xi: Float[Array, "n c"], outputs: Float[Array, "m p"]
    ) -> tuple[Float[Array, "n p"], Float[Array, " n"]]:
        """Mean A(ξ)t given the outputs t themselves, and the variance v(ξ).

        A learned warp has u with t = B u and needs only `rows`. From t, which a smooth kernel may find very unlikely,
        the digits of single precision would not do, so that the way to u is inside of the double precision too.
        """

        def found(kernels, xi, outputs):
            rows, left = self._rows(kernels, xi)
            return rows @ self._along(kernels, outputs, _whiten), left

        mean, left = in_double(found)(self._kernels(), xi, outputs)
        return mean, self.kernel.variance * left

    def colour(self, whitened: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """t = B u, with B the product of the axes' own."""
        return in_double(lambda kernels, u: self._along(kernels, u, _colour))(self._kernels(), whitened)

    def whiten(self, outputs: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """u = B⁻¹ t."""
        return in_double(lambda kernels, t: self._along(kernels, t, _whiten))(self._kernels(), outputs)

    def _along(self, kernels, values, act):
        shape = (*self.grid.points, values.shape[-1])
        values = values.reshape(shape)
        for i, (axis, kernel) in enumerate(zip(self.axes, kernels, strict=True)):
            front = jnp.moveaxis(values, i, 0)
            values = jnp.moveaxis(act(axis, kernel, front.reshape(shape[i], -1)).reshape(front.shape), 0, i)
        return values.reshape(self.grid.size, -1)


def _colour(axis: AbstractAxis, kernel: AbstractKernel, values):
    return axis.colour(kernel, values)


def _whiten(axis: AbstractAxis, kernel: AbstractKernel, values):
    return axis.whiten(kernel, values)
