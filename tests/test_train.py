"""`vgp train`: it learns, watches the validation images, loses nothing, and goes on bit for bit; and the commands."""

import dataclasses
import json
import re
import signal
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

from vgp import loop
from vgp.bounds import AbstractBound, Importance, draw
from vgp.checkpoint import flatten, read
from vgp.cli import app
from vgp.compiling import once
from vgp.data import load
from vgp.experiments import commands, evaluate, folder, pictures, records, rows, train as training
from vgp.experiments.folder import Run, open_run
from vgp.experiments.step import TrainStep, taken_apart
from vgp.gradients import Pathwise
from vgp.progress import Bar

# Every test trains one of these two, so that what they share is compiled once. "staged" changes K in the middle.
TINY = rows.Row("tiny", "vae", gradient="StickingTheLanding", batch=20, epochs=6, rate=1e-2)
STAGED = dataclasses.replace(TINY, name="staged", inner=((0.0, 0), (0.5, 1)))
PER_EPOCH = 3
KINDS = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])


def made(n, seed):
    """Images of two kinds, a tenth of the pixels turned over."""
    rng = np.random.default_rng(seed)
    return (KINDS[rng.integers(2, size=n)] ^ (rng.random((n, 6)) < 0.1)).astype(np.uint8)


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # keeps the command from choosing a folder
        patch.setitem(rows.ARCHITECTURES, ("deep", 1), ((3,), ((8, 8),)))
        for row in (TINY, STAGED):
            patch.setitem(rows.ROWS, row.name, row)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "kinds.npz"
    np.savez(path, train=made(65, 0), valid=made(20, 1), test=made(21, 2))  # 65: five a turn are left out
    return str(path)


@pytest.fixture(scope="module")
def images(source):
    return load(source)


@pytest.fixture(scope="module")
def compiled():
    names = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: names.append(name) if "backend_compile" in name else None
    )
    return names


def begin(path, source, images, row=STAGED, seed=0, seeds=2, **changes):
    return Run(path, dataclasses.replace(row, **changes), images, source, seed, seeds)


def go(run, **options):
    return training.train(run, *run.start(), show=False, **options)


def go_on(path, **options):
    run = open_run(path)
    return training.train(run, *run.load(), show=False, **options)


def at_epoch(patch, epoch, act):
    """Lets something happen in this epoch, counted from now on."""
    seen = []

    def update(*_):
        seen.append(1)
        if len(seen) == epoch:
            act()

    patch.setattr(Bar, "update", update)


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Killed(Exception):
    pass


def kill():
    raise Killed


def assert_same(one, other):
    """Bit for bit, all but the time that it took."""
    sides = []
    for p in (one, other):
        kept = {"best": p.best, "best_bound": p.best_bound, "history": p.history, "checks": p.checks}
        sides.append(flatten(p.state, "state") | {name: np.asarray(array) for name, array in kept.items()})
    assert sides[0].keys() == sides[1].keys() and len(sides[0]) > 10
    for name, array in sides[0].items():
        assert (array.dtype, array.shape) == (sides[1][name].dtype, sides[1][name].shape), name
        assert array.tobytes() == sides[1][name].tobytes(), name
    assert one.ending == other.ending


# ---------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def straight(tmp_path_factory, source, images, compiled):
    """Six epochs of two seeds without a break, and how many programs each epoch compiled."""
    advance, counts = loop._advance_turn, []

    def counted(*args):
        before = len(compiled)
        made = advance(*args)
        counts.append(len(compiled) - before)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_advance_turn", counted)
        run = begin(tmp_path_factory.mktemp("straight"), source, images)
        return run, go(run), counts


def test_history_and_checks_have_a_row_per_epoch_and_a_column_per_seed(straight):
    run, progress, _ = straight
    assert progress.ending == "max_steps" and progress.seconds > 0
    assert progress.history.shape == (6, 2) and np.isfinite(progress.history).all()
    assert (progress.history[:, 0] != progress.history[:, 1]).all()
    assert progress.checks[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(progress.best_bound, progress.checks[:, 1:].max(0))
    np.testing.assert_array_equal(progress.state.step, 6 * PER_EPOCH)
    assert "all epochs are done" in training.sentence(run, progress)
    assert f"Next: vgp evaluate {run.path}" in training.sentence(run, progress)


def test_an_epoch_compiles_only_where_the_bound_is_new(straight):
    _, _, counts = straight
    assert len(counts) == 6 and counts[0] > 0 and counts[3] > 0
    assert counts[1:3] == counts[4:] == [0, 0]


def test_another_run_and_its_resumption_compile_nothing(straight, source, images, compiled, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        run = begin(tmp_path, source, images)
        run.save(run.start()[0])
        open_run(tmp_path).load()  # whatever reading a file compiles, it has compiled now
        before = len(compiled)
        at_epoch(patch, 2, interrupt)
        assert go(run).ending == "interrupted"
    assert go_on(tmp_path).ending == "max_steps"
    assert len(compiled) == before


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


@pytest.mark.slow
@pytest.mark.parametrize("name", list(rows.ROWS))
def test_every_row_can_be_trained_and_measured(source, images, tmp_path, monkeypatch, name):
    for kind, layers in rows.ARCHITECTURES:
        monkeypatch.setitem(rows.ARCHITECTURES, (kind, layers), (((3, 2)[:layers]), ((8, 8), (4,))[:layers]))
    row = rows.find(name)
    sizes = {"num_data": 4, "latent_dim": 1, "rank": row.rank and 2, "auxiliary_width": 4, "length": min(row.length, 2)}
    run = begin(tmp_path, source, images, row, **sizes, batch=20, epochs=2, outer=min(row.outer, 5))
    progress = go(run)
    assert progress.ending == "max_steps" and np.isfinite(progress.history).all()
    _, together = open_run(tmp_path).load()
    record = records.measure(run, progress, together, 1, samples=20, inner=2)
    json.dumps(record, allow_nan=False)
    assert 1 < record["estimate"] < record["bound"] + 0.5 < 10


# ---------------------------------------------------------------- interrupted, killed, extended


@pytest.mark.parametrize("epoch", [2, 4])
def test_an_interrupted_run_goes_on_bit_for_bit(straight, source, images, tmp_path, monkeypatch, epoch):
    with monkeypatch.context() as patch:
        at_epoch(patch, epoch, interrupt)
        run = begin(tmp_path, source, images)
        stopped = go(run)
    assert stopped.ending == "interrupted" and len(stopped.history) == epoch
    assert "--resume goes on bit for bit" in training.sentence(run, stopped)
    assert_same(open_run(tmp_path).load()[0], stopped)
    assert_same(go_on(tmp_path), straight[1])


def test_ctrl_c_where_k_changes_is_heard(source, images, tmp_path, monkeypatch):
    at_epoch(monkeypatch, 3, interrupt)
    assert go(begin(tmp_path, source, images)).ending == "interrupted"


def test_a_killed_run_goes_on_from_its_last_save(straight, source, images, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "run", partial(loop.run, save_every=-1.0))  # after every epoch
        at_epoch(patch, 5, kill)
        with pytest.raises(Killed):
            go(begin(tmp_path, source, images))
    standing = open_run(tmp_path).load()[0]
    assert standing.ending == "interrupted" and len(standing.history) == 4 == len(standing.checks)
    assert_same(go_on(tmp_path), straight[1])


def command(source, path, **options):
    given = {"data": source, "protocol": None, "out": path, "seed": 0, "seeds": 2, "resume": False, "fresh": False}
    return commands.run_train("staged", **given | {"early": True, "progress": False} | options)


def test_a_longer_run_that_was_killed_keeps_its_schedule(source, images, tmp_path, monkeypatch):
    for name in ("whole", "killed"):
        assert command(source, tmp_path / name, epochs=3) == 0
    assert command(source, tmp_path / "whole", resume=True, epochs=6) == 0
    with monkeypatch.context() as patch:
        patch.setattr(loop, "run", partial(loop.run, save_every=-1.0))
        at_epoch(patch, 2, kill)
        with pytest.raises(Killed):
            command(source, tmp_path / "killed", resume=True, epochs=6)
    assert open_run(tmp_path / "killed").load()[0].ending == "interrupted"
    assert command(source, tmp_path / "killed", resume=True) == 0
    whole, killed = (open_run(tmp_path / name).load()[0] for name in ("whole", "killed"))
    assert whole.history.shape == (6, 2) and whole.checks[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert int(whole.state.tail_from[0] + whole.state.tail_steps[0]) == 6 * PER_EPOCH
    assert_same(whole, killed)


def test_a_run_can_be_made_shorter_but_not_than_it_is(source, images, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        at_epoch(patch, 2, interrupt)
        assert command(source, tmp_path, epochs=6) == 130
    with pytest.raises(ValueError, match="already at epoch 2, got --epochs 1; pass 2 or more, or --fresh"):
        command(source, tmp_path, resume=True, epochs=1)
    assert command(source, tmp_path, resume=True, epochs=4) == 0
    run = open_run(tmp_path)
    assert run.row.epochs == 4 == len(run.load()[0].history)


def test_a_full_disk_leaves_the_run_as_it_was(straight, source, images, tmp_path, monkeypatch):
    run, progress, _ = straight
    run = dataclasses.replace(run, path=tmp_path)
    run.save(progress)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vgp.checkpoint.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        dataclasses.replace(run, seed=7).save(dataclasses.replace(progress, seconds=1e9))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


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
        assert "was not finite for 8 steps in a row; the last good parameters are kept there" in result.output
    standing, together = open_run(tmp_path).load()
    epochs = len(standing.history)
    assert standing.ending == "diverged" and 3 < epochs < 50
    assert np.isfinite(standing.history[0]).all() and np.isnan(standing.history[-1]).all()
    assert int(standing.state.streak[0]) >= 8 and np.isfinite(standing.best_bound).all()
    for params in (standing.state.params, standing.best):
        assert np.isfinite(params).all() and (params != flat).any()
    moved = abs(float(together(standing.state.params[0]).model.logits.bias[0]) - start)
    assert 0.05 < moved < 0.1  # the step that went too far, and none after it
    assert abs(float(together(standing.best[0]).model.logits.bias[0]) - start) <= 0.05
    again = invoke("train", "tiny", "--data", source, "-o", tmp_path, "--resume", "--rate", 0.01, "--no-early")
    assert again.exit_code == 0, again.output
    run = open_run(tmp_path)
    progress = run.load()[0]
    assert run.row.rate == 0.01 and len(progress.history) == 50 and int(progress.state.streak[0]) == 0
    assert np.isfinite(progress.history[epochs:]).all()


def _start(images):
    mean = images.train.mean()
    return taken_apart(rows.build(TINY, 6, mean, jr.fold_in(jr.key(0), 0)))


# ---------------------------------------------------------------- validation


def test_stale_means_that_no_seed_has_improved():
    def stale(*bounds, patience=2):
        table = np.asarray(bounds, float)
        return training._stale(np.column_stack([np.arange(len(table)), table]), patience)

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
    scripted = np.asarray([[-5, -5], [-3, -4], [-4, -3], [-4, -9], [-3, -3], [-2, -2.0]])
    seen = []

    def validate(together, bound, params, *_):
        seen.append(np.array(params))
        return scripted[len(seen) - 1]

    monkeypatch.setattr(training, "_validate", validate)
    run = begin(tmp_path, source, images)
    progress = go(run, patience=2)
    assert progress.ending == "converged" and len(progress.history) == len(seen) == 5
    assert progress.best_bound.tolist() == [-3, -3]
    np.testing.assert_array_equal(progress.best[0], seen[1][0])
    np.testing.assert_array_equal(progress.best[1], seen[2][1])
    assert (seen[1][0] != seen[4][0]).any()
    assert_same(open_run(tmp_path).load()[0], progress)
    assert "validation has stopped improving; validation bound 3.00, 3.00 nats" in training.sentence(run, progress)


def test_a_run_that_validation_stopped(source, images, tmp_path, monkeypatch):
    seen = []

    def validate(together, bound, params, *_):
        seen.append(1)
        return np.full(len(params), -float(len(seen)))  # ever worse

    monkeypatch.setattr(training, "_validate", validate)
    monkeypatch.setattr(commands, "PATIENCE", 2)
    assert command(source, tmp_path) == 0
    run = open_run(tmp_path)
    progress = run.load()[0]
    assert progress.ending == "converged" and len(progress.history) == 3
    assert command(source, tmp_path, resume=True) == 0  # it is finished, and stays as it is
    assert_same(open_run(tmp_path).load()[0], progress)
    assert command(source, tmp_path, resume=True, epochs=20) == 0  # patience begins anew
    progress = open_run(tmp_path).load()[0]
    assert progress.ending == "converged" and len(progress.history) == 6 and progress.since == 3
    assert int(progress.state.tail_from[0] + progress.state.tail_steps[0]) == 20 * PER_EPOCH
    assert command(source, tmp_path, resume=True, early=False, epochs=8) == 0
    progress = open_run(tmp_path).load()[0]
    assert progress.ending == "max_steps" and len(progress.history) == 8
    assert progress.best_bound.tolist() == [-1, -1]


def test_checks_are_spread_over_the_run_and_the_last_epoch_has_one(straight, source, images, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKS", 2)
    progress = go(begin(tmp_path, source, images, TINY, epochs=7))
    assert progress.checks[:, 0].tolist() == [3, 6, 7]
    assert len(progress.history) == 7


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


def test_the_rows_settings_reach_the_step(source, images, tmp_path, monkeypatch):
    seen = []

    def run(step, state, history, **options):
        seen.append((step, options))
        return loop.Outcome(state, history, "interrupted")

    monkeypatch.setattr(loop, "run", run)
    go(begin(tmp_path, source, images, warmup=2))
    go(begin(tmp_path, source, images, optimizer="rmsprop"))
    (first, options), (second, _) = seen
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


# ---------------------------------------------------------------- the commands


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, source):
    out = tmp_path_factory.mktemp("trained") / "new" / "run"
    return invoke("train", "tiny", "--data", source, "-o", out, "--epochs", 2), out


def test_train_evaluate_sample(trained, tmp_path, monkeypatch):
    result, out = trained
    assert result.exit_code == 0, result.output
    assert "tiny at epoch 2" in result.output and "all epochs are done" in result.output
    told = json.loads((out / "run.json").read_text())
    assert told["row"] == "tiny" and told["settings"]["epochs"] == 2 and told["protocol"] == "fixed"
    assert {"state.vgp", "run.json"} <= {path.name for path in out.iterdir()}

    measure = ("evaluate", out, "--samples", 20, "--results", tmp_path)
    result = invoke(*measure)
    assert result.exit_code == 0, result.output
    record = json.loads((out / "record-0.json").read_text())
    assert record["test_images"] == 21 and record["epochs"] == 2 and record["estimate_samples"] == 20
    assert json.loads((tmp_path / "train" / "tiny-kinds-fixed-2-0.json").read_text()) == record
    assert f"bound {record['bound']:.3f} ± " in result.output and "by 20 samples" in result.output

    with monkeypatch.context() as patch:
        figure = evaluate.Figure(3.0, 0.1)
        patch.setattr(evaluate, "bound", lambda *_, **__: evaluate.Bound(figure, figure))
        patch.setattr(evaluate, "estimate", lambda learner, pixels, *_, **__: evaluate.Figure(float(len(pixels)), 0.1))
        result = invoke(*measure[:-1], tmp_path / "part", "--images", 5, "--json")
    assert result.exit_code == 0 and not (tmp_path / "part").exists()  # a part is no record
    (record,) = json.loads(result.stdout)
    assert record["test_images"] == record["estimate"] == 5

    result = invoke("sample", out, "-n", 7)
    assert result.exit_code == 0, result.output
    names = ("samples.png", "samples-reconstructions.png")
    for name in names:
        assert (out / name).read_bytes().startswith(b"\x89PNG") and f"written: {out / name}" in result.output
    assert invoke("sample", out, "-n", 7, "-o", tmp_path / "other" / "a.png", "--seed", 1).exit_code == 0
    assert (tmp_path / "other" / "a.png").read_bytes() != (out / names[0]).read_bytes()


def test_a_finished_run_is_finished(trained):
    _, out = trained
    before = read(out / "state.vgp")
    kinds = json.loads((out / "run.json").read_text())["data"]
    result = invoke("train", "tiny", "--data", kinds, "-o", out, "--resume")
    assert result.exit_code == 0 and "tiny at epoch 2" in result.output and "all epochs are done" in result.output
    after = read(out / "state.vgp")
    assert before[1] == after[1]
    for name, array in before[0].items():
        np.testing.assert_array_equal(array, after[0][name])


def test_fresh_starts_anew(trained, source, tmp_path):
    out = tmp_path / "run"
    arguments = ("train", "tiny", "--data", source, "-o", out, "--epochs", 2)
    assert invoke(*arguments, "--seed", 1).exit_code == 0
    other = open_run(out).load()[0]
    assert invoke(*arguments, "--fresh").exit_code == 0
    anew = open_run(out).load()[0]
    assert_same(anew, open_run(trained[1]).load()[0])
    assert (anew.history != other.history).all()


def test_the_usual_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "tiny", "--data", source, "--epochs", 1).exit_code == 0
    assert folder.is_run(tmp_path / "runs" / "tiny-kinds-fixed")


def test_records_of_other_settings_stay(tmp_path):
    record = {"row": "tiny", "data": "d", "protocol": "fixed", "epochs": 2, "seed": 0, "configuration": {"rate": 0.1}}
    first = records.write(record, tmp_path)
    assert records.write(record | {"bound": 1.0}, tmp_path) == first  # measured again
    second = records.write(record | {"configuration": {"rate": 0.2}}, tmp_path)
    assert second != first and json.loads(first.read_text())["configuration"] == {"rate": 0.1}
    assert records.write(record | {"configuration": {"rate": 0.2}}, tmp_path) == second
    first.write_text("{")  # damaged, and not ours to replace
    assert records.write(record, tmp_path) not in (first, second)


def test_images_stand_in_a_grid():
    pixels = np.arange(5 * 6).reshape(5, 6) / 30
    sheet = pictures.grid(pixels, (2, 3))
    assert sheet.shape == (3 * 3 + 1, 2 * 4 + 1)
    for i, picture in enumerate(pixels):
        y, x = 3 * (i // 2) + 1, 4 * (i % 2) + 1
        np.testing.assert_array_equal(sheet[y : y + 2, x : x + 3], picture.reshape(2, 3))
    assert (sheet[0] == 0.5).all() and (sheet[7:, 5:] == 0.5).all()
    assert pictures.grid(np.zeros((1, 6)), (6,)).shape == (3, 15)


# ---------------------------------------------------------------- bad input


@pytest.fixture(scope="module")
def others(source, trained, tmp_path_factory):
    """Files beside the run that are not its own: other data, and runs that are damaged."""
    place = tmp_path_factory.mktemp("others")
    np.savez(place / "kinds.npz", train=made(65, 9), valid=made(20, 1), test=made(21, 2))
    np.savez(place / "gray.npz", train=np.linspace(0, 1, 390).reshape(65, 6))
    for name in ("cut", "garbled", "half"):
        (place / name).mkdir()
        for part in ("run.json", "state.vgp"):
            (place / name / part).write_bytes((trained[1] / part).read_bytes())
    (place / "cut" / "state.vgp").write_bytes((trained[1] / "state.vgp").read_bytes()[:1000])
    (place / "garbled" / "run.json").write_text('{"row": "tiny", ')
    (place / "half" / "run.json").write_text('{"row": "tiny"}')
    return place


TRAIN = ["train", "tiny", "--data", "SOURCE", "-o", "RUN"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "dlgm1-vea"], "There is no row 'dlgm1-vea'; the rows are dlgm1-vae, dlgm2-vae,"),
        (["train", "tiny", "--data", "gone.npz"], "got 'gone.npz', which is no file; check the name."),
        (TRAIN, "' already holds a run of tiny; pass --resume to go on with it, --fresh to start anew, or --out"),
        (["train", "dlgm1-vae", *TRAIN[2:]], "' is the folder of a run of tiny, not of dlgm1-vae; pass --out"),
        (["train", "dlgm1-vae", *TRAIN[2:], "--resume"], "of a run of tiny, not of dlgm1-vae; pass --out"),
        (["train", "tiny", "--data", "digits", "-o", "RUN"], "is a run on kinds, fixed, not on digits, dynamic; pass"),
        (["train", "tiny", "--data", "OTHERS/gray.npz", "--protocol", "dynamic", *TRAIN[4:]], "not on gray, dynamic;"),
        (["train", "tiny", "--data", "OTHERS/kinds.npz", "-o", "RUN", "--resume"], "is a run on kinds.npz, sha256 "),
        ([*TRAIN, "--resume", "--batch", 10], "' was trained with --batch 20, got 10; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--warmup", 3], "' was trained with --warmup 0, got 3; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--architecture", "literal"], "' was trained with --architecture deep, got literal;"),
        ([*TRAIN, "--resume", "--seed", 1], "' was trained with --seed 0, got 1; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--seeds", 2], "' was trained with --seeds 1, got 2; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--epochs", 1], "' is already at epoch 2, got --epochs 1; pass 2 or more, or --fresh"),
        (["train", "tiny", "--epochs", 0], "--epochs must be 1 or more, got 0."),
        (["train", "tiny", "--batch", 0], "--batch must be 1 or more, got 0."),
        (["train", "tiny", "--seeds", 0], "--seeds must be 1 or more, got 0."),
        (["train", "tiny", "--warmup", -1], "--warmup must be 0 or more, got -1."),
        (["train", "tiny", "--rate", 0], "--rate must be a positive number, got 0.0."),
        (["train", "tiny", "--rate", "nan"], "--rate must be a positive number, got nan."),
        (["train", "tiny", "--architecture", "wide"], "--architecture must be deep or literal, got 'wide'."),
        (["train", "tiny", "--protocol", "both"], "The protocol must be 'fixed' or 'dynamic', got 'both'"),
        ([*TRAIN[:4], "-o", "OTHERS/new", "--batch", 66], "A batch of 66 is larger than the 65 training images; pass"),
        ([*TRAIN[:4], "-o", "OTHERS/cut", "--resume"], "state.vgp' is not a saved fit of vgp, or damaged"),
        ([*TRAIN[:4], "-o", "OTHERS/garbled", "--resume"], "run.json' is damaged or another version's (JSON"),
        (["evaluate", "OTHERS/cut"], "state.vgp' is not a saved fit of vgp, or damaged; load an earlier copy."),
        (["evaluate", "OTHERS/garbled"], "garbled/run.json' is damaged or another version's (JSON"),
        (["evaluate", "OTHERS/half"], "run.json' is damaged or another version's (KeyError: 'settings'); put"),
        (["evaluate", "OTHERS"], "There is no run in 'OTHERS'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "OTHERS"], "There is no run in 'OTHERS'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "gone"], "There is no run in 'gone'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "RUN", "-n", 0], "-n must be 1 or more, got 0."),
        (["sample", "RUN", "-o", "OTHERS/a.txt"], "The picture must be a .png file, got 'OTHERS/a.txt'."),
        (["evaluate", "RUN", "--samples", 0], "--samples must be 1 or more, got 0."),
        (["evaluate", "RUN", "--inner", 0], "--inner must be 1 or more, got 0."),
        (["evaluate", "RUN", "--images", 0], "--images must be 1 or more, got 0."),
    ],
)
def test_bad_input_gets_one_sentence(trained, source, others, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    places = {"SOURCE": source, "RUN": trained[1], "OTHERS": others}

    def filled(text):
        return re.sub("|".join(places), lambda found: str(places[found[0]]), text)

    before = (trained[1] / "state.vgp").read_bytes()
    result = invoke(*(filled(str(argument)) for argument in arguments))
    assert result.exit_code == 1 and filled(sentence) in result.output, (result.output, result.exception)
    assert result.output.startswith("vgp: ") and result.output.count("\n") == 1
    assert (trained[1] / "state.vgp").read_bytes() == before and not any(tmp_path.iterdir())
    assert not (others / "new").exists()


def test_data_that_has_changed_is_refused(trained, source, tmp_path):
    path, out = tmp_path / "kinds.npz", tmp_path / "run"
    path.write_bytes(Path(source).read_bytes())
    assert invoke("train", "tiny", "--data", path, "-o", out, "--epochs", 1).exit_code == 0
    np.savez(path, train=made(65, 9), valid=made(20, 1), test=made(21, 2))
    for arguments in (("evaluate", out), ("train", "tiny", "--data", path, "-o", out, "--resume", "--epochs", 2)):
        result = invoke(*arguments)
        assert result.exit_code == 1 and "holds other images than those of the run" in result.output
        assert result.output.startswith("vgp: ") and result.output.count("\n") == 1
