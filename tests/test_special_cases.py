"""Appendix A: the families inside the VGP, each as an equality."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import vgp
from vgp.auxiliary import LinearGaussian, Residual
from vgp.families import FactorAnalysis, FullRank, MeanField, Mixture
from vgp.kernels import ARD, Linear
from vgp.meanfield import Normal
from vgp.targets import shapes

BANANA = shapes.banana()


@eqx.filter_jit
def log_q_of_draws(family, n=2000, inner=0):
    """Draws of a hierarchical family and the log q̂ that comes with them."""
    view = family.view()
    z, y, _, key = vgp.bounds.draw(view, jr.key(1), n)
    return z, vgp.bounds.log_q_upper(view, z, y, key, inner)


@eqx.filter_jit
def value_and_gradient(bound, family, key):
    return jax.value_and_grad(lambda f: bound(BANANA, f, key, 16).mean())(family)


def test_without_outputs_and_amplitude_it_is_the_mean_field(key):
    scale = jnp.array([0.5, 2.0])
    family = vgp.VGP(
        2, 8, mean="zero", kernel=ARD(0.0, 0.5), meanfield=Normal(2, initial=1.0),
        loc=jnp.array([1.0, -1.0]), scale=scale, key=key,
    )  # fmt: skip
    meanfield = eqx.tree_at(
        lambda f: (f.loc, f.log_scale), MeanField(2, key=key), (jnp.array([1.0, -1.0]), jnp.log(scale))
    )
    z, log_q = log_q_of_draws(family)
    np.testing.assert_allclose(log_q - family.place.log_volume, meanfield.log_prob(family.place(z)), atol=1e-4)
    value, gradient = value_and_gradient(vgp.bounds.Importance(4), family, key)
    assert np.isfinite(value)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("bound", [vgp.bounds.General(), vgp.bounds.Importance(2, collapse=False)])
def test_amplitude_zero_keeps_gradients_finite_with_f_in_the_latent(bound, key):
    family = vgp.VGP(2, 8, kernel=ARD(0.0, 0.5), key=key)
    value, gradient = value_and_gradient(bound, family, key)
    assert np.isfinite(value)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()


def test_affine_mean_without_amplitude_is_the_full_rank_gaussian(key):
    linear, noise = jnp.array([[1.5, 0.0], [0.8, 0.6]]), 0.4
    family = vgp.VGP(
        2, 8, kernel=ARD(0.0, 0.5), meanfield=Normal(2, initial=noise), auxiliary=LinearGaussian(2, 2), key=key
    )
    family = eqx.tree_at(lambda f: f.linear, family, linear)
    exact_r = family.auxiliary.started(linear, jnp.full(2, noise))
    family = eqx.tree_at(lambda f: f.auxiliary, family, exact_r)
    factor = jnp.linalg.cholesky(linear @ linear.T + noise**2 * jnp.eye(2))
    full = eqx.tree_at(
        lambda f: (f.loc, f.log_diagonal, f.below),
        FullRank(2, key=key),
        (jnp.zeros(2), jnp.log(jnp.diagonal(factor)), factor),
    )
    z, log_q = log_q_of_draws(family)
    np.testing.assert_allclose(log_q, full.log_prob(z), atol=2e-4)  # K = 0, and no gap: r is exact
    np.testing.assert_allclose(
        full.log_prob(z), stats.multivariate_normal(np.zeros(2), factor @ factor.T).logpdf(z), atol=1e-4
    )


def test_linear_kernel_with_identity_inputs_is_factor_analysis(key):
    loadings = jr.normal(key, (2, 3))
    noise = 0.5
    family = vgp.VGP(
        3, 2, 2, mean="zero", kernel=Linear(1.0, 1.0), inputs=jnp.eye(2), outputs=loadings,
        meanfield=Normal(3, initial=noise),
        auxiliary=LinearGaussian(3, 2).started(loadings.T, jnp.full(3, noise)), key=key,
    )  # fmt: skip
    analysis = eqx.tree_at(
        lambda f: (f.loadings, f.log_scale), FactorAnalysis(3, 2, key=key), (loadings, jnp.full(3, np.log(noise)))
    )
    z, log_q = log_q_of_draws(family)
    np.testing.assert_allclose(log_q, analysis.log_prob(z), atol=1e-3)
    covariance = np.asarray(loadings.T @ loadings + noise**2 * jnp.eye(3))
    np.testing.assert_allclose(
        analysis.log_prob(z), stats.multivariate_normal(np.zeros(3), covariance).logpdf(z), atol=1e-4
    )


def test_linear_kernel_without_data_is_not_factor_analysis(key):
    # Appendix A says it is. Without data the outputs share only the scale ‖ξ‖: they are uncorrelated.
    family = vgp.VGP(3, 0, 2, mean="zero", kernel=Linear(1.0, 1.0), meanfield=Normal(3, initial=0.1), key=key)
    z = np.asarray(family.sample(key, 100_000))
    assert np.abs(np.corrcoef(z.T) - np.eye(3)).max() < 0.02
    assert np.corrcoef((z**2).T)[0, 1] > 0.1
    xi = jnp.array([[0.6, -1.1]])
    conditional = family.view().conditional(xi)
    np.testing.assert_allclose(conditional.base_dist.scale**2, jnp.full((1, 3), 0.6**2 + 1.1**2 + 0.01), rtol=1e-4)


def test_nearest_neighbours_are_a_mixture_of_mean_fields(key):
    mixture = Mixture(2, 4, key=key)
    mixture = eqx.tree_at(
        lambda f: (f.inputs, f.log_scale),
        mixture,
        (jnp.array([0.3, -1.2, 2.0, -0.1]), 0.3 * jr.normal(jr.key(1), (4, 2))),
    )
    point = jnp.array([[0.4, -0.7]])

    def integrand(xi):
        j = int(mixture.nearest(jnp.array([xi]))[0])
        q = dist.Normal(mixture.outputs[j], jnp.exp(mixture.log_scale[j])).to_event(1)
        return float(jnp.exp(q.log_prob(point[0]))) * stats.norm.pdf(xi)

    edges = np.sort(np.asarray(mixture.inputs))
    breaks = (edges[1:] + edges[:-1]) / 2
    ends = [-8.0, *breaks, 8.0]
    density = sum(integrate.quad(integrand, a, b, epsrel=1e-4, limit=20)[0] for a, b in itertools.pairwise(ends))
    assert float(jnp.exp(mixture.log_prob(point)[0])) == pytest.approx(density, rel=1e-3)
    cells = np.bincount(np.asarray(mixture.nearest(jr.normal(key, (200_000,)))), minlength=4) / 200_000
    np.testing.assert_allclose(np.exp(mixture.log_weights), cells, atol=0.005)
    assert float(jnp.exp(mixture.log_weights).sum()) == pytest.approx(1.0, abs=1e-5)


def test_no_variational_data_is_the_prior(key):
    family = vgp.VGP(2, 0, kernel=ARD(0.7, 1.0), mean="zero", meanfield=Normal(2, initial=0.3), key=key)
    q = family.view().conditional(jr.normal(key, (5, 2))).base_dist
    np.testing.assert_allclose(q.loc, np.zeros((5, 2)), atol=1e-6)
    np.testing.assert_allclose(q.scale**2, np.full((5, 2), 0.7 + 0.09), rtol=1e-5)


def test_weights_driven_to_zero_leave_a_dimension_out(key):
    kernel = ARD(0.5, np.array([1.0, 0.0, 1.0]))
    family = vgp.VGP(2, 8, 3, mean="zero", kernel=kernel, key=key)
    assert float(family.effective_dim) == pytest.approx(2.0)
    family = eqx.tree_at(lambda f: f.whitened, family, jr.normal(key, family.whitened.shape))
    xi = jr.normal(key, (4, 3))
    moved = xi.at[:, 1].add(5.0)
    first, second = (family.view().conditional(x).base_dist.loc for x in (xi, moved))
    np.testing.assert_allclose(first, second, atol=1e-4)


def test_residual_network_starts_at_the_prior(key):
    r = Residual(3, 2, key=key).latent(jr.normal(key, (5, 3))).base_dist
    np.testing.assert_array_equal(r.loc, np.zeros((5, 2)))
    np.testing.assert_array_equal(r.scale, np.ones((5, 2)))
