"""One contract for every family: draws follow the density, and fresh noise is fresh."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from problems import draws_of, exact_log_q, random_vgp

import vgp
from vgp.families import FactorAnalysis, Factorised, Flow, FullRank, MeanField, Mixture
from vgp.gradients import DisARM
from vgp.meanfield import Bernoulli, Categorical, Gamma, Mixed, Normal, StudentT
from vgp.montecarlo import enumerate_states

EXACT = {
    "mean-field": lambda key: MeanField(2, key=key),
    "full rank": lambda key: FullRank(2, key=key),
    "factor analysis": lambda key: FactorAnalysis(2, 1, key=key),
    "mixture": lambda key: Mixture(2, 3, key=key),
    "factorised": lambda key: Factorised(2, Normal(2, "gp"), key=key),
    "factorised, not Gaussian": lambda key: Factorised(2, StudentT(2), key=key),
    "flow": lambda key: Flow(2, "iaf", key=key),
}


def moved(family, key):
    leaves, treedef = jax.tree.flatten(family)
    keys = jr.split(key, len(leaves))
    shift = lambda leaf, k: leaf + 0.2 * jr.normal(k, leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf  # noqa: E731
    return jax.tree.unflatten(treedef, [shift(jnp.asarray(x), k) for x, k in zip(leaves, keys, strict=True)])


def histogram_agrees(z, log_q, edges=np.linspace(-3, 3, 7)):
    """The share of draws in each cell of a grid against the density, integrated there on a fine mesh."""
    fine = np.linspace(edges[0], edges[-1], 181)
    centres = (fine[1:] + fine[:-1]) / 2
    mesh = jnp.asarray(np.stack(np.meshgrid(centres, centres, indexing="ij"), -1).reshape(-1, 2), jnp.float32)
    mass = np.exp(np.asarray(log_q(mesh), float)).reshape(180, 180) * (fine[1] - fine[0]) ** 2
    expected = mass.reshape(6, 30, 6, 30).sum((1, 3))
    counts = np.histogram2d(*np.asarray(z).T, bins=[edges, edges])[0] / len(z)
    error = np.sqrt(expected * (1 - expected) / len(z)) + 1e-4
    return np.abs(counts - expected).max() < (5 * error).max() and expected.sum() > 0.5


@pytest.mark.parametrize("name", EXACT)
def test_draws_follow_the_density(name, key):
    family = moved(EXACT[name](key), jr.key(7)) if name != "flow" else EXACT[name](key)
    z, log_q, _ = eqx.filter_jit(lambda f: f.draw(jr.key(1), 50_000))(family)
    log_prob = eqx.filter_jit(lambda z: family.log_prob(z))
    np.testing.assert_allclose(log_q[:50], log_prob(z[:50]), atol=1e-3)
    assert histogram_agrees(z, log_prob)


def test_discrete_draws_of_a_product_follow_its_density():
    family = moved(Factorised(3, Mixed((Bernoulli(), 1), (Categorical(3), 2)), key=jr.key(0)), jr.key(7))
    states = jnp.asarray(enumerate_states([2, 3, 3]), float)
    z, log_q, score = family.draw(jr.key(1), 20_000)
    mass = np.exp(family.log_prob(states))
    assert mass.sum() == pytest.approx(1.0, abs=1e-5)
    shares = (np.asarray(z)[:, None] == np.asarray(states)).all(-1).mean(0)
    assert (np.abs(shares - mass) < 5 * np.sqrt(mass / 20_000)).all()
    np.testing.assert_allclose(log_q[:50], family.log_prob(z[:50]), atol=1e-4)
    np.testing.assert_allclose(score, log_q, atol=1e-4)


def test_a_product_is_fitted(tmp_path):
    # The posterior is itself a product, so that the bound reaches the evidence and the log density is exact.
    def log_density(z):
        return z["on"] @ jnp.array([1.0, -0.5]) + dist.Gamma(3.0, 2.0).log_prob(z["rate"])

    kinds = {"on": constraints.boolean, "rate": constraints.positive}
    target = vgp.target(log_density, {"on": jnp.zeros(2), "rate": 1.0}, kinds).kept("rate")
    family = Factorised(3, Mixed((Bernoulli(), 2), (Gamma(1), 1)), key=jr.key(0))
    fit = vgp.fit(target, family, key=jr.key(0), steps=800, progress=False)
    assert isinstance(fit.settings.gradient, DisARM)
    log_p = np.log1p(np.exp(1.0)) + np.log1p(np.exp(-0.5))
    assert fit.elbo.lower == pytest.approx(log_p, abs=0.02) and fit.elbo.upper == pytest.approx(fit.elbo.lower)
    fit.save(tmp_path / "fit")
    np.testing.assert_array_equal(
        vgp.load(tmp_path / "fit", target).sample(jr.key(1), 5)["on"], fit.sample(jr.key(1), 5)["on"]
    )
    found = fit.log_prob({"on": jnp.array([[1.0, 0.0]]), "rate": jnp.array([1.2])}, jr.key(1))
    exact = 1.0 + dist.Gamma(3.0, 2.0).log_prob(1.2) - log_p
    assert float(found.value[0]) == pytest.approx(float(exact), abs=0.05) and found.stderr[0] == 0


@pytest.mark.parametrize("latent_dim", [1, 2])
def test_draws_of_a_vgp_follow_its_density(latent_dim):
    family = random_vgp(2, latent_dim, jr.key(8), noise=0.6)
    assert histogram_agrees(draws_of(family, jr.key(1), 50_000), lambda z: exact_log_q(family, z))


@pytest.mark.parametrize("collapse", [True, False])
def test_both_views_draw_the_same_distribution(collapse):
    family = random_vgp(2, 2, jr.key(8), noise=0.6)
    z = eqx.filter_jit(lambda f: vgp.bounds.draw(f.view(collapse), jr.key(3), 50_000)[0])(family)
    assert histogram_agrees(z, lambda z: exact_log_q(family, z))


def test_the_noise_of_f_is_fresh():
    # The paper's formula reuses ξ as the noise of the draw; f given ξ would then have no variance at all.
    family = vgp.VGP(
        1, 0, 1, mean="zero", kernel=vgp.kernels.ARD(1.0, 1.0), meanfield=vgp.meanfield.Delta(), key=jr.key(0)
    )
    view = vgp.VGP(1, 0, 1, mean="zero", kernel=vgp.kernels.ARD(1.0, 1.0), key=jr.key(0)).view(collapse=False)
    xi, f = view.sample_latent(jr.key(1), 50_000)
    assert abs(np.corrcoef(xi[:, 0], f[:, 0])[0, 1]) < 0.02
    assert float(jnp.std(f)) == pytest.approx(1.0, abs=0.02)
    z = family.sample(jr.key(1), 50_000)
    assert float(jnp.std(z)) == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_point_mass_fits(key):
    target = vgp.target(lambda z: jax.scipy.stats.norm.logpdf(z[0], 1.0, 2.0), jnp.zeros(1))
    family = vgp.VGP(1, 8, meanfield=vgp.meanfield.Delta(), kernel=vgp.kernels.ARD(0.5, 1.0), key=key)
    fit = vgp.fit(target, family, key=key, steps=1500, progress=False)
    assert -0.15 < fit.elbo.lower < 3 * fit.elbo.stderr
    with pytest.raises(TypeError, match="no density"):
        vgp.fit(target, family, key=key, bound=vgp.bounds.General(), steps=2, progress=False)
