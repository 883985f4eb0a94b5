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

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .axis import JITTER, AbstractAxis, Row
from .circulant import Circle, eigenvalues, product

TURNS = 16  # that the preconditioner's kernel goes round the circle, of two grids each
CHUNK = 2**20  # numbers that are solved for at a time
CACHED = 2**16  # the same on a CPU, where conjugate gradients should not leave the cache


class ToeplitzAxis(AbstractAxis):
    """B is the symmetric root of the circulant with the same middle as K. m log m work for each point, and m memory.

    A solve ends at a residual of `tolerance`, or is given up after `steps`: its row is then NaN, never a number that is
    wrong.
    """

    tolerance: float = eqx.field(static=True, default=1e-11)
    steps: int = eqx.field(static=True, default=500)

    def _column(self, kernel, circle: Circle, turns: int = 1) -> Float[Array, " N"]:
        # Of the circulant whose entries are the kernel at the distance round the circle, or the sum of those at which
        # one comes by again in so many turns.
        index, spacing = jnp.arange(circle.size, dtype=float), (self.high - self.low) / (self.count - 1)
        column = jnp.where(index == 0, JITTER, 0.0)
        for turn in range(turns):
            along = index + turn * circle.size
            away = spacing * jnp.minimum(along, turns * circle.size - along)
            column += kernel.correlation(away[:, None], jnp.zeros((1, 1)))[:, 0]
        return column

    def rows(self, kernel, x):
        n, m, most = len(x), self.count, CACHED if jax.default_backend() == "cpu" else CHUNK
        chunk = max(1, -(-n // max(1, -(-n * m // most))))  # all of nearly one size: what fills up the last is lost
        chunk += chunk % 2  # rows go in pairs
        circle, root = Circle.around(m), self._root(kernel)
        beyond = self._column(jax.lax.stop_gradient(kernel), circle, TURNS)
        symbol, beyond = eigenvalues(circle, jnp.stack([self._column(kernel, circle), beyond]))
        beyond = jnp.maximum(beyond, JITTER)
        # What it does every few steps by default counts in integers, whose size depends on the precision.
        solver = lx.CG(rtol=self.tolerance, atol=self.tolerance, max_steps=self.steps, stabilise_every=None)

        def some(places):
            cross = kernel.correlation(places[:, None], self.points)
            # The points of a chunk are one system, whose matrix is K once for each of them.
            found: Any = _solved(circle, solver, symbol, beyond, cross)
            return self._filtered(root, found), jnp.sum(cross * found, axis=1)

        whole = jnp.pad(x, (0, -len(x) % chunk)).reshape(-1, chunk)
        weights, explained = jax.lax.map(some, whole)
        weights, explained = weights.reshape(-1, m), explained.reshape(-1)
        return Row(weights[: len(x)], explained[: len(x)])

    def colour(self, kernel, u):
        return self._filtered(self._root(kernel), u.T).T

    def whiten(self, kernel, t):
        return self._filtered(1 / self._root(kernel), t.T).T

    def _root(self, kernel) -> Float[Array, "a b"]:
        circle = Circle.of(self.count)
        column = self._column(kernel, circle)
        near, _ = eigenvalues(circle, jnp.stack([column, jnp.zeros_like(column)]))
        return jnp.sqrt(jnp.maximum(near, JITTER))

    def _filtered(self, values: Float[Array, "a b"], rows: Float[Array, "r m"]) -> Float[Array, "r m"]:
        circle, pairs = Circle.of(self.count), jnp.pad(rows, ((0, len(rows) % 2), (0, 0)))
        return product(circle, values, pairs)[: len(rows)]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solved(circle: Circle, solver: lx.CG, symbol, beyond, right: Float[Array, "r m"]):
    # y with K y = right, or NaN; `beyond` makes the preconditioner, on which y does not depend.
    shape, tags = jax.ShapeDtypeStruct(right.shape, right.dtype), lx.positive_semidefinite_tag
    operator = lx.FunctionLinearOperator(partial(product, circle, symbol), shape, tags)
    nearly_inverse = lx.FunctionLinearOperator(partial(product, circle, 1 / beyond), shape, tags)
    options: dict[str, Any] = {"preconditioner": nearly_inverse}
    found = lx.linear_solve(operator, right, solver, options=options, throw=False)
    return jnp.where(found.result == lx.RESULTS.successful, found.value, jnp.nan)


def _solved_and_kept(circle, solver, symbol, beyond, right):
    found = _solved(circle, solver, symbol, beyond, right)
    return found, (symbol, beyond, found)


def _by_solved(circle, solver, kept, slopes):
    # Implicit: K is symmetric, so that one more solve gives the slope by the right side, and from that the one by K.
    symbol, beyond, found = kept
    by_right: Any = _solved(circle, solver, symbol, beyond, slopes)
    (by_symbol,) = jax.vjp(lambda symbol: product(circle, symbol, found), symbol)[1](-by_right)
    return by_symbol, jnp.zeros_like(beyond), by_right


_solved.defvjp(_solved_and_kept, _by_solved)
