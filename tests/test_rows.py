"""Every row of the tables trains, is watched and measured, at a size that a laptop does in seconds."""

import dataclasses
import json

import numpy as np
import pytest

from vgp.data import load
from vgp.experiments import records, rows
from vgp.experiments.folder import Run, open_run
from vgp.experiments.train import train

QUICK = ("dlgm1-vgp-paper",)  # the others have their parts tested elsewhere, and are slow to compile all together


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "squares.npz"
    np.savez(path, **{name: rng.random((n, 4, 4)) < 0.3 for name, n in (("train", 40), ("valid", 20), ("test", 8))})
    return str(path)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in rows.ROWS])
def test_a_row_trains_and_is_measured(name, source, tmp_path, monkeypatch):
    row = rows.find(name)
    kind = row.architecture, row.layers
    latents, hidden = rows.ARCHITECTURES[kind]
    small = tuple(3 for _ in latents), tuple(tuple(5 for _ in units) for units in hidden)
    monkeypatch.setitem(rows.ARCHITECTURES, kind, small)
    least = {"num_data": 4, "latent_dim": 2, "rank": 2, "length": 2, "outer": 2, "glimpses": 2, "unroll": 1}
    least |= {"auxiliary_width": 5}
    changes = {key: min(getattr(row, key), value) for key, value in least.items() if getattr(row, key) is not None}
    above = tuple((key, least.get(key, value)) for key, value in row.above)
    row = dataclasses.replace(row, **changes, above=above, epochs=2, batch=20)
    run = Run(tmp_path, row, load(source), source, 0, 2)
    progress = train(run, *run.start(), show=False)
    assert progress.ending == "max_steps" and progress.checks.shape == (2, 3)
    assert np.isfinite(progress.history).all() and np.isfinite(progress.checks).all()
    record = records.measure(run, *open_run(tmp_path).load(), 1, samples=20, inner=2)
    json.dumps(record, allow_nan=False)
    assert 5 < record["estimate"] < record["bound"] + 0.5 < 30  # nats of 16 pixels; a fair coin has 11
