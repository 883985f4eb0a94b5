"""Time and memory of the conditional mean and variance, and of their gradients, by each algebra as m grows.

The lengthscale is a fixed number of grid points, as a VGP on a grid starts with. Forward is the mean of one output and
the variance at n points; the gradient is that of their weighted sum by the kernel, the outputs and the points.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits

from ..families.vgp import POINTS
from ..gp import ARD, Grid
from ..gp.axis import AbstractAxis, DenseAxis
from ..gp.kronecker import KroneckerConditioner
from ..gp.toeplitz import ToeplitzAxis
from .measure import compiled, exponent, held, peak, seconds

TURNS = 5  # calls in one program


class Algebra(NamedTuple):
    """How m is spread over dimensions, by which axes it is solved, and at how many points."""

    axis: type[AbstractAxis]
    latent_dim: int
    points: int
    sizes: tuple[int, ...]  # along each dimension
    quick: tuple[int, ...]

    def problem(self, count: int) -> tuple[Callable, tuple[Any, ...]]:
        """The solve on `count` inputs along each dimension, and its arguments."""
        grid = Grid(count, self.latent_dim)
        axes = tuple(map(self.axis, grid.low, grid.high, grid.points))
        rng = np.random.default_rng(0)
        kernel = ARD(1.0, ((count - 1) / (POINTS * (grid.high[0] - grid.low[0]))) ** 2)
        xi = jnp.asarray(rng.normal(size=(self.points, self.latent_dim)), float)
        outputs = jnp.asarray(rng.normal(size=(grid.size, 1)), float)

        def solve(kernel, outputs, xi):
            rows, variance = KroneckerConditioner(kernel, grid, axes).rows(xi)
            return rows @ outputs, variance

        return solve, (kernel, outputs, xi)


# Sizes with small factors: Toeplitz outputs go through a transform of just that many numbers.
ALGEBRAS = {
    "dense": Algebra(DenseAxis, 1, 64, (500, 1000, 2000, 4000), (50, 100)),
    "Toeplitz": Algebra(ToeplitzAxis, 1, 4, (10_000, 32_000, 100_000, 320_000, 1_000_000), (50, 100)),
    "Kronecker": Algebra(DenseAxis, 3, 64, (10, 22, 46, 100), (4, 6)),
}


def sloped(solve):
    """The gradient of mean and variance, with weights of one."""

    def total(*arguments):
        mean, variance = solve(*arguments)
        return jnp.sum(mean) + jnp.sum(variance)

    return jax.grad(total, (0, 1, 2))


def looped(function, turns: int):
    """A loop of so many calls, each of which waits for the one before, as the steps of a fit do.

    A fit takes its memory once for many steps. Calls from the host take it anew, and a large one pays for every page.
    """

    def run(*arguments):
        def turn(_, out):
            nothing = 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(out))
            return function(*jax.tree.map(lambda leaf: leaf + nothing, arguments))

        return jax.lax.fori_loop(1, turns, turn, function(*arguments))

    return run


def cost(algebra: Algebra, count: int, repeats: int = 5, turns: int = TURNS) -> dict[str, Any]:
    """Milliseconds and megabytes of a call with so many inputs along each dimension."""
    solve, arguments = algebra.problem(count)
    row: dict[str, Any] = {"size": count**algebra.latent_dim}
    for kind, function in (("forward", solve), ("gradient", sloped(solve))):
        program = compiled(looped(function, turns), *arguments)
        with threadpool_limits(1):
            each = seconds(lambda p=program: p(*arguments), repeats) / turns
        row[kind] = {"ms": 1e3 * each, "megabytes": held(compiled(function, *arguments))}
        if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(program(*arguments))):
            raise ValueError(f"The {kind} of a solve with {row['size']} inputs is not finite.")
    return {**row, "peak_megabytes": peak()}


def measure_growth(quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """One row after another, with the name of its algebra."""
    for name, algebra in ALGEBRAS.items():
        for count in algebra.quick if quick else algebra.sizes:
            yield name, cost(algebra, count, *((2, 2) if quick else (5,)))


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The powers of m, forward and with gradients, in time and in memory."""
    sizes = [row["size"] for row in rows]
    return {
        kind: {unit: exponent(sizes, [row[kind][unit] for row in rows]) for unit in ("ms", "megabytes")}
        for kind in ("forward", "gradient")
    }


def measure_crossing(quick: bool) -> Iterator[dict[str, Any]]:
    """Milliseconds of dense and of Toeplitz algebra, forward and back, at few points and at the many of a default step:
    64 draws with 17 samples of ξ each.
    """
    for points in (8,) if quick else (64, 64 * 17):
        for count in (20, 40) if quick else (250, 500, 1000, 2000, 4000):
            row: dict[str, Any] = {"points": points, "size": count}
            for name in ("dense", "Toeplitz"):
                both = cost(ALGEBRAS[name]._replace(points=points), count, 3, turns=1)
                row[name] = both["forward"]["ms"] + both["gradient"]["ms"]
            yield row


def crossing(rows: list[dict[str, Any]]) -> float:
    """The size where Toeplitz begins to be quicker, between two of those measured; NaN where it does not."""
    ratios = [np.log(row["dense"] / row["Toeplitz"]) for row in rows]
    for (one, low), (other, high) in itertools.pairwise(zip(rows, ratios, strict=True)):
        if low < 0 <= high:
            return float(one["size"] * (other["size"] / one["size"]) ** (-low / (high - low)))
    return float("nan")
