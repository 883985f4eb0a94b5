"""`vgp train`: it learns, watches the validation images, and keeps what is finite."""

import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from training_runs import PER_EPOCH, TINY, assert_same, at_epoch, begin, command, go, go_on, interrupt, invoke

from vgp import loop
from vgp.bounds import AbstractBound, Importance, draw
from vgp.compiling import once
from vgp.experiments import commands, evaluate, rows, watch
from vgp.experiments.folder import open_run
from vgp.experiments.optimizer import optimizer_of
from vgp.experiments.parameters import taken_apart
from vgp.experiments.step import TrainStep
from vgp.experiments.train import sentence
from vgp.gradients import Pathwise

pytest_plugins = "training_fixtures"
pytestmark = pytest.mark.usefixtures("small")

# ---------------------------------------------------------------- a whole run


def test_history_and_checks_have_a_row_per_epoch_and_a_column_per_seed(straight):
    run, progress, _ = straight
    assert progress.ending == "max_steps" and progress.seconds > 0
    assert progress.history.shape == (6, 2) and np.isfinite(progress.history).all()
    assert (progress.history[:, 0] != progress.history[:, 1]).all()
    assert progress.checks[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(progress.best_bound, progress.checks[:, 1:].max(0))
    np.testing.assert_array_equal(progress.state.step, 6 * PER_EPOCH)
    assert "all epochs are done" in sentence(run, progress)
    assert f"Next: vgp evaluate {run.path}" in sentence(run, progress)


def test_an_epoch_compiles_only_where_the_bound_is_new(straight):
    _, _, counts = straight
    assert len(counts) == 6 and counts[0] > 0 and counts[3] > 0
    assert counts[1:3] == counts[4:] == [0, 0]


def test_training_beats_independent_pixels(source, images, tmp_path):
    run = begin(tmp_path, source, images, TINY, seeds=1, epochs=150)
    progress = go(run, patience=None)
    share = np.asarray(images.valid(np.arange(20), jr.key(0))).mean(0)
    independent = float(np.sum(share * np.log(share) + (1 - share) * np.log(1 - share)))  # fitted to these very images
    assert progress.history[0, 0] < independent
    assert progress.history[-20:].mean() > progress.history[:20].mean() + 0.3
    assert progress.best_bound[0] > independent + 0.3
    # The validation bound is what another measurement says it is.
    learner = run.load()[1](progress.best[0])
    again = evaluate.bound(learner, images.valid, jr.key(5), draws=400, inner=0).upper
    assert -again.value == pytest.approx(progress.best_bound[0], abs=0.35)


def test_seeds_side_by_side_are_those_of_runs_of_their_own(source, images, tmp_path):
    together = go(begin(tmp_path / "2", source, images, TINY, epochs=2))
    single = go(begin(tmp_path / "1", source, images, TINY, seed=1, seeds=1, epochs=2))
    keys = [np.asarray(jr.key_data(progress.state.key)) for progress in (together, single)]
    np.testing.assert_array_equal(keys[0][1], keys[1][0])
    np.testing.assert_allclose(together.history[:, 1:], single.history, rtol=1e-4)
    np.testing.assert_allclose(together.checks[:, 2:], single.checks[:, 1:], rtol=1e-4)
    np.testing.assert_allclose(together.state.params[1], single.state.params[0], atol=1e-4)
    assert np.abs(together.state.params[0] - single.state.params[0]).max() > 0.1


# ---------------------------------------------------------------- what is not finite


class Poisoned(AbstractBound):
    """A bound that is NaN as soon as the first pixel's bias has gone some way."""

    start: float = eqx.field(static=True)

    def __call__(self, target, family, key, n, gradient=Pathwise()):
        values = Importance(inner=0)(target, family, key, n, gradient)
        return jnp.where(jnp.abs(target.model.logits.bias[0] - self.start) > 0.05, jnp.nan, values)


def test_nan_ends_the_run_and_the_last_good_parameters_are_kept(source, images, tmp_path, monkeypatch):
    flat, together = _start(images)
    start = float(together(flat).model.logits.bias[0])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "LONGEST_STREAK", 8)
        patch.setattr(rows.Row, "make_bound", lambda *_: Poisoned(start))
        result = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--rate", 0.02, "--epochs", 50)
        assert result.exit_code == 1, result.output
        assert "was no longer finite; its best parameters are put back, go on from them" in result.output
    standing, together = open_run(tmp_path).load()
    epochs = len(standing.history)
    assert standing.ending == "diverged" and 3 < epochs < 50
    assert np.isfinite(standing.history[0]).all() and np.isnan(standing.history[-1]).all()
    assert int(standing.state.streak[0]) == 0 and np.isfinite(standing.best_bound).all()
    assert np.isfinite(standing.best).all() and (standing.best != flat).any()
    np.testing.assert_array_equal(standing.state.params, standing.best)
    assert abs(float(together(standing.best[0]).model.logits.bias[0]) - start) <= 0.05
    with monkeypatch.context() as patch:  # what failed fails still: going on works since the best were put back
        patch.setattr(rows.Row, "make_bound", lambda *_: Poisoned(start))
        again = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--resume", "--rate", 1e-5, "--no-early")
        assert again.exit_code == 0, again.output
    run = open_run(tmp_path)
    progress = run.load()[0]
    assert run.row.rate == 1e-5 and len(progress.history) == 50 and int(progress.state.streak[0]) == 0
    assert np.isfinite(progress.history[epochs:]).all()


def test_a_short_run_that_is_never_finite_has_diverged(source, tmp_path, monkeypatch):
    monkeypatch.setattr(rows.Row, "make_bound", lambda *_: Poisoned(np.inf))
    result = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--epochs", 2)
    assert result.exit_code == 1, result.output
    assert "was no longer finite" in result.output and "a smaller rate, and more --epochs." in result.output


def test_a_seed_that_is_lost_is_named(source, tmp_path, monkeypatch):
    first = []

    def some(*arguments):
        values = np.full(3, -9.0)
        values[1] = np.nan
        first.append(arguments)
        return values

    monkeypatch.setattr(watch, "_validate", some)
    result = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--epochs", 2, "--seeds", 3, "--seed", 4)
    assert result.exit_code == 0 and first, result.output
    assert "all epochs are done, but the bound of seed 5 was no longer finite (a smaller --rate" in result.output


def test_a_model_that_forgets_ends_the_run_and_its_best_parameters_are_put_back(source, images, tmp_path, monkeypatch):
    floor = by_means(images)
    found = iter([floor - 1.0, floor + 1.0, floor + 0.5, floor + 0.04])  # nothing learned; learned; worse; forgotten
    with monkeypatch.context() as patch:
        patch.setattr(watch, "_validate", lambda *_: np.array([next(found)]))
        result = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--epochs", 50)
    assert result.exit_code == 1 and "its best parameters are put back, go on from them with" in result.output
    run = open_run(tmp_path)
    standing, together = run.load()
    assert standing.ending == "collapsed" and len(standing.history) == 4 and standing.best_bound == floor + 1.0
    np.testing.assert_array_equal(standing.state.params, standing.best)
    fresh = optimizer_of(run.row, together.layout).init(standing.best[0])
    for one, other in zip(jax.tree.leaves(standing.state.optimizer), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(one[0], other)
    monkeypatch.setattr(watch, "_validate", lambda *_: np.array([floor + 0.9]))
    again = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--resume", "--rate", 1e-3, "--epochs", 6)
    assert again.exit_code == 0, again.output
    assert len(open_run(tmp_path).load()[0].history) == 6


def by_means(images):
    """The bound on the validation images of pixels on their own, each by its mean in training."""
    likely, x = np.asarray(images.train.mean(), float), np.asarray(images.valid(np.arange(20), jr.key(0)))
    return float(np.where(x, np.log(likely), np.log(1 - likely)).sum(1).mean())


def test_where_nothing_was_learned_nothing_is_lost(straight, source, images, tmp_path, monkeypatch):
    found = iter(by_means(images) + np.array([-1.0, 0.05, -0.01, 0.0, 0.06, 0.0]))
    monkeypatch.setattr(watch, "_validate", lambda *_: np.full(2, next(found)))
    assert go(begin(tmp_path, source, images)).ending == "max_steps"


@pytest.mark.parametrize("early", [True, False])
def test_a_run_that_has_learned_nothing_says_so(straight, source, images, tmp_path, monkeypatch, early):
    floor, told = by_means(images), []
    monkeypatch.setattr(commands, "PATIENCE", 2)
    monkeypatch.setattr(commands, "sentence", lambda *given: told.append(sentence(*given)))
    for i, best in enumerate([(0.05, 0.05), (0.3, -2.0), (0.3, 0.2)]):
        bounds = np.array(best) + floor
        monkeypatch.setattr(watch, "_validate", lambda *_, bounds=bounds: bounds)
        assert command(source, tmp_path / str(i), early=early) == 0
    neither, second, both = told
    assert ("validation has stopped improving;" in neither) == early
    assert f"of seed 0, 1 has learned no more than the means of the pixels, which alone give {-floor:.2f};" in neither
    assert "; go on with --resume --no-early and more --epochs, or begin anew with --fresh and a --warmup" in neither
    assert "but the model of seed 1 has learned" in second
    assert "the means of the pixels" not in both and "Next: vgp evaluate" in both
    alone = begin(tmp_path / "0", source, images, seeds=1)
    assert "but the model has learned" in sentence(alone, open_run(tmp_path / "0").load()[0])


def _start(images):
    mean = images.train.mean()
    return taken_apart(rows.build(TINY, (6,), mean, jr.fold_in(jr.key(0), 0)))


# ---------------------------------------------------------------- validation


def test_stale_means_that_no_seed_has_improved():
    def stale(*bounds, patience=2):
        table = np.asarray(bounds, float)
        return watch._stale(np.column_stack([np.arange(len(table)), table]), patience)

    assert not stale([1, 1], [0, 0])
    assert stale([1, 1], [0, 0], [1, 0])
    assert not stale([1, 1], [0, 0], [0, 2])  # the second seed has
    assert not stale([0, 0], [1, 1], [0, 0])
    assert stale([0, 0], [1, 1], [0, 0], [1, 1])
    assert not stale([1, 1], [0, 0], [1, 0], patience=3)
    assert stale([1, 1], [np.nan, 0], [0, 0])
    assert stale([np.nan, 1], [1, 1], [0, 0], [0, 0])
    assert not stale([np.nan, np.nan], [np.nan, np.nan], [2, np.nan])


def test_a_run_stops_by_validation_and_keeps_the_best_parameters(straight, source, images, tmp_path, monkeypatch):
    scripted = np.asarray([[-5, -5], [-3, -4], [-4, -3], [-4, -9], [-3, -3], [-4, -4.0]])
    seen = []

    def validate(together, bound, params, *_):
        seen.append(np.array(params))
        return scripted[len(seen) - 1]

    monkeypatch.setattr(watch, "_validate", validate)
    run = begin(tmp_path, source, images)
    progress = go(run, patience=2)
    assert progress.ending == "converged" and len(progress.history) == len(seen) == 5 + 1  # one of a falling rate
    assert progress.best_bound.tolist() == [-3, -3]
    np.testing.assert_array_equal(progress.best[0], seen[1][0])
    np.testing.assert_array_equal(progress.best[1], seen[2][1])
    assert (seen[1][0] != seen[4][0]).any()
    assert_same(open_run(tmp_path).load()[0], progress)
    assert "validation has stopped improving; validation bound 3.00, 3.00 nats" in sentence(run, progress)


def test_a_run_that_validation_stopped(straight, source, images, tmp_path, monkeypatch):
    seen = []

    def validate(together, bound, params, *_):
        seen.append(1)
        return np.full(len(params), -1 - 0.1 * len(seen))  # ever worse

    monkeypatch.setattr(watch, "_validate", validate)
    monkeypatch.setattr(commands, "PATIENCE", 2)
    assert command(source, tmp_path) == 0
    run = open_run(tmp_path)
    progress = run.load()[0]
    assert progress.ending == "converged" and len(progress.history) == 3  # its rate was falling
    assert command(source, tmp_path, resume=True) == 0  # it is finished, and stays as it is
    assert_same(open_run(tmp_path).load()[0], progress)
    assert command(source, tmp_path, resume=True, epochs=20) == 0  # patience begins anew
    progress = open_run(tmp_path).load()[0]
    assert progress.ending == "converged" and progress.since == 3
    assert len(progress.history) == 6 + 1  # and one in which the rate falls
    assert command(source, tmp_path, resume=True, early=False, epochs=8) == 0
    progress = open_run(tmp_path).load()[0]
    assert progress.ending == "max_steps" and len(progress.history) == 8
    assert int(progress.state.tail_from[0] + progress.state.tail_steps[0]) == 8 * PER_EPOCH
    assert progress.best_bound.tolist() == [-1.1, -1.1]


def test_where_validation_stops_the_rate_falls_from_the_best_parameters(
    straight, source, images, tmp_path, monkeypatch
):
    bounds, seen = [-2.0, -1.8, -1.5, -1.2, -1.3, -1.4, -1.1, -1.6], []

    def validate(together, bound, params, *_):
        seen.append(np.array(params))
        return np.full(len(params), bounds[len(seen) - 1])

    monkeypatch.setattr(watch, "_validate", validate)
    runs = []
    for stop in (None, 7):  # straight, and interrupted while the rate falls
        seen.clear()
        path = tmp_path / str(stop)
        with monkeypatch.context() as patch:
            if stop:
                at_epoch(patch, stop, interrupt)
            progress = go(begin(path, source, images, epochs=40), patience=2)
        if stop:
            assert progress.ending == "interrupted" and bool(progress.state.settled[0])
            progress = go_on(path, patience=2)
        runs.append(progress)
        assert progress.ending == "converged" and len(progress.history) == 6 + 2  # half of the four to the best
        np.testing.assert_array_equal(progress.best, seen[6])
        np.testing.assert_array_equal(progress.best_bound, [-1.1, -1.1])
    assert_same(*runs)
    state = runs[0].state
    assert int(state.tail_from[0]) == 6 * PER_EPOCH and int(state.tail_steps[0]) == 2 * PER_EPOCH
    near, far = (np.abs(np.asarray(runs[0].best) - np.asarray(seen[i])).max() for i in (3, 5))
    assert near < far  # it went on from the best, not from the last


def test_the_rate_falls_from_where_the_best_parameters_had_it(straight, source, images, tmp_path, monkeypatch):
    bounds = iter([-2.0, -1.8, -1.5, -1.2, -1.3, -1.4, -1.5, -1.6])  # best at epoch 4 of 10, in the tail from 3 on
    monkeypatch.setattr(watch, "_validate", lambda together, bound, params, *_: np.full(len(params), next(bounds)))
    state = go(begin(tmp_path, source, images, epochs=10), patience=2).state
    start, length = int(state.tail_from[0]), int(state.tail_steps[0])
    assert start + length == (6 + 2) * PER_EPOCH
    along = (6 * PER_EPOCH - start) / length  # at the epoch from which it falls
    assert along == pytest.approx((4 - 3) / 7, abs=0.05)


def test_checks_are_spread_over_the_run_and_the_last_epoch_has_one(straight, source, images, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "CHECKS", 2)
    progress = go(begin(tmp_path, source, images, TINY, epochs=7))
    assert progress.checks[:, 0].tolist() == [3, 6, 7]
    assert len(progress.history) == 7


def test_metrics_go_to_tensorboard_where_it_is_installed(straight, source, images, tmp_path, monkeypatch):
    written, closed = [], []

    class SummaryWriter:
        def __init__(self, folder):
            assert folder == str(tmp_path / "tensorboard")

        def add_scalar(self, name, value, step):
            written.append((name, step, value))

        def close(self):
            closed.append(True)

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    progress = go(begin(tmp_path, source, images, TINY, epochs=2))
    names = {name for name, *_ in written}
    assert closed and len(names) == 4  # the training and the validation bound of either seed
    for seed in (0, 1):
        told = [(step, value) for name, step, value in written if name == f"train bound/{seed}"]
        assert told == [(epoch, pytest.approx(progress.history[epoch - 1, seed])) for epoch in (1, 2)]
        seen = [(step, value) for name, step, value in written if name == f"validation bound/{seed}"]
        assert seen == [(int(check[0]), pytest.approx(check[1 + seed])) for check in progress.checks]


# ---------------------------------------------------------------- one step


def a_step(images, **changes):
    flat, together = _start(images)
    optimizer = optax.sgd(1.0)
    settings = {"pixels": images.train, "together": together, "bound": Importance(inner=0), "gradient": Pathwise()}
    settings |= {"optimizer": optimizer, "batch": 20, "warmup": 0, "tail": False} | changes
    states = [loop.init(flat, optimizer, jr.key(seed), 100) for seed in (0, 1)]
    return TrainStep(**settings), jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def test_warm_up_weighs_the_divergence(images):
    warmup = 8
    step, state = a_step(images, warmup=warmup)
    params = state.params[0] + 0.3 * jr.normal(jr.key(9), state.params[0].shape)  # μ and σ in general position
    state = eqx.tree_at(lambda s: s.params, state, jnp.stack([params, params]))

    @once
    def ours(state):
        new, value = step(state, step.begin(state))
        return value[0], new.params[0] - state.params[0]

    @once
    def by_hand(state, weight):
        number = state.step[0]
        data_key, bound_key = jr.split(jr.fold_in(state.key[0], number))
        x = images.train(step.begin(state)[0][number % PER_EPOCH], data_key)

        def objective(flat):
            learner = step.together(flat)
            z, _, conditional, _ = draw(learner.encoder.at(x).view(), bound_key, 20)
            mu, sigma = conditional.base_dist.loc, conditional.base_dist.scale
            logits = learner.model.logits(learner.model.trunk(z))
            likelihood = jnp.sum(jnp.where(x == 1, jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)), axis=1)
            divergence = jnp.sum(0.5 * (mu**2 + sigma**2 - 1) - jnp.log(sigma), axis=1)
            return jnp.mean(likelihood - weight * divergence), jnp.mean(divergence)

        (value, divergence), gradient = jax.value_and_grad(objective, has_aux=True)(state.params[0])
        return value, gradient, divergence

    for number in (0, 1, 4, 7, 8, 90):
        state = eqx.tree_at(lambda s: s.step, state, jnp.full(2, number, jnp.int32))
        weight = min((number + 1) / warmup, 1.0)
        value, gradient, divergence = by_hand(state, jnp.asarray(weight))
        assert divergence > 0.5
        got, moved = ours(state)
        np.testing.assert_allclose(got, value, rtol=1e-5)
        np.testing.assert_allclose(moved, gradient, atol=1e-5)


def test_the_encoder_may_see_flipped_pixels(images):
    for flip in (0.0, 0.3, 0.999999):
        step, state = a_step(images, flip=flip)
        value = once(lambda state, step=step: step(state, step.begin(state))[1])(state)[0]
        data_key, bound_key = jr.split(jr.fold_in(state.key[0], 0))
        x = images.train(step.begin(state)[0][0], data_key)
        learner = step.together(state.params[0])

        def of(seen, x=x, learner=learner, key=bound_key):
            return float(jnp.mean(Importance(inner=0)(learner.model.at(x), learner.encoder.at(seen), key, 20)))

        if flip == 0.3:
            assert abs(float(value) - of(x)) > 1e-4 and abs(float(value) - of(1 - x)) > 1e-4
        else:  # as it is, or all turned over: the target keeps the image itself
            np.testing.assert_allclose(value, of(x if flip == 0 else 1 - x), rtol=1e-5)


def test_the_encoder_may_learn_from_what_the_model_draws(images):
    steps = {}
    for dreams in (0.0, 2.0):
        step, state = a_step(images, dreams=dreams)

        def one(state, step=step):
            new, value = step(state, step.begin(state))
            return value[0], step.together(new.params[0] - state.params[0])

        steps[dreams] = once(one)(state)
    (plain, by_images), (value, by_both) = steps.values()
    assert value == plain  # of the training images alone
    for a, b in zip(jax.tree.leaves(by_both.model), jax.tree.leaves(by_images.model), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)  # from which the model learns, and from nothing else
    data_key, bound_key = jr.split(jr.fold_in(state.key[0], 0))
    learner = step.together(state.params[0])
    z_key, x_key = jr.split(jr.fold_in(data_key, 2))
    drawn = jr.bernoulli(x_key, learner.model.probabilities(learner.model.sample_prior(z_key, 20))).astype(float)

    def dreamt(encoder):
        values = Importance(inner=0)(learner.model.at(drawn), encoder.at(drawn), jr.fold_in(bound_key, 1), 20)
        return 2 * jnp.mean(values)

    expected = eqx.filter_grad(dreamt)(learner.encoder)
    extra = jax.tree.map(jnp.subtract, *(eqx.filter(x.encoder, eqx.is_inexact_array) for x in (by_both, by_images)))
    for a, b in zip(jax.tree.leaves(extra), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-2


def test_the_rows_settings_reach_the_step(source, images, tmp_path, monkeypatch):
    seen = []

    def run(step, state, history, **options):
        seen.append((step, options))
        return loop.Outcome(state, history, "interrupted")

    monkeypatch.setattr(loop, "run", run)
    go(begin(tmp_path, source, images, warmup=2))
    go(begin(tmp_path, source, images, optimizer="rmsprop", flip=0.25, dreams=0.5))
    (first, options), (second, _) = seen
    assert (first.flip, second.flip) == (0.0, 0.25) and (first.dreams, second.dreams) == (0.0, 0.5)
    assert (first.warmup, first.batch, first.tail, first.per_epoch) == (2 * PER_EPOCH, 20, True, PER_EPOCH)
    assert (second.warmup, second.tail) == (0, False)
    assert (options["turn"], options["until"], options["restarts"]) == (PER_EPOCH, 3 * PER_EPOCH, 2)
    assert first.bound.inner == 0 and type(first.gradient).__name__ == "StickingTheLanding"


def test_order_of_an_epoch(images):
    step, state = a_step(images)
    begin = once(step.begin)

    def at(number):
        orders = np.asarray(begin(eqx.tree_at(lambda s: s.step, state, jnp.full(2, number, jnp.int32))))
        assert orders.shape == (2, PER_EPOCH, 20)
        return orders

    first = at(0)
    for order in first:
        assert len(np.unique(order)) == 60 and order.min() >= 0 and order.max() < 65
    assert (first[0] != first[1]).mean() > 0.5  # seeds
    np.testing.assert_array_equal(at(PER_EPOCH - 1), first)
    second = at(PER_EPOCH)
    assert (second != first).mean() > 0.5
    assert set(first[0].ravel()) != set(second[0].ravel())  # other images are left out
    np.testing.assert_array_equal(at(PER_EPOCH), second)


def test_parameters_lie_where_a_product_can_read_them(images):
    flat, together = _start(images)
    again, other = taken_apart(together(flat))
    np.testing.assert_array_equal(flat, again)
    assert together.layout == other.layout and hash(together.layout) == hash(other.layout)  # nothing is compiled twice

    def leaves(flat):
        return [leaf for leaf in jax.tree.leaves(together(flat)) if eqx.is_inexact_array(leaf)]

    starts = [int(leaf.ravel()[0]) for leaf in leaves(jnp.arange(flat.size, dtype=flat.dtype))]
    assert len(starts) > 5 and all(start % 64 == 0 for start in starts) and flat.size % 64 == 0
    filled = np.asarray(jax.grad(lambda flat: sum(map(jnp.sum, leaves(flat))))(flat))
    assert set(filled) == {0.0, 1.0} and filled.sum() == sum(leaf.size for leaf in leaves(flat))
