"""A run of `vgp train` that was interrupted, killed or extended: it goes on bit for bit, and nothing is lost."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from training_runs import PER_EPOCH, Killed, assert_same, at_epoch, begin, command, go, go_on, interrupt, invoke, kill

from vgp import loop
from vgp.experiments import train as training
from vgp.experiments.begun import epochs_before, told_of
from vgp.experiments.folder import open_run

pytest_plugins = "training_fixtures"
pytestmark = pytest.mark.usefixtures("small")


def test_another_run_and_its_resumption_compile_nothing(straight, source, images, compiled, tmp_path, monkeypatch):
    def run_twice(folder):
        with monkeypatch.context() as patch:
            at_epoch(patch, 2, interrupt)
            assert go(begin(folder, source, images)).ending == "interrupted"
        assert go_on(folder).ending == "max_steps"

    run_twice(tmp_path / "first")
    before = len(compiled)
    run_twice(tmp_path / "second")
    assert len(compiled) == before


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


def test_muon_goes_on_bit_for_bit(source, images, tmp_path, monkeypatch):
    whole = go(begin(tmp_path / "whole", source, images, optimizer="muon"))
    with monkeypatch.context() as patch:
        at_epoch(patch, 2, interrupt)
        assert go(begin(tmp_path / "cut", source, images, optimizer="muon")).ending == "interrupted"
    assert_same(go_on(tmp_path / "cut"), whole)
    assert whole.history[-1].mean() > whole.history[0].mean()


def test_ctrl_c_where_k_changes_is_heard(straight, source, images, tmp_path, monkeypatch):
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


def test_a_run_that_fails_in_its_first_epoch_is_in_nobodys_way(straight, source, tmp_path, monkeypatch):
    def fails(**options):
        with monkeypatch.context() as patch:
            at_epoch(patch, 1, kill)
            with pytest.raises(Killed):
                command(source, tmp_path / "run", epochs=1, **options)

    fails()
    assert command(source, tmp_path / "run", epochs=1) == 0
    before = (tmp_path / "run" / "state.vgp").read_bytes()
    fails(fresh=True, seed=1)
    assert (tmp_path / "run" / "state.vgp").read_bytes() == before and open_run(tmp_path / "run").seed == 0


def test_a_longer_run_that_was_killed_keeps_its_schedule(straight, source, images, tmp_path, monkeypatch):
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


def test_a_run_can_be_made_shorter_but_not_than_it_is(straight, source, images, tmp_path, monkeypatch):
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


def test_a_kept_run_has_what_was_learned(straight, tmp_path):
    run, progress, _ = straight
    kept = run.keep(progress, tmp_path / "kept")
    again = open_run(kept.path).load()[0]
    np.testing.assert_allclose(again.best, progress.best, rtol=1e-3, atol=1e-7)
    assert np.any(np.asarray(again.best) != np.asarray(progress.best))  # in half precision
    np.testing.assert_array_equal(again.state.params, again.best)
    assert again.history.tobytes() == progress.history.tobytes()
    assert again.best.dtype == progress.best.dtype and int(again.state.step[0]) == 6 * PER_EPOCH
    assert (kept.path / "state.vgp").stat().st_size < (run.path / "state.vgp").stat().st_size / 2


def test_a_kept_run_goes_on(straight, source, tmp_path):
    run, progress, _ = straight
    run.keep(progress, tmp_path / "kept")
    assert command(source, tmp_path / "kept", resume=True, epochs=8) == 0
    on = open_run(tmp_path / "kept").load()[0]
    assert len(on.history) == 8 and on.history[:6].tobytes() == progress.history.tobytes()
    assert on.history[6:].mean() > progress.history[0].mean()  # it has not begun anew
    assert int(on.state.tail_from[0] + on.state.tail_steps[0]) == 8 * PER_EPOCH


def test_keep_does_not_write_over_another_run(straight, source, tmp_path):
    run = straight[0]
    result = invoke("keep", run.path, "--out", tmp_path / "kept")
    assert result.exit_code == 0 and "MB" in result.output
    assert invoke("keep", run.path, "--out", tmp_path / "kept").exit_code == 0  # a newer copy
    assert command(source, tmp_path / "own", fresh=True, epochs=1) == 0
    for taken in (run.path, tmp_path / "own"):
        result = invoke("keep", run.path, "--out", taken)
        assert result.exit_code == 1 and "holds a run that is not a copy; pass another" in result.output


def test_parameters_of_another_size_are_refused(straight, tmp_path):
    run, progress, _ = straight
    kept = run.keep(dataclasses.replace(progress, best=progress.best[:, :-64]), tmp_path / "kept")
    with pytest.raises(
        ValueError, match=r"parameters of the shape \[2, .*another version or row, train anew with --fresh"
    ):
        open_run(kept.path).load()


def test_a_trunk_keeps_its_rate_and_a_branch_lets_it_fall(straight, source, tmp_path):
    trunk, branch = tmp_path / "trunk", tmp_path / "branch"
    assert command(source, trunk, epochs=2, tail=0.0) == 0
    assert command(source, trunk, resume=True, epochs=3) == 0
    standing = open_run(trunk).load()[0]
    assert int(standing.state.tail_steps[0]) == 0 and int(standing.state.tail_from[0]) == 3 * PER_EPOCH
    assert command(source, branch, start=trunk, epochs=2, tail=1.0) == 0
    run = open_run(branch)
    assert run.row.tail == 1.0 and run.row.begun.startswith("staged at epoch 3")
    assert int(run.load()[0].state.tail_from[0]) == 0 and int(run.load()[0].state.tail_steps[0]) == 2 * PER_EPOCH
    assert command(source, trunk, resume=True, epochs=6, tail=0.5) == 0
    on = open_run(trunk)
    assert on.row.tail == 0.5 and int(on.load()[0].state.tail_steps[0]) == int(0.5 * 3 * PER_EPOCH)


def test_a_tail_is_a_share(source, tmp_path):
    with pytest.raises(ValueError, match="--tail must be between 0 and 1, the share .* got 20"):
        command(source, tmp_path, tail=20.0)


def test_the_epoch_of_what_a_run_begins_with_is_told(straight, source, tmp_path):
    run, progress, _ = straight
    run = dataclasses.replace(run, path=tmp_path / "trunk")
    checks = np.array([[4.0, -3.0, -1.5], [5.0, -1.0, -2.0], [6.0, np.nan, -5.0]])
    run.save(dataclasses.replace(progress, checks=checks))
    assert told_of(run) == "staged at epoch 6, its best of epoch 4" and epochs_before(told_of(run)) == 6
    run.save(dataclasses.replace(progress, checks=np.array([[6.0, -1.0, -1.0]])))
    assert told_of(run) == "staged at epoch 6"
    assert command(source, tmp_path / "on", start=run.path, epochs=1) == 0
    later = open_run(tmp_path / "on")
    assert later.row.begun == "staged at epoch 6"
    assert told_of(later) == "staged at epoch 7; that with staged at epoch 6" and epochs_before(told_of(later)) == 7
