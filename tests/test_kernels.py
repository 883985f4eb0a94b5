"""Kernels against their formulas written out point by point."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import vgp
from vgp.kernels import ARD, Linear, Matern12, Matern32, Matern52

WEIGHTS = np.array([0.5, 2.0, 0.1])


def distance(x, y):
    return np.sqrt(sum(w * (a - b) ** 2 for w, a, b in zip(WEIGHTS, x, y, strict=True)))


FORMULAS = {
    ARD: lambda x, y: np.exp(-0.5 * distance(x, y) ** 2),
    Matern12: lambda x, y: np.exp(-distance(x, y)),
    Matern32: lambda x, y: (1 + 3**0.5 * distance(x, y)) * np.exp(-(3**0.5) * distance(x, y)),
    Matern52: lambda x, y: (
        (1 + 5**0.5 * distance(x, y) + 5 / 3 * distance(x, y) ** 2) * np.exp(-(5**0.5) * distance(x, y))
    ),
    Linear: lambda x, y: sum(w * a * b for w, a, b in zip(WEIGHTS, x, y, strict=True)),
}


def written_out(formula, x, y):
    return np.array([[formula(a, b) for b in np.asarray(y, float)] for a in np.asarray(x, float)])


@pytest.fixture
def points(key):
    return jr.normal(key, (5, 3)), jr.normal(jr.fold_in(key, 1), (4, 3))


@pytest.mark.parametrize("kernel", FORMULAS, ids=lambda k: k.__name__)
def test_formula(kernel, points):
    x, y = points
    k = kernel(0.7, WEIGHTS)
    expected = 0.7 * written_out(FORMULAS[kernel], x, y)
    np.testing.assert_allclose(k(x, y), expected, atol=1e-5)
    np.testing.assert_allclose(k.variance * k.correlation_diagonal(x), np.diag(k(x, x)), atol=2e-3)
    np.testing.assert_allclose(0.7 * k.gram(x), 0.7 * written_out(FORMULAS[kernel], x, x), atol=1e-5)


def test_sum_and_product(points):
    x, y = points
    first, second = ARD(0.3, WEIGHTS), Linear(2.0, WEIGHTS)
    a, b = 0.3 * written_out(FORMULAS[ARD], x, y), 2.0 * written_out(FORMULAS[Linear], x, y)
    np.testing.assert_allclose((first + second)(x, y), a + b, atol=1e-5)
    np.testing.assert_allclose((first * second)(x, y), a * b, atol=1e-5)


@pytest.mark.parametrize("kernel", FORMULAS, ids=lambda k: k.__name__)
def test_zero_variance_and_weights_have_finite_gradients(kernel, points):
    x, _ = points

    def total(k):
        return jnp.sum(k.gram(x)) + jnp.sum(k(x, x)) + jnp.sum((k + k).gram(x))

    zero = kernel(0.0, np.zeros(3))
    assert float(zero.variance) == 0.0
    for leaf in jax.tree.leaves(jax.grad(total)(zero)):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("kernel", [ARD, Matern12, Matern32, Matern52], ids=lambda k: k.__name__)
def test_positive_definite_in_several_dimensions(kernel):
    # L1 distances would fail here: their smallest eigenvalue is negative in two or more dimensions.
    x = jr.normal(jr.key(3), (40, 4))
    assert np.linalg.eigvalsh(np.asarray(kernel(1.0, 0.3).gram(x), float)).min() > -1e-4


def test_negative_parameters_are_refused():
    with pytest.raises(ValueError, match="variance must be zero or positive"):
        ARD(-1.0, 1.0)
    with pytest.raises(ValueError, match="weights must be zero or positive"):
        vgp.kernels.Matern32(1.0, np.array([1.0, -2.0]))
