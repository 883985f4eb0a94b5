"""Files: nothing saved is lost, nothing damaged is believed, nothing loaded can run."""

import json
import zipfile

import jax
import jax.random as jr
import numpy as np
import pytest

import vgp
from vgp import checkpoint
from vgp.checkpoint import CheckpointError
from vgp.targets import shapes

pytestmark = pytest.mark.newest

BANANA = shapes.banana()


@pytest.fixture(scope="module")
def fitted():
    return vgp.fit(BANANA, vgp.VGP(2, 8, key=jr.key(3)), key=jr.key(0), steps=60, draws=8, progress=False)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "fit.vgp")
    return tmp_path / "fit.vgp"


def test_round_trip(fitted, path):
    fitted.khat  # noqa: B018
    fitted.save(path)
    loaded = vgp.load(path, BANANA)
    for a, b in zip(jax.tree.leaves(fitted.family), jax.tree.leaves(loaded.family), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.elbo == fitted.elbo
    assert loaded.khat == fitted.khat
    assert str(loaded.status) == str(fitted.status)
    np.testing.assert_array_equal(loaded.sample(jr.key(1), 5), fitted.sample(jr.key(1), 5))
    loaded.save(path)  # a loaded fit saves its run as well
    assert len(vgp.load(path, BANANA).resume(steps=10, progress=False).history) == 70


@pytest.mark.parametrize("family", ["MeanField", "FullRank", "FactorAnalysis", "Mixture"])
def test_every_family_loads_without_help(family, tmp_path):
    fit = vgp.fit(
        BANANA, getattr(vgp.families, family)(2, key=jr.key(0)), key=jr.key(0), steps=5, start=None, progress=False
    )
    fit.save(tmp_path / "f")
    np.testing.assert_array_equal(vgp.load(tmp_path / "f", BANANA).sample(jr.key(1), 3), fit.sample(jr.key(1), 3))


def test_a_fit_without_its_target_says_what_is_missing(path):
    loaded = vgp.load(path)
    assert loaded.status.name == "max_steps"
    with pytest.raises(ValueError, match=r"use vgp.load\(path, target\)"):
        loaded.sample(jr.key(0), 3)
    with pytest.raises(ValueError, match=r"vgp.load\(path, target\).resume"):
        loaded.resume()


def damage(path, member):
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo(member).header_offset
        size = archive.getinfo(member).compress_size
    content = bytearray(path.read_bytes())
    middle = start + 30 + len(member) + size // 2
    content[middle] ^= 0xFF
    path.write_bytes(content)


def test_damage_is_named(path):
    damage(path, "family.inputs.npy")
    with pytest.raises(CheckpointError, match=r"damaged at the leaf 'family.inputs'"):
        vgp.load(path, BANANA)


def test_foreign_files_are_refused(tmp_path):
    plain = tmp_path / "notes.txt"
    plain.write_text("not a fit")
    with pytest.raises(CheckpointError, match="not a saved fit"):
        vgp.load(plain)
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    with pytest.raises(CheckpointError, match="not a saved fit"):
        vgp.load(tmp_path / "arrays.npz")
    with pytest.raises(FileNotFoundError, match="no saved fit"):
        vgp.load(tmp_path / "nothing")


def test_a_checkpoint_of_another_run_names_what_differs(path):
    options = {"key": jr.key(0), "steps": 60, "draws": 8, "progress": False, "checkpoint": path}
    with pytest.raises(CheckpointError, match=r"'family.inputs' is float\d+\[8, 2\], expected float\d+\[9, 2\]"):
        vgp.fit(BANANA, vgp.VGP(2, 9, key=jr.key(3)), **options)
    with pytest.raises(CheckpointError, match="draws=8, and this one has draws=9"):
        vgp.fit(BANANA, vgp.VGP(2, 8, key=jr.key(3)), **{**options, "draws": 9})
    with pytest.raises(ValueError, match="has 2 dimensions and the target 10"):
        vgp.load(path, shapes.funnel())


def rewrite(path, change):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(members[checkpoint.META])
    change(meta, members)
    members[checkpoint.META] = json.dumps(meta)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_nothing_loaded_can_execute_code(path):
    def evil(meta, members):
        meta["family"]["class"] = "os:system"

    rewrite(path, evil)
    with pytest.raises(CheckpointError, match="'os:system', which is not one of vgp's"):
        vgp.load(path)


def test_pickles_are_refused(path):
    def pickled(meta, members):
        import io

        buffer = io.BytesIO()
        np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        members["family.inputs.npy"] = buffer.getvalue()

    rewrite(path, pickled)
    with pytest.raises(CheckpointError, match="damaged at the leaf 'family.inputs'"):
        vgp.load(path)


def test_a_full_disk_loses_nothing(fitted, path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(checkpoint.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        fitted.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left behind
    with pytest.warns(UserWarning, match="could not be written"):
        fit = vgp.fit(
            BANANA, vgp.VGP(2, 8, key=jr.key(3)), key=jr.key(0), steps=20, progress=False,
            checkpoint=path.parent / "other",
        )  # fmt: skip
    assert len(fit.history) == 20  # the run itself goes on
