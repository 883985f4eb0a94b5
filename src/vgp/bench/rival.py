"""The same conditional mean and variance by GPyTorch's grid kernel, where it is installed (`pip install gpytorch`).

Both get the same grid, kernel, jitter, outputs and points, the latter in double precision with GPyTorch. Its conjugate
gradients stop by default at a residual that leaves no digit of the variance right; here they go on to `TOLERANCE`, with
which the variance is off by some millionths. A small matrix it may also factor, if that is quicker. A dense solve says
how close each of the two is to the truth. Either has one thread.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from ..families.vgp import POINTS
from ..gp import ARD, Grid, conditioned
from ..gp.axis import JITTER
from ..gp.kronecker import KroneckerConditioner
from .measure import compiled, seconds

TOLERANCE = 1e-4
MOST = 10_000  # iterations
FACTORED = 4096  # inputs up to which GPyTorch is also asked for a factor
COUNT = 4  # points
WINDOW = 1000  # inputs next to a point that the reference looks at; what is further away has no weight that counts


def installed() -> str | None:
    """The version that is installed, if any."""
    try:
        return metadata.version("gpytorch")
    except metadata.PackageNotFoundError:
        return None


def their_solve(
    points: Float[np.ndarray, " m"],
    lengthscale: float,
    outputs: Float[np.ndarray, " m"],
    xi: Float[np.ndarray, " n"],
    factored: bool = False,
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A function that gives mean and variance at ξ: one solve of the Toeplitz system for all points."""
    # Not a dependency, so that nothing may be known of it before it is asked for.
    gpytorch, torch = (importlib.import_module(name) for name in ("gpytorch", "torch"))
    torch.set_num_threads(1)
    settings = gpytorch.settings
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    grid = torch.from_numpy(points)
    grid_kernel = gpytorch.kernels.GridKernel(kernel, [grid]).double()
    at, t = torch.from_numpy(xi)[:, None], torch.from_numpy(outputs)

    def call():
        with (
            torch.no_grad(),
            settings.cg_tolerance(TOLERANCE),
            settings.max_cg_iterations(MOST),
            settings.max_cholesky_size(FACTORED if factored else 0),
        ):
            matrix = grid_kernel(grid[:, None]).add_jitter(JITTER)
            cross = kernel(grid[:, None], at).to_dense()
            solved = matrix.solve(cross)
            return (solved.T @ t).numpy(), 1 - (cross * solved).sum(0).numpy()

    return call


def compare(quick: bool) -> Iterator[dict[str, Any]]:
    """Both on the same problem, one after the other, at one size after another."""
    for size in (100,) if quick else (1000, 3162, 10_000, 31_623, 100_000, 1_000_000):
        grid, rng = Grid(size), np.random.default_rng(0)
        points = grid.axes[0]
        lengthscale = POINTS * float(points[1] - points[0])
        # Ours takes single precision in, so that both get what can be said in it.
        xi, outputs = rng.normal(size=COUNT).astype(np.float32), np.sin(points).astype(np.float32)
        problem = points, lengthscale, outputs.astype(float), xi.astype(float)
        arguments = ARD(1.0, lengthscale**-2), jnp.asarray(xi[:, None]), jnp.asarray(outputs[:, None])
        solve = compiled(lambda k, x, t, grid=grid: _ours(k, grid).interpolate(x, t), *arguments)
        with threadpool_limits(1):
            ours = seconds(lambda s=solve, a=arguments: s(*a), 7)
        mean, variance = solve(*arguments)
        theirs = [_timed(their_solve(*problem))]
        if size <= FACTORED:
            theirs.append(_timed(their_solve(*problem, factored=True)))
        fastest, found = min(theirs, key=lambda each: each[0])
        truth = reference(*problem)
        yield {
            "size": size,
            "our_ms": 1e3 * ours,
            "their_ms": 1e3 * fastest,
            "ratio": fastest / ours,
            "their_way": ("conjugate gradients", "factor")[[each[0] for each in theirs].index(fastest)],
            "our_error": _error((np.asarray(mean)[:, 0], np.asarray(variance)), truth),
            "their_error": _error(found, truth),
        }


def _ours(kernel, grid: Grid) -> KroneckerConditioner:
    made = conditioned(kernel, grid)
    assert isinstance(made, KroneckerConditioner)
    return made


def _timed(call) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    started = time.perf_counter()
    found = call()
    first = time.perf_counter() - started
    # What takes half a minute needs no second call to be warm.
    return (first if first > 30 else seconds(call, 5)), found


def _error(found, truth) -> float:
    return float(max(np.abs(np.asarray(a, float) - b).max() for a, b in zip(found, truth, strict=True)))


def reference(points, lengthscale, outputs, xi) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance from the inputs near each point, by a dense solve in double precision."""
    means, variances = [], []
    for x in xi:
        near = np.argsort(np.abs(points - x))[:WINDOW]
        s = points[near]
        gram = np.exp(-0.5 * ((s[:, None] - s) / lengthscale) ** 2) + JITTER * np.eye(len(s))
        cross = np.exp(-0.5 * ((s - x) / lengthscale) ** 2)
        solved = np.linalg.solve(gram, cross)
        means.append(solved @ outputs[near])
        variances.append(1 - solved @ cross)
    return np.array(means), np.array(variances)
