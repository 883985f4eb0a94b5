"""The conditional of a Gaussian process (eq. `gp_posterior`) against a dense float64 reference."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from vgp.gp import ARD, Conditioner, Matern52
from vgp.gp.jitter import cholesky
from vgp.gp.triangular import inverse


def reference(kernel, inputs, outputs, xi, jitter):
    as_double = lambda x: np.asarray(x, np.float64)  # noqa: E731
    gram = as_double(kernel.gram(inputs)) + float(jitter) * np.eye(len(inputs))
    cross = as_double(kernel.correlation(xi, inputs))
    weights = np.linalg.solve(gram, cross.T).T
    variance = as_double(kernel.correlation_diagonal(xi)) - (weights * cross).sum(1)
    return weights @ as_double(outputs), float(kernel.variance) * variance


@pytest.mark.parametrize("kernel", [ARD(0.5, 0.4), Matern52(0.5, 0.4), ARD(0.2, 1.0) + Matern52(0.3, 0.2)])
def test_mean_and_variance(kernel, key):
    inputs, outputs, xi = jr.normal(key, (12, 2)), jr.normal(jr.key(1), (12, 3)), jr.normal(jr.key(2), (30, 2))
    conditioner = Conditioner(kernel, inputs)
    mean, variance = conditioner(xi, conditioner.whitener @ outputs)
    expected_mean, expected_variance = reference(kernel, inputs, outputs, xi, conditioner.jitter)
    np.testing.assert_allclose(mean, expected_mean, atol=5e-3)
    np.testing.assert_allclose(variance, expected_variance, atol=1e-3)
    np.testing.assert_allclose(conditioner.factor @ (conditioner.whitener @ outputs), outputs, atol=1e-3)


def test_interpolates_its_data(key):
    inputs, outputs = jr.normal(key, (10, 2)), jr.normal(jr.key(1), (10, 1))
    conditioner = Conditioner(Matern52(1.0, 1.0), inputs)
    mean, variance = conditioner(inputs, conditioner.whitener @ outputs)
    np.testing.assert_allclose(mean, outputs, atol=1e-3)
    assert float(variance.max()) < 1e-3


def test_without_data_it_is_the_prior(key):
    conditioner = Conditioner(ARD(0.3, 1.0), jnp.zeros((0, 2)))
    mean, variance = conditioner(jr.normal(key, (5, 2)), jnp.zeros((0, 3)))
    np.testing.assert_array_equal(mean, np.zeros((5, 3)))
    np.testing.assert_allclose(variance, np.full(5, 0.3), rtol=1e-6)


def test_float32_with_500_points_in_100_dimensions(key):
    inputs, xi = jr.normal(key, (500, 100), jnp.float32), jr.normal(jr.key(1), (20, 100), jnp.float32)
    outputs = jr.normal(jr.key(2), (500, 4), jnp.float32)
    kernel = jax.tree.map(lambda x: x.astype(jnp.float32), ARD(1.0, 1.0 / 100))
    conditioner = Conditioner(kernel, inputs)
    mean, variance = conditioner(xi, conditioner.whitener @ outputs)
    expected_mean, expected_variance = reference(kernel, inputs, outputs, xi, conditioner.jitter)
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, expected_mean, atol=1e-3)
    np.testing.assert_allclose(variance, expected_variance, atol=1e-4)


def test_jitter_grows_until_it_succeeds_and_is_reported():
    easy, hard = jnp.eye(30), jnp.ones((30, 30))
    least = 1e-6 if easy.dtype == jnp.float32 else 1e-12
    assert float(cholesky(easy).jitter) == pytest.approx(least)
    factor = cholesky(hard)
    assert float(factor.jitter) >= least
    rebuilt = factor.lower @ factor.lower.T
    np.testing.assert_allclose(rebuilt, hard + factor.jitter * jnp.eye(30), atol=1e-5)
    np.testing.assert_allclose(factor.inverse @ factor.lower, np.eye(30), atol=1e-3)
    doubled = jnp.concatenate([jnp.linspace(-1, 1, 20)] * 2)[:, None]
    assert np.isfinite(Conditioner(ARD(1.0, 1.0), doubled).whitener).all()


@pytest.mark.parametrize("size", [20, 256, 300])
def test_triangular_inverse(size):
    points = jr.normal(jr.key(0), (size, 20))
    lower = cholesky(ARD(1.0, 1 / 20).gram(points)).lower
    found = inverse(lower)
    expected = np.linalg.inv(np.asarray(lower, np.float64))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert (np.triu(found, 1) == 0).all()


def test_gradient_of_factor_and_inverse():
    root = jr.normal(jr.key(0), (6, 6))
    matrix = root @ root.T + jnp.eye(6)
    a, b = jr.normal(jr.key(1), (2, 6, 6))

    def ours(k):
        factor = cholesky(k)
        return jnp.sum(a * factor.lower) + jnp.sum(b * factor.inverse)

    def theirs(k):
        lower = jnp.linalg.cholesky(k)
        return jnp.sum(a * lower) + jnp.sum(b * jnp.linalg.inv(lower))

    np.testing.assert_allclose(jax.grad(ours)(matrix), jax.grad(theirs)(matrix), rtol=2e-3, atol=2e-4)
    _, tangent = jax.jvp(ours, (matrix,), (a + a.T,))
    _, expected = jax.jvp(theirs, (matrix,), (a + a.T,))
    np.testing.assert_allclose(tangent, expected, rtol=2e-3)


@pytest.mark.parametrize("rows", [1, 1000])
def test_one_factorisation_however_many_inputs(rows):
    def conditional(inputs, xi):
        conditioner = Conditioner(ARD(1.0, 1.0), inputs)
        return conditioner(xi, jnp.ones((8, 2)))

    gradient = jax.jit(jax.grad(lambda s, x: conditional(s, x)[0].sum()))
    text = gradient.lower(jnp.ones((8, 2)), jnp.ones((rows, 2))).compile().as_text()
    # Two in the program: the first attempt, and the one inside the loop that only runs if it fails.
    assert len(re.findall('custom_call_target="lapack_[sd]potrf', text)) == 2
