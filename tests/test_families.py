"""One contract for every family: draws follow the density, and fresh noise is fresh."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import draws_of, exact_log_q, random_vgp

import vgp
from vgp.families import FactorAnalysis, Flow, FullRank, MeanField, Mixture

EXACT = {
    "mean-field": lambda key: MeanField(2, key=key),
    "full rank": lambda key: FullRank(2, key=key),
    "factor analysis": lambda key: FactorAnalysis(2, 1, key=key),
    "mixture": lambda key: Mixture(2, 3, key=key),
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
