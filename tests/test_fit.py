"""`vgp.fit` from end to end: it learns, stops, resumes, survives, and does not compile twice."""

import os
import signal
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import vgp
from vgp import loop
from vgp.targets import shapes

BANANA = shapes.banana()
SMALL = vgp.VGP(2, 8, key=jr.key(3))


def quick(target=BANANA, family=SMALL, key=jr.key(0), **options):
    return vgp.fit(target, family, key=key, **{"steps": 120, "draws": 8, "progress": False, "start": None, **options})


@pytest.fixture(scope="module")
def fitted():
    return vgp.fit(BANANA, key=jr.key(0), steps=1500, progress=False)


def test_defaults_learn_the_banana(fitted):
    assert -0.1 < fitted.elbo.lower <= 3 * fitted.elbo.stderr
    assert fitted.elbo.lower <= fitted.elbo.upper + 3 * fitted.elbo.stderr
    assert fitted.khat < 0.9
    assert fitted.khat <= fitted.khat_extended + 0.1
    assert fitted.history[-100:].mean() > fitted.history[:100].mean()
    draws = np.asarray(fitted.sample(jr.key(1), 20_000))
    assert draws.shape == (20_000, 2)
    np.testing.assert_allclose(draws.mean(0), [0.0, 1.0], atol=0.15)
    np.testing.assert_allclose(draws.std(0), [2.0, np.sqrt(3.0)], atol=0.25)


@pytest.mark.slow
def test_resampled_draws_follow_the_target(fitted):
    draws = np.asarray(fitted.sample(jr.key(1), 5000, resample=True))
    np.testing.assert_allclose(draws.mean(0), [0.0, 1.0], atol=0.15)
    np.testing.assert_allclose(draws.std(0), [2.0, np.sqrt(3.0)], atol=0.25)


def test_log_prob_is_a_density_of_constrained_values():
    def log_density(z):
        return -z["x"] - 0.5 * z["y"] ** 2

    from numpyro.distributions import constraints

    target = vgp.target(log_density, {"x": 1.0, "y": 0.0}, {"x": constraints.positive, "y": None})
    fit = vgp.fit(target, key=jr.key(0), steps=800, progress=False)
    draws = fit.sample(jr.key(1), 400)
    assert float(draws["x"].min()) > 0
    value, stderr = fit.log_prob(draws, jr.key(2))
    exact = -draws["x"] - 0.5 * draws["y"] ** 2 - 0.5 * jnp.log(2 * jnp.pi)
    assert np.abs(np.median(value - exact)) < 0.1
    assert (np.asarray(stderr) >= 0).all()


def test_a_second_fit_compiles_nothing(compiled):
    def fit(seed):
        target = vgp.target(BANANA.log_density, jnp.zeros(2))
        made = quick(target, vgp.VGP(2, 8, key=jr.key(seed)), jr.key(seed + 1))
        assert made.elbo.lower < 1

    fit(11)
    before = len(compiled)
    fit(12)
    assert len(compiled) == before


def test_twenty_fits_do_not_grow_memory():
    quick()
    arrays = len(jax.live_arrays())
    for i in range(20):
        quick(key=jr.key(i), steps=20)
    assert len(jax.live_arrays()) <= arrays + 5


def test_the_users_family_survives(key):
    family = vgp.VGP(2, 8, key=key)
    quick(family=family)
    assert np.isfinite(family.inputs).all()  # chunks donate their buffers, and this was not one of them


def test_restarts_keep_the_best_and_report_disagreement():
    fit = quick(restarts=3, steps=200)
    assert fit.histories.shape == (200, 3)
    last = fit.histories[-20:].mean(0)
    np.testing.assert_array_equal(fit.history, fit.histories[:, np.argmax(last)])
    far = vgp.target(lambda z: jnp.where(z[0] > 0, 0.0, -50.0) - 0.5 * jnp.sum((jnp.abs(z) - 30.0) ** 2), jnp.zeros(2))
    wide = eqx.tree_at(lambda f: f.loc, vgp.families.MeanField(2, key=jr.key(0)), jnp.array([5.0, -5.0]))
    assert quick(far, wide, restarts=4).settings.restarts == 4


def test_stopping_rule_ends_a_settled_run():
    target = vgp.target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(1))
    fit = vgp.fit(target, vgp.families.FullRank(1, key=jr.key(0)), key=jr.key(0), progress=False)
    assert fit.status.name == "converged"
    assert len(fit.history) < 12_000
    assert "Converged" in str(fit.status)


def test_stopping_rule_waits_for_a_rising_bound():
    rng = np.random.default_rng(0)
    rule = vgp.stopping.Plateau()
    steps = np.arange(2000)
    noise = rng.normal(size=(2000, 1))
    assert rule(noise)
    assert not rule(noise + 1e-3 * steps[:, None])
    assert not rule(noise[:1000])  # too early to say
    assert not rule(noise[:1999])  # only at its own multiples
    gaps = noise.copy()
    gaps[::7] = np.nan
    assert rule(gaps)


def test_limit_of_steps_is_named():
    fit = quick()
    assert fit.status.name == "max_steps"
    assert "raise steps" in str(fit.status)
    assert len(fit.history) == 120


def test_resume_is_bit_exact(tmp_path):
    path = tmp_path / "fit.vgp"
    whole = quick(steps=700)
    stopped = _interrupted(path, steps=700)
    assert stopped.status.name == "interrupted"
    assert 0 < len(stopped.history) < 700
    resumed = vgp.load(path, BANANA).resume(progress=False)
    np.testing.assert_array_equal(whole.history, resumed.history)
    for a, b in zip(jax.tree.leaves(whole.family), jax.tree.leaves(resumed.family), strict=True):
        np.testing.assert_array_equal(a, b)
    again = quick(steps=700, checkpoint=path)  # and fit itself continues from the file
    np.testing.assert_array_equal(whole.history, again.history)
    assert vgp.load(path).status.name == again.status.name == "max_steps"  # the file knows how the run ended


def _interrupted(path, **options):
    """A run that gets Ctrl-C once it has taken a few steps."""
    seen = threading.Event()
    before = loop._next_size

    def slowly(size, count, seconds):
        seen.set()
        time.sleep(0.05)
        return 10

    loop._next_size = slowly
    threading.Thread(target=lambda: (seen.wait(), time.sleep(0.3), os.kill(os.getpid(), signal.SIGINT))).start()
    try:
        return quick(checkpoint=path, **options)
    finally:
        loop._next_size = before


def test_ctrl_c_returns_what_was_learned(tmp_path):
    fit = _interrupted(tmp_path / "fit.vgp", steps=5000)
    assert fit.status.name == "interrupted"
    assert "fit.resume()" in str(fit.status)
    assert np.isfinite(fit.elbo.lower)


def test_resume_goes_further():
    fit = quick()
    longer = fit.resume(steps=80, progress=False)
    assert len(longer.history) == 200
    np.testing.assert_array_equal(longer.history[:120], fit.history)


def test_nan_steps_are_skipped_and_counted():
    def sometimes(z):
        return jnp.where(z[0] > 2.3, jnp.nan, -0.5 * jnp.sum(z**2))

    fit = quick(vgp.target(sometimes, jnp.zeros(2)), steps=300)
    assert fit.status.name == "max_steps"
    assert "skipped" in str(fit.status)
    assert np.isfinite(jax.tree.leaves(eqx.filter(fit.family, eqx.is_inexact_array))[0]).all()


def test_divergence_names_the_point_and_keeps_the_last_good_state():
    def often(z):
        return jnp.where(z[0] > 0.5, jnp.nan, 3.0 * z[0] - 0.5 * jnp.sum(z**2))

    fit = quick(vgp.target(often, jnp.zeros(2)), steps=2000, start=None)
    assert fit.status.name == "diverged"
    assert "the log density is nan at [" in str(fit.status) and "use a smaller learning rate" in str(fit.status)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(eqx.filter(fit.family, eqx.is_inexact_array)))


def test_a_gradient_that_is_not_finite_is_named():
    def kink(z):
        return -jnp.sum(jnp.sqrt(jnp.abs(z) * 0.0) + z**2)

    fit = quick(vgp.target(kink, jnp.zeros(2)), steps=2000)
    assert fit.status.name == "diverged"
    assert "gradient of the log density is not finite" in str(fit.status)


def test_optimisers_by_name_and_by_hand():
    paper = quick(optimizer="rmsprop")
    assert np.isfinite(paper.history).all()
    own = optax.adam(1e-2)
    mine = quick(optimizer=own)
    with pytest.raises(ValueError, match="pass it again"):
        mine.resume(steps=10, progress=False)
    assert len(mine.resume(steps=10, optimizer=own, progress=False).history) == 130
    with pytest.raises(ValueError, match="optimisers with a name"):
        quick(optimizer="sgd")


def test_rmsprop_follows_its_schedule():
    optimizer = vgp.optimizers.rmsprop(rate=0.1, epsilon=0.1)
    state, sizes = optimizer.init(jnp.ones(1)), []
    for _ in range(400):
        update, state = optimizer.update(jnp.ones(1), state)
        sizes.append(float(-update[0]))
    late = np.log(sizes[399] / sizes[99]) / np.log(400 / 100)
    assert late == pytest.approx(-0.6, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "goal"),
    [("banana", -0.02, -0.002), ("x-shape", -0.02, -0.03), ("two-modes", -0.02, -0.004), ("funnel", -0.07, -0.02)],
)
def test_defaults_on_the_shapes(name, least, goal):
    from vgp import diagnostics

    target = shapes.SHAPES[name]()
    fit = vgp.fit(target, key=jr.key(0), progress=False)
    elbo = diagnostics.log_ratios(target, fit.family, jr.key(1), 100_000, 200).elbo
    assert least < elbo.lower < 3 * elbo.stderr
    print(name, elbo, "goal", goal)
