"""Products with circulants of a real and symmetric column, by the Fourier transform.

Their eigenvalues are real, so that such a matrix acts on a complex vector as on two real ones: rows go in pairs. On a
CPU a long transform would leave the cache at every step. There its N = a b numbers are taken as a table: short
transforms along one side, a turn of each number, short ones along the other (Bailey's four steps). It is gone through a
few lines at a time, that stay in the cache for all that is done to them. What this leaves out of order are the
eigenvalues, which nobody needs to see in order.

The derivatives are products and transforms again, and are given as such: those of a loop would keep all of its blocks.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import dynamic_slice_in_dim, dynamic_update_slice_in_dim
from jaxtyping import Array, Complex, Float
from scipy.fft import next_fast_len

LONG = 2**16  # numbers from which on a CPU takes a transform in four steps
LINES = 16  # of a table at a time
FEWEST = 4  # for which that is still worth it
PAGE = 128  # numbers; lines that are a multiple of it apart would share a few places of the cache

with_slopes: Any = partial(jax.custom_vjp, nondiff_argnums=(0,))  # of a function of a circle and of arrays


class Circle(NamedTuple):
    """N = a b places, in a table of a rows where it is long. Vectors lie on the first m of them."""

    a: int
    b: int = 1

    @classmethod
    def of(cls, count: int) -> "Circle":
        """As many places as numbers, in a table as square as can be; one line where they have no such factors."""
        sides = range(int(count**0.5), 1, -1) if _in_steps(count) else ()
        for b in sides:
            if count % b == 0 and min(_lines(b), _lines(count // b)) >= FEWEST:
                return cls(count // b, b)
        return cls(count)

    @classmethod
    def around(cls, count: int) -> "Circle":
        """Two places for each number or little more, and quick to transform."""
        if not _in_steps(2 * count):
            return cls(_quick(2 * count - 1))
        middle = int((2 * count) ** 0.5 / LINES)
        sides = {LINES * _quick(max(k, 1)) for k in range(middle * 3 // 4, middle * 4 // 3 + 1)}
        tables = [cls(LINES * _quick(-(-2 * count // (LINES * b))), b) for b in sorted(sides)]
        return min(tables, key=lambda table: (table.b % PAGE == 0, table.size))

    @property
    def size(self) -> int:
        """N."""
        return self.a * self.b


@with_slopes
def eigenvalues(circle: Circle, columns: Float[Array, "2 N"]) -> Float[Array, "2 a b"]:
    """Those of the circulants with these two symmetric columns, in the order in which a transform leaves them."""
    return _transformed(circle, columns)


def _by_columns(circle, _, slopes):
    # The transform is its own transpose, and the first column of a circulant is its eigenvalues transformed back.
    first = jnp.where(jnp.arange(2 * circle.size).reshape(2, -1) == 0, float(circle.size), 0.0)
    return (jnp.stack([product(circle, each, first)[0] for each in slopes]),)


eigenvalues.defvjp(lambda circle, columns: (eigenvalues(circle, columns), None), _by_columns)


@with_slopes
def product(circle: Circle, values: Float[Array, "a b"], rows: Float[Array, "r m"]) -> Float[Array, "r m"]:
    """The circulant of these eigenvalues times each of an even number of vectors, of which it keeps the first m."""
    m = rows.shape[1]
    if circle.b == 1:
        return _parted(jnp.fft.ifft(values[:, 0] * jnp.fft.fft(_paired(rows), n=circle.a))[:, :m])
    reached, turns = -(-m // circle.b), _turns(circle)

    def across(start, table):
        some = jnp.fft.fft(dynamic_slice_in_dim(table, start, _lines(circle.a), 1))
        return jnp.fft.ifft(dynamic_slice_in_dim(values, start, _lines(circle.a)) * some)

    def down(start, table):
        some = dynamic_slice_in_dim(table, start, _lines(circle.b), 2).swapaxes(1, 2)
        return jnp.fft.ifft(some * turns(start).conj())[..., :reached].swapaxes(1, 2)

    table = _by_lines(across, _half_transformed(circle, rows), _lines(circle.a), 1)
    table = _by_lines(down, table, _lines(circle.b), 2)
    return _parted(table.reshape(len(table), -1)[:, :m])


def _by_both(circle, kept, slopes):
    values, rows = kept
    by_values = jnp.sum(_transformed(circle, rows) * _transformed(circle, slopes), axis=0) / circle.size
    return by_values, product(circle, values, slopes)


product.defvjp(lambda circle, *kept: (product(circle, *kept), kept), _by_both)


# ---------------------------------------------------------------- the transform


def _transformed(circle: Circle, rows: Float[Array, "r m"]) -> Float[Array, "r a b"]:
    if circle.b == 1:
        return _parted(jnp.fft.fft(_paired(rows), n=circle.a))[..., None]
    return _parted(jnp.fft.fft(_half_transformed(circle, rows)))


def _half_transformed(circle: Circle, rows: Float[Array, "r m"]) -> Complex[Array, "p a b"]:
    # Transforms of the columns, and the turns.
    m, turns = rows.shape[1], _turns(circle)
    reached = -(-m // circle.b)

    def down(start, table):
        some = dynamic_slice_in_dim(table[:, :reached], start, _lines(circle.b), 2).swapaxes(1, 2)
        return (jnp.fft.fft(some, n=circle.a) * turns(start)).swapaxes(1, 2)

    table = jnp.pad(_paired(rows), ((0, 0), (0, circle.size - m))).reshape(-1, circle.a, circle.b)
    return _by_lines(down, table, _lines(circle.b), 2)


def _turns(circle: Circle):
    # exp(-2πi j k / N) for a few columns k from `start` on: the product of the start's own and those of the first few.
    lines, unit = _lines(circle.b), -2j * np.pi / circle.size * np.arange(circle.a)
    fine = jnp.asarray(np.exp(unit * np.arange(lines)[:, None]))
    coarse = jnp.asarray(np.exp(unit * np.arange(0, circle.b, lines)[:, None]))
    return lambda start: coarse[start // lines] * fine


def _by_lines(act, table, lines: int, axis: int):
    # The table with what `act` makes of it from the line `start` on, so many at a time.
    def some(i, table):
        return dynamic_update_slice_in_dim(table, act(i * lines, table), i * lines, axis)

    return jax.lax.fori_loop(0, table.shape[axis] // lines, some, table)


def _paired(rows: Float[Array, "r m"]) -> Complex[Array, "p m"]:
    return jax.lax.complex(*jnp.split(rows, 2))


def _parted(pairs: Complex[Array, "p ..."]) -> Float[Array, "r ..."]:
    return jnp.concatenate([pairs.real, pairs.imag])


def _lines(side: int) -> int:
    return next(k for k in range(LINES, 0, -1) if side % k == 0)


def _quick(size: int) -> int:
    # The next size with small factors only.
    found: Any = next_fast_len(size)
    return found


def _in_steps(size: int) -> bool:
    return size >= LONG and jax.default_backend() == "cpu"
