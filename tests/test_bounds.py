"""The bounds are bounds: ordered, bracketing the true ELBO, and never above the log evidence."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from problems import covering, draws_of, exact_log_q, mean_and_error, random_vgp

import vgp
from vgp import diagnostics
from vgp.bounds import Importance
from vgp.families import FullRank, MeanField
from vgp.targets import shapes

BANANA = shapes.banana()
PRIOR = vgp.target(lambda z: -0.5 * jnp.sum((z - 1.0) ** 2), jnp.zeros(2), prior=dist.Normal(0.3, 1.5))


def values(bound, target, family, n=20_000, key=jr.key(1)):
    return np.asarray(eqx.filter_jit(lambda t, f, k: bound(t, f, k, n))(target, family, key))


@pytest.fixture(scope="module")
def family():
    return covering(random_vgp(2, 2, jr.key(2)))


@pytest.mark.parametrize("collapse", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_importance_never_decreases_with_inner_samples(family, collapse):
    means = []
    for inner in (0, 1, 4, 16, 64):
        means.append(mean_and_error(values(Importance(inner, collapse=collapse), BANANA, family)))
    for (low, e1), (high, e2) in itertools.pairwise(means):
        assert high > low - 3 * np.hypot(e1, e2)
    assert means[-1][0] > means[0][0] + 3 * np.hypot(means[0][1], means[-1][1])  # and it does rise


def test_importance_never_decreases_with_outer_draws(family):
    (one, e1), (ten, e2) = (mean_and_error(values(Importance(4, outer), BANANA, family, 5000)) for outer in (1, 10))
    assert ten > one + 3 * np.hypot(e1, e2)
    assert ten < 3 * e2  # the target is normalised


@pytest.mark.parametrize(
    ("dim", "latent_dim", "scale"),
    [(2, 1, "gp"), *(pytest.param(*a, marks=pytest.mark.slow) for a in ((1, 1, "learned"), (2, 2, "gp")))],
)
def test_sandwich_contains_the_true_elbo_and_closes(dim, latent_dim, scale):
    family = covering(random_vgp(dim, latent_dim, jr.key(3), scale=scale, noise=0.9))
    target = vgp.target(lambda z: jnp.sum(jax.scipy.stats.norm.logpdf(z, 0.5, 1.2)), jnp.zeros(dim))
    z = draws_of(family, jr.key(9), 20_000)
    true, error = mean_and_error(np.asarray(target.log_probs(z) - exact_log_q(family, z)))
    widths = []
    for inner in (2, 20, 400):
        elbo = diagnostics.log_ratios(target, family, jr.key(4), 20_000, inner).elbo
        slack = 4 * np.hypot(error, elbo.stderr)
        assert elbo.lower - slack < true < elbo.upper + slack
        widths.append(elbo.upper - elbo.lower)
    assert widths[0] > widths[1] > widths[2] >= -1e-3
    assert widths[2] < 0.05
    assert elbo.lower < 3 * elbo.stderr  # normalised target


def test_log_prob_agrees_with_quadrature():
    family = covering(random_vgp(2, 2, jr.key(3), noise=0.9))
    z = draws_of(family, jr.key(5), 200)
    estimate = diagnostics.log_prob(family, z, jr.key(6), inner=4000)
    off = np.asarray(estimate.value - exact_log_q(family, z))
    assert (np.abs(off) < 6 * np.asarray(estimate.stderr) + 1e-3).mean() > 0.97
    assert np.abs(np.median(off)) < 0.01


@pytest.mark.parametrize("target", [BANANA, PRIOR], ids=["entropy", "prior"])
def test_split_changes_the_variance_and_not_the_mean(family, target):
    for inner in (0, 4):
        a, ea = mean_and_error(values(Importance(inner, split=False), target, family, 50_000))
        b, eb = mean_and_error(values(Importance(inner, split=True), target, family, 50_000))
        assert abs(a - b) < 4 * np.hypot(ea, eb)
        assert abs(ea - eb) > 1e-4 * ea  # other numbers, the same mean


def test_prior_is_split_off_by_default(family):
    same = values(Importance(4), PRIOR, family), values(Importance(4, split=True), PRIOR, family)
    np.testing.assert_array_equal(*same)
    unsplit = values(Importance(4), BANANA, family), values(Importance(4, split=False), BANANA, family)
    np.testing.assert_array_equal(*unsplit)


def test_analytic_and_general_agree(family):
    a, ea = mean_and_error(values(vgp.bounds.Analytic(), PRIOR, family, 50_000))
    b, eb = mean_and_error(values(vgp.bounds.General(), PRIOR, family, 50_000))
    assert abs(a - b) < 4 * np.hypot(ea, eb)
    c, ec = mean_and_error(values(vgp.bounds.Collapsed(), PRIOR, family, 50_000))
    assert c > a - 3 * np.hypot(ea, ec)


def test_collapsed_is_importance_without_inner_samples(family):
    np.testing.assert_array_equal(
        values(vgp.bounds.Collapsed(), BANANA, family), values(Importance(inner=0), BANANA, family)
    )


@pytest.mark.parametrize("kind", [MeanField, FullRank])
def test_exact_families_have_no_gap(kind, key):
    family = kind(2, key=key)
    elbo = diagnostics.log_ratios(BANANA, family, key, 4000).elbo
    assert elbo.lower == elbo.upper
    mean, error = mean_and_error(values(Importance(16), BANANA, family))
    assert abs(mean - elbo.lower) < 4 * np.hypot(error, elbo.stderr)


def test_what_does_not_apply_says_so(family, key):
    flat = MeanField(2, key=key)
    for bound in (vgp.bounds.Collapsed(), vgp.bounds.General()):
        with pytest.raises(TypeError, match="use vgp.bounds.Importance"):
            bound(BANANA, flat, key, 2)
    with pytest.raises(TypeError, match="Normal prior"):
        vgp.bounds.Analytic()(BANANA, family, key, 2)
    with pytest.raises(TypeError, match="biased with outer > 1"):
        Importance(1, 2)(BANANA, family, key, 2, vgp.gradients.StickingTheLanding())
    with pytest.raises(TypeError, match="goes with vgp.gradients.Pathwise"):
        vgp.bounds.General()(BANANA, family, key, 2, vgp.gradients.StickingTheLanding())
    point = vgp.VGP(2, 4, meanfield=vgp.meanfield.Delta(), key=key)
    with pytest.raises(TypeError, match="no density"):
        vgp.bounds.General()(BANANA, point, key, 2)
    with pytest.raises(TypeError, match="needs outer=1"):
        Importance(0, 2)(BANANA, vgp.families.Mixture(2, 3, key=key), key, 2)
    with pytest.raises(ValueError, match="inner >= 0"):
        Importance(-1)
    with pytest.raises(ValueError, match="split=True needs outer=1"):
        Importance(1, 2, split=True)
