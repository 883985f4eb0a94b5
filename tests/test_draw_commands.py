"""`vgp train draw`: a drawing as an animation, and a VGP that begins where a DRAW ended."""

import json

import jax
import numpy as np
import pytest
from PIL import Image
from training_runs import invoke, made

from vgp.experiments import rows
from vgp.experiments.folder import open_run

SMALL = {"glimpses": 3, "reading": 2, "writing": 2, "batch": 20, "epochs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("drawn")
    splits = {"train": made(40, 0), "valid": made(20, 1), "test": made(20, 2)}
    np.savez(path / "shaped.npz", **{split: array.reshape(-1, 2, 3) for split, array in splits.items()})
    np.savez(path / "flat.npz", **splits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
        patch.setitem(rows.ARCHITECTURES, ("draw", 1), ((2,), ((4,),)))
        patch.setitem(rows.ARCHITECTURES, ("deep", 1), ((2,), ((4,),)))
        for name in ("draw", "draw-vgp", "dlgm1-vae"):
            changes = {**SMALL, "num_data": 3, "latent_dim": 1, "rank": None, "auxiliary_width": 3}
            patch.setitem(rows.ROWS, name, rows.dataclasses.replace(rows.find(name), **changes))
        result = invoke("train", "draw", "--data", path / "shaped.npz", "-o", path / "draw")
        assert result.exit_code == 0, result.output
        yield path


def test_animation(folder):
    result = invoke("sample", folder / "draw", "-n", 4)
    assert result.exit_code == 0 and "samples.gif" in result.output
    with Image.open(folder / "draw" / "samples.gif") as moving:
        assert getattr(moving, "n_frames", 1) == 3  # one per glimpse
        moving.seek(2)
        last = np.asarray(moving.convert("L"), float) / 255
    still = np.asarray(Image.open(folder / "draw" / "samples.png").convert("L"), float) / 255
    np.testing.assert_allclose(last, still, atol=0.02)  # the last frame is the picture


def leaves(learner):
    return {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(learner)}


def test_a_vgp_begins_where_a_draw_ended(folder, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "vgp.experiments.commands.train", lambda run, standing, *_, **__: seen.append(standing) or standing
    )
    out = folder / "vgp"
    result = invoke("train", "draw-vgp", "--data", folder / "shaped.npz", "-o", out, "--start", folder / "draw")
    assert result.exit_code in (0, 130), result.output
    had, apart = open_run(folder / "draw").load()
    donor = leaves(apart(had.best[0]))
    run = rows.build(rows.find("draw-vgp"), (2, 3), np.full(6, 0.5), jax.random.key(0))
    from vgp.experiments.parameters import taken_apart

    _, together = taken_apart(run)
    ours = leaves(together(seen[0].state.params[0]))
    np.testing.assert_array_equal(seen[0].best, seen[0].state.params)
    shared = [name for name in ours if name in donor]
    assert ".model.cell.gates.weight" in shared and ".encoder.head.loc.weight" in shared
    for name in shared:
        np.testing.assert_array_equal(ours[name], donor[name])
    assert set(donor) <= set(ours) and ".encoder.head.outputs.weight" in set(ours) - set(donor)


def test_what_a_run_began_with_is_recorded(folder):
    out = folder / "recorded"
    result = invoke("train", "draw-vgp", "--data", folder / "shaped.npz", "-o", out, "--start", folder / "draw")
    assert result.exit_code == 0, result.output
    assert json.loads((out / "run.json").read_text())["settings"]["begun"] == "draw at epoch 1"
    epochs, further = len(open_run(out).load()[0].history), folder / "further"
    result = invoke("train", "draw-vgp", "--data", folder / "shaped.npz", "-o", further, "--start", out)
    assert result.exit_code == 0, result.output
    begun = json.loads((further / "run.json").read_text())["settings"]["begun"]
    # With the epochs of the run that it had begun with itself, which is told as well.
    assert begun == f"draw-vgp at epoch {epochs + 1}; that with draw at epoch 1"


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["draw", "--data", "flat.npz"], "draws on images of a height and a width, got rows of 6 pixels"),
        (["draw", "--set", "glimpses=0", "-o", "none"], "The setting glimpses must be 1 or more for draw, got 0."),
        (["draw", "--architecture", "deep"], "--architecture must be draw, got 'deep'."),
        (["dlgm1-vae", "--data", "shaped.npz", "--start", "draw"], "Nothing that draw in"),
        (["draw", "--data", "shaped.npz", "--resume", "--start", "draw", "-o", "draw"], "leave one of them out"),
        (["draw", "--data", "shaped.npz", "--start", "gone"], "There is no run in 'gone'"),
        (["draw", "--set", "path=round", "--data", "shaped.npz"], "path must be 'none' or 'ring', got 'round'."),
        (["dlgm1-vae", "--set", "path=ring"], "The setting path does nothing in dlgm1-vae, whose model is dlgm"),
        ([*["draw-vgp", "--set", "path=OTHER", "--data", "shaped.npz", "--start", "draw"]], "; pass --set path="),
    ],
)
def test_one_sentence(folder, monkeypatch, arguments, told):
    monkeypatch.chdir(folder)
    other = "none" if rows.find("draw").path == "ring" else "ring"
    result = invoke("train", *(part.replace("OTHER", other) for part in arguments))
    assert result.exit_code == 1 and told in result.output
    assert len(result.output.strip().splitlines()) <= 3 and not (folder / "none").exists()
