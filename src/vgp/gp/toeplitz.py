"""An axis whose kernel matrix is Toeplitz: products by the FFT, solves by conjugate gradients.

A stationary kernel on evenly spaced points depends on the distance of two points only, so that one column is the whole
matrix. It is embedded in a circulant one of twice the size, which the Fourier transform diagonalises: a product costs
m log m, and nothing of size m² is ever made.

The preconditioner is a circulant of that size too, whose entries are the kernel summed over many turns round the
circle, until most kernels have died out. So the kernel has no bend where the circle closes, and the eigenvalues are
those of its spectrum: the inverse, cut down to the grid, is close to the one that is wanted. Tens of iterations do,
from lengthscales of a point to many grids. Gradients are implicit, by one more solve and not through the iterations;
that one has a rough right-hand side, and takes most of the time.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float
from scipy.fft import next_fast_len

from .axis import JITTER, AbstractAxis, Row

TURNS = 16  # that the preconditioner's kernel goes round the circle, of two grids each
CHUNK = 2**20  # numbers that are solved for at a time


class ToeplitzAxis(AbstractAxis):
    """B is the symmetric root of the circulant with the same middle as K. m log m work for each point, and m memory.

    A solve ends at a residual of `tolerance`, or is given up after `steps`: its row is then NaN, never a number that is
    wrong.
    """

    tolerance: float = eqx.field(static=True, default=1e-11)
    steps: int = eqx.field(static=True, default=500)

    def _symbol(self, kernel, size: int, turns: int = 1) -> Float[Array, " s"]:
        # The eigenvalues of the circulant of this size whose entries are the kernel at the distance round the circle,
        # or the sum of those at which one comes by again in so many turns.
        index, spacing = jnp.arange(size, dtype=float), (self.high - self.low) / (self.count - 1)
        column = jnp.where(index == 0, JITTER, 0.0)
        for turn in range(turns):
            along = index + turn * size
            away = spacing * jnp.minimum(along, turns * size - along)
            column += kernel.correlation(away[:, None], jnp.zeros((1, 1)))[:, 0]
        return jnp.fft.rfft(column).real

    def rows(self, kernel, x):
        n, m = len(x), self.count
        chunk = max(1, -(-n // max(1, -(-n * m // CHUNK))))  # all of nearly one size: what fills up the last is lost
        twice = next_fast_len(2 * m - 1, real=True)
        symbol = self._symbol(kernel, twice)
        beyond = jax.lax.stop_gradient(jnp.maximum(self._symbol(kernel, twice, TURNS), JITTER))

        def product(v):
            return jnp.fft.irfft(symbol * jnp.fft.rfft(v, n=twice), n=twice)[:, :m]

        def nearly_solved(v):
            return jnp.fft.irfft(jnp.fft.rfft(v, n=twice) / beyond, n=twice)[:, :m]

        # The points of a chunk are one system, whose matrix is K once for each of them.
        shape, tags = jax.ShapeDtypeStruct((chunk, m), symbol.dtype), lx.positive_semidefinite_tag
        operator = lx.FunctionLinearOperator(product, shape, tags)
        # What it does every few steps by default counts in integers, whose size depends on the precision.
        solver = lx.CG(rtol=self.tolerance, atol=self.tolerance, max_steps=self.steps, stabilise_every=None)
        options: dict[str, Any] = {"preconditioner": lx.FunctionLinearOperator(nearly_solved, shape, tags)}

        def some(places):
            cross = kernel.correlation(places[:, None], self.points)
            none = jnp.all(cross == 0)  # so far from every input that there is nothing to solve
            found = lx.linear_solve(operator, jnp.where(none, 1.0, cross), solver, options=options, throw=False)
            solved = jnp.where(found.result == lx.RESULTS.successful, jnp.where(none, 0.0, found.value), jnp.nan)
            return self._filtered(kernel, solved.T, 0.5).T, jnp.sum(cross * solved, axis=1)

        whole = jnp.pad(x, (0, -len(x) % chunk)).reshape(-1, chunk)
        weights, explained = jax.lax.map(some, whole)
        weights, explained = weights.reshape(-1, m), explained.reshape(-1)
        return Row(weights[: len(x)], explained[: len(x)])

    def colour(self, kernel, u):
        return self._filtered(kernel, u, 0.5)

    def whiten(self, kernel, t):
        return self._filtered(kernel, t, -0.5)

    def _filtered(self, kernel, values: Float[Array, "m r"], power: float) -> Float[Array, "m r"]:
        near = jnp.maximum(self._symbol(kernel, self.count), JITTER)
        return jnp.fft.irfft(near[:, None] ** power * jnp.fft.rfft(values, axis=0), n=self.count, axis=0)
