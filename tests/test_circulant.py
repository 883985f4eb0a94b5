"""Circulant products, in one line and in four steps, against dense matrices and numpy's transform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vgp.gp import circulant
from vgp.gp.circulant import Circle, eigenvalues, product
from vgp.gp.double import in_double
from vgp.gp.toeplitz import ToeplitzAxis
from vgp.kernels import ARD

CIRCLES = {  # and the length of the vectors on them
    "whole line": (Circle(30), 30),
    "prime line": (Circle(31), 31),
    "part of a line": (Circle(64), 31),
    "whole table": (Circle(12, 8), 96),
    "table with prime sides": (Circle(13, 17), 13 * 17),
    "part of a table": (Circle(24, 8), 96),
    "part of a table, prime": (Circle(20, 12), 101),
    "several blocks of lines": (Circle(40, 48), 955),
}


def symmetric(half, size):
    """A column with c_i = c_{N-i}, and its matrix."""
    index = np.arange(size)
    column = half[np.minimum(index, size - index)]
    return column, column[(index[:, None] - index) % size]


@pytest.mark.parametrize("name", CIRCLES)
@pytest.mark.parametrize("rows", [2, 6])
def test_a_product_and_its_slopes_are_those_of_the_matrix(name, rows):
    (circle, count), rng = CIRCLES[name], np.random.default_rng(0)
    half = rng.normal(size=(2, circle.size // 2 + 1))
    v, slopes = rng.normal(size=(2, rows, count))
    away = np.minimum(np.arange(circle.size), circle.size - np.arange(circle.size))

    @jax.jit
    def ours(half, v):
        values = eigenvalues(circle, half[:, away])
        return product(circle, values[0] * values[1], v)

    def dense(half, v):
        (_, one), (_, other) = (symmetric(each, circle.size) for each in half)
        return v @ (one @ other)[:count, :count]

    with jax.enable_x64(True):
        half, v, slopes = jnp.asarray(half), jnp.asarray(v), jnp.asarray(slopes)
        found, back = jax.vjp(ours, half, v)
        expected, expected_back = jax.vjp(dense, half, v)
        np.testing.assert_allclose(found, expected, atol=1e-10)
        for one, other in zip(back(slopes), expected_back(slopes), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("name", CIRCLES)
def test_eigenvalues_are_numpys_in_another_order(name):
    circle, _ = CIRCLES[name]
    columns = [symmetric(np.random.default_rng(i).normal(size=circle.size), circle.size)[0] for i in range(2)]
    with jax.enable_x64(True):
        found = np.asarray(eigenvalues(circle, jnp.asarray(np.stack(columns))))
    for values, column in zip(found, columns, strict=True):
        # The k-th eigenvalue stands at (k mod a, k div a).
        np.testing.assert_allclose(values.T.reshape(-1), np.fft.fft(column).real, atol=1e-10)


@pytest.mark.parametrize("count", [1 << 16, 100_000, 100_003, 316_228, 1_000_000])
def test_circles_are_tables_where_they_are_long(count):
    whole, around = Circle.of(count), Circle.around(count)
    assert whole.size == count
    assert 2 * count - 1 <= around.size <= 2.1 * count
    assert around.b > 1
    assert (whole.b > 1) == (count != 100_003)  # which is prime
    assert Circle.of(1000) == Circle(1000) and Circle.around(1000) == Circle(2000)


@pytest.mark.parametrize("count, points", [(120, 5), (127, 6), (127, 1)])
def test_an_axis_in_four_steps_is_the_one_in_one_line(count, points, monkeypatch):
    # Odd and even numbers of points, in pairs that are more than one chunk; a grid with factors and one without.
    axis, rng = ToeplitzAxis(-4.0, 4.0, count), np.random.default_rng(0)
    x, slopes = jnp.asarray(rng.normal(size=points), jnp.float32), rng.normal(size=(points, count))

    def ends():
        def total(kernel, x):
            row = axis.rows(kernel, x)
            return jnp.sum(row.weights * slopes) + jnp.sum(row.explained), row

        def both(kernel, x):
            slopes, row = jax.grad(total, (0, 1), has_aux=True)(kernel, x)
            return slopes, row, axis.colour(kernel, row.weights.T)

        return jax.tree.leaves(jax.jit(in_double(both))(ARD(1.0, 30.0), x))

    expected = ends()
    monkeypatch.setattr(circulant, "LONG", 100)
    monkeypatch.setattr("vgp.gp.toeplitz.CACHED", 2 * count)
    assert Circle.around(count).b > 1 and (Circle.of(count).b > 1) == (count == 120)
    for one, other in zip(ends(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())
