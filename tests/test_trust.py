"""What a fit says of itself: mixtures of restarts, importance weights, and the sentences of its status."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from problems import covering, draws_of, exact_log_q, mean_and_error, random_vgp
from scipy import stats

import vgp
from vgp import choices, diagnostics
from vgp.diagnostics import Elbo, smoothed
from vgp.families import FullRank, Place, Stack
from vgp.families.stack import stacked
from vgp.result import Fit
from vgp.start import Start

LEFT, RIGHT = np.array([-3.0, 0.0]), np.array([3.0, 1.0])
LOWER = np.array([[0.5, 0.0], [0.3, 0.4]])  # of the left mode; the right one is round, of scale 0.6


def two_modes(z):
    """Seven tenths on the left, three on the right; normalised."""
    left = jax.scipy.stats.multivariate_normal.logpdf(z, jnp.asarray(LEFT), jnp.asarray(LOWER @ LOWER.T))
    right = jnp.sum(jax.scipy.stats.norm.logpdf(z, jnp.asarray(RIGHT), 0.6))
    return jnp.logaddexp(jnp.log(0.7) + left, jnp.log(0.3) + right)


MODES = vgp.target(two_modes, jnp.zeros(2))


def members():
    """One Gaussian on each mode: the left by its own parameters, the right by its place."""
    bare = eqx.tree_at(lambda f: f.loc, FullRank(2, key=jr.key(0)), jnp.zeros(2))
    where = (jnp.asarray(LEFT, jnp.float32), jnp.log(jnp.array([0.5, 0.4])), jnp.array([[0.0, 0.0], [0.3, 0.0]]))
    left = eqx.tree_at(lambda f: (f.loc, f.log_diagonal, f.below), bare, where)
    return [left, bare.placed(Place(jnp.asarray(RIGHT, jnp.float32), 0.6 * jnp.eye(2)))]


@pytest.fixture(scope="module")
def stack():
    found = members()
    return stacked(found, diagnostics.pooled(MODES, found, jr.key(0)))


# ---------------------------------------------------------------- mixtures


def test_modes_get_their_share_of_the_weight(stack):
    np.testing.assert_allclose(stack.weights, [0.7, 0.3], atol=0.02)
    assert stack.dim == 2
    found = members()
    turned = stacked(found[::-1], diagnostics.pooled(MODES, found[::-1], jr.key(1)))
    np.testing.assert_allclose(turned.weights, [0.3, 0.7], atol=0.02)


def test_a_member_far_from_everything_gets_nothing(stack):
    astray = stack.members[1].placed(Place(jnp.array([0.0, 9.0]), 0.1 * jnp.eye(2)))
    found = [*stack.members, astray]
    weights = stacked(found, diagnostics.pooled(MODES, found, jr.key(0))).weights
    np.testing.assert_allclose(weights, [0.7, 0.3, 0.0], atol=0.02)


def test_a_mixture_that_is_the_target_has_its_density_and_no_gap(stack):
    z = jnp.asarray(np.random.default_rng(0).uniform([-5, -2], [5, 3], (200, 2)), jnp.float32)
    value, stderr = diagnostics.log_prob(stack, z, jr.key(1))
    exact = np.log(stack.weights[0] / 0.7), np.log(stack.weights[1] / 0.3)  # in either mode
    off = np.asarray(value - MODES.log_probs(z))
    assert (np.minimum(np.abs(off - exact[0]), np.abs(off - exact[1])) < 1e-3).mean() > 0.9
    assert np.abs(off).max() < 0.05
    np.testing.assert_array_equal(stderr, 0.0)
    ratios = diagnostics.log_ratios(MODES, stack, jr.key(2), 2000)
    assert len(ratios.lower) == pytest.approx(2000, abs=2)
    assert ratios.elbo.lower == pytest.approx(0.0, abs=3 * ratios.elbo.stderr + 2e-3)
    assert ratios.elbo.upper == ratios.elbo.lower


def test_draws_of_a_mixture_come_from_each_member_by_its_weight(stack):
    n = 20_000
    draws = np.asarray(draws_of(stack, jr.key(3), n))
    right = draws[:, 0] > 0
    assert right.mean() == pytest.approx(0.3, abs=0.02)
    np.testing.assert_allclose(draws[right].mean(0), RIGHT, atol=0.03)
    np.testing.assert_allclose(draws[~right].mean(0), LEFT, atol=0.03)
    np.testing.assert_allclose(np.cov(draws[~right].T), LOWER @ LOWER.T, atol=0.02)
    swapped = eqx.tree_at(lambda s: s.log_weights, stack, jnp.log(jnp.array([0.1, 0.9])))
    assert (draws_of(swapped, jr.key(3), n)[:, 0] > 0).mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.slow
def test_the_sandwich_of_a_mixture_with_a_hierarchical_family_holds_its_elbo():
    warped = covering(random_vgp(1, 1, jr.key(3), noise=0.9)).placed(Place(jnp.array([1.0]), jnp.array([[0.7]])))
    plain = FullRank(1, key=jr.key(0))
    mixed = Stack(dim=1, members=(warped, plain), log_weights=jnp.log(jnp.array([0.6, 0.4])))
    target = vgp.target(lambda z: jnp.sum(jax.scipy.stats.norm.logpdf(z, 1.0, 1.5)), jnp.zeros(1))
    z = draws_of(mixed, jr.key(5), 4000)
    each = [exact_log_q(warped, (z - 1.0) / 0.7) - np.log(0.7), plain.log_prob(z)]
    log_q = logsumexp(jnp.stack(each, 1) + mixed.log_weights, axis=1)
    true, error = mean_and_error(np.asarray(target.log_probs(z) - log_q))
    elbo = diagnostics.log_ratios(target, mixed, jr.key(6), 4000, 4).elbo
    slack = 4 * np.hypot(error, elbo.stderr)
    assert elbo.lower - slack < true < elbo.upper + slack
    assert 0.01 < elbo.upper - elbo.lower < 0.5  # few inner samples leave a gap, and both sides are on their own side


# ---------------------------------------------------------------- weights


def test_equal_weights_are_worth_all_their_draws():
    weights = smoothed(np.full(1000, 3.7, np.float32))
    assert weights.ess == pytest.approx(1000, rel=1e-4)
    np.testing.assert_allclose(np.exp(weights.log_weights), 1e-3, rtol=1e-4)


@pytest.mark.parametrize("scale", [1.5, 3.0])
def test_draws_of_a_wider_q_are_worth_what_theory_says(scale):
    z = scale * np.random.default_rng(0).normal(size=40_000)
    weights = smoothed((stats.norm.logpdf(z) - stats.norm.logpdf(z, scale=scale)).astype(np.float32))
    assert weights.ess / len(z) == pytest.approx(np.sqrt(2 - scale**-2) / scale, rel=0.02)
    assert weights.khat < 0.3  # bounded
    assert float(np.exp(weights.log_weights) @ z**2) == pytest.approx(1.0, abs=0.05)


def test_ratios_that_are_not_numbers_have_no_weight():
    ratios = np.zeros(1000, np.float32)
    ratios[::4] = np.nan
    weights = smoothed(ratios)
    assert weights.ess == pytest.approx(750, rel=1e-3)
    assert np.exp(weights.log_weights)[::4].max() < 1e-6
    assert np.isnan(smoothed(np.full(1000, np.nan, np.float32)).khat)


# ---------------------------------------------------------------- sentences

ROUND = vgp.target(lambda z: -0.5 * jnp.sum(z**2) - jnp.log(2 * jnp.pi), jnp.zeros(2))


def quick(target, family, **options):
    return vgp.fit(target, family, key=jr.key(0), **{"steps": 12, "draws": 4, "progress": False, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where a small fit has been saved, before anything was measured."""
    path = tmp_path_factory.mktemp("fits") / "fit.vgp"
    quick(ROUND, FullRank(2, key=jr.key(1)), start=None).save(path)
    return path


def told(path, khat, family, elbo=(-0.1, -0.1, 0.01), **measured):
    """The status of the saved fit, had it been of this family and these measured."""
    fit = vgp.load(path)
    fit.family = family
    fit._measured.update(khat=khat, elbo=elbo, **measured)
    return str(fit.status).removeprefix(fit.status.ending).strip()


TRUSTED = "k-hat 0.30: the draws can be trusted wherever the approximation has looked."


@pytest.mark.parametrize(
    ("khat", "sentence"),
    [
        (
            0.83,
            "k-hat 0.83: the approximation misses tail mass; raise num_data or use fit.sample(..., resample=True).",
        ),
        (0.71, "k-hat 0.71: the approximation misses tail mass; raise num_data or use fit.sample(..., resample=True)."),
        (0.69, "k-hat 0.69: usable, and fit.sample(..., resample=True) corrects what is left."),
        (0.6, "k-hat 0.60: usable, and fit.sample(..., resample=True) corrects what is left."),
        (0.51, "k-hat 0.51: usable, and fit.sample(..., resample=True) corrects what is left."),
        (0.3, TRUSTED),
        (float("nan"), "k-hat could not be measured: the log density is not finite at the fit's own draws."),
    ],
)
def test_khat_becomes_a_sentence(saved, khat, sentence):
    assert told(saved, khat, vgp.VGP(2, 4, key=jr.key(1))) == sentence


@pytest.mark.parametrize("lower", [-np.inf, np.nan])
def test_draws_at_impossible_values_are_not_trusted(saved, lower):
    sentence = told(saved, -0.01, vgp.VGP(2, 4, key=jr.key(1)), elbo=(lower, lower, 0.0))
    assert sentence.startswith(f"The ELBO is {lower}: ") and "cannot be trusted; constrain the values" in sentence
    assert "can be trusted" not in sentence


@pytest.mark.parametrize(("khat", "ess"), [(0.6, 0.03), (0.2, 0.09)])
def test_few_draws_that_count_are_told(saved, khat, ess):
    assert told(saved, khat, vgp.VGP(2, 4, key=jr.key(1)), ess=ess) == (
        f"k-hat {khat:.2f}, but the effective sample size is only {ess} per draw: most draws lie where the posterior "
        "has little mass; raise num_data, choose a mean-field that can be as narrow as the posterior (vgp.meanfield), "
        "or use many draws of fit.sample(..., resample=True)."
    )
    assert "fit a vgp.VGP" in told(saved, khat, FullRank(2, key=jr.key(1)), ess=ess)
    assert "effective" not in told(saved, khat, vgp.VGP(2, 4, key=jr.key(1)), ess=0.11)


def test_other_families_are_told_of_the_vgp(saved):
    assert "misses tail mass; fit a vgp.VGP or use fit.sample" in told(saved, 0.83, FullRank(2, key=jr.key(1)))


def test_a_wide_sandwich_is_told():
    # A difference of half a nat counts, unless it is within the noise.
    fit = quick(ROUND, FullRank(2, key=jr.key(1)), start=None)
    for elbo, is_told in [((-1.0, -0.4, 0.01), True), ((-1.0, -0.6, 0.01), False), ((-1.0, -0.4, 0.2), False)]:
        fit._measured.update(khat=0.3, elbo=elbo)
        assert ("The sandwich on the ELBO is 0.6 nats wide" in str(fit.status)) == is_told


def test_the_ending_is_told_without_measuring(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("measured")

    fit = quick(ROUND, FullRank(2, key=jr.key(1)), start=None)
    monkeypatch.setattr(diagnostics, "log_ratios", refuse)
    monkeypatch.setattr(diagnostics, "pooled", refuse)
    assert fit.status.name == "max_steps"
    assert "Stopped at the limit of 12 steps" in fit.status.ending
    assert "k-hat" not in fit.status.ending
    with pytest.raises(AssertionError, match="measured"):
        str(fit.status)


def test_the_measured_status_tells_the_measured_khat():
    fit = quick(ROUND, FullRank(2, key=jr.key(1)), start=None)
    text = str(fit.status)
    assert f"k-hat {fit.khat:.2f}: " in text
    assert isinstance(fit.elbo, Elbo)
    assert fit.ess == pytest.approx(smoothed(fit.log_ratios.lower).ess / 16384, rel=1e-5)
    assert 0.5 < fit.ess <= 1.0


def test_a_fit_without_its_target_tells_what_was_measured_before(saved, tmp_path):
    loaded = vgp.load(saved)
    assert str(loaded.status) == loaded.status.ending
    measured = vgp.load(saved, ROUND)
    text = str(measured.status)
    assert "k-hat" in text
    measured.save(tmp_path / "measured")
    assert str(vgp.load(tmp_path / "measured").status) == text


def test_a_fit_of_which_only_khat_was_measured_has_a_status(saved, tmp_path):
    measured = vgp.load(saved, ROUND)
    assert np.isfinite(measured.khat)
    measured.save(tmp_path / "khat")
    assert "k-hat" in str(vgp.load(tmp_path / "khat").status)


# ---------------------------------------------------------------- restarts


@pytest.fixture(scope="module")
def restarted():
    """Two restarts, one begun on each mode."""
    left = Place(jnp.asarray(LEFT, jnp.float32), jnp.asarray(LOWER, jnp.float32))
    found = Start([left, members()[1].place], np.log([0.7, 0.3]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "find_start", lambda *args: found)
        return quick(MODES, FullRank(2, key=jr.key(1)), restarts=2, steps=200, draws=16)


def test_restarts_that_disagree_are_combined_and_told(restarted):
    fit = restarted
    ends = fit.histories[-20:].mean(0)
    assert fit.spread == pytest.approx(np.ptp(ends), rel=1e-5)
    assert fit.spread == pytest.approx(np.log(0.7 / 0.3), abs=0.3)
    np.testing.assert_allclose(fit.stack.weights, [0.7, 0.3], atol=0.03)
    np.testing.assert_allclose(fit.family.place.loc, LEFT)  # the best of them alone
    text = str(fit.status)
    shares = ", ".join(f"{weight:.2f}" for weight in np.asarray(fit.stack.weights))
    told = f"The 2 restarts disagree by {fit.spread:.2g} nats and lie in different places"
    assert f"{told}; they are combined with the weights {shares}." in text
    assert "disagree" not in fit.status.ending


def test_draws_and_diagnostics_are_those_of_the_mixture(restarted):
    fit = restarted
    draws = np.asarray(fit.sample(jr.key(4), 10_000))
    assert (draws[:, 0] > 0).mean() == pytest.approx(0.3, abs=0.04)
    assert -0.05 < fit.elbo.lower <= fit.elbo.upper + 1e-6 < 0.01  # the best one alone has log 0.7
    z = draws[:50]
    off = fit.log_prob(jnp.asarray(z), jr.key(5)).value - MODES.log_probs(jnp.asarray(z))
    assert np.abs(np.median(off)) < 0.1


@pytest.mark.parametrize(("gap", "same", "is_one"), [(0.09, True, True), (0.11, True, False), (0.0, False, False)])
def test_restarts_are_combined_if_their_bounds_or_places_differ(gap, same, is_one, restarted):
    measured = {"khat": 0.3, "elbo": (0.0, 0.0, 0.01)}
    history = np.zeros((200, 2)) + np.array([0.0, gap])
    state = restarted.state
    if same:
        state = eqx.tree_at(lambda s: s.params, state, jnp.stack([state.params[0]] * 2))
    fit = Fit(MODES, restarted.family, restarted.settings, state, history, restarted.status, 0.0, measured)
    assert (fit.stack is None) == is_one
    assert ("disagree" not in str(fit.status)) == is_one


def test_a_saved_fit_has_the_same_mixture(restarted, tmp_path):
    text, elbo = str(restarted.status), restarted.elbo
    restarted.save(tmp_path / "fit.vgp")
    loaded = vgp.load(tmp_path / "fit.vgp", MODES)
    for a, b in zip(jax.tree.leaves(restarted.stack), jax.tree.leaves(loaded.stack), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.elbo == elbo
    assert str(loaded.status) == text
    np.testing.assert_array_equal(restarted.sample(jr.key(1), 50), loaded.sample(jr.key(1), 50))
    alone = str(vgp.load(tmp_path / "fit.vgp").status)  # without the target there is nothing to weigh them by
    assert "restarts disagree" in alone
    assert f"k-hat {restarted.khat:.2f}" in alone
