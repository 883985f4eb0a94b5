"""What `vgp train`, `vgp evaluate` and `vgp sample` do."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.random as jr

from .. import loop
from ..data import load
from . import pictures, records
from .folder import Run, is_run, open_run
from .rows import find
from .train import PATIENCE, sentence, train


def run_train(
    name: str,
    *,
    data: str,
    protocol: str | None,
    out: Path | None,
    seed: int,
    seeds: int,
    resume: bool,
    fresh: bool,
    early: bool,
    progress: bool = True,
    **changes: Any,
) -> int:
    """Trains a row; the exit code."""
    row = find(name)
    for key in ("epochs", "batch", "seeds"):
        value = seeds if key == "seeds" else changes.get(key)
        if value is not None and value < 1:
            raise ValueError(f"--{key} must be 1 or more, got {value}.")
    changes = {key: value for key, value in changes.items() if value is not None}
    images = load(data, protocol)
    path = out or Path("runs") / f"{name}-{images.name}-{images.protocol}"
    if is_run(path) and not fresh:
        run = open_run(path)
        _same(run, name, images, changes, path)
        if not resume:
            raise ValueError(
                f"'{path}' already holds a run of {run.row.name}; pass --resume to go on with it, --fresh to start "
                "anew, or --out for another folder."
            )
        standing, together = run.load()
        done, epochs = len(standing.history), changes.get("epochs", run.row.epochs)
        if "rate" in changes:
            run.row = dataclasses.replace(run.row, rate=changes["rate"])
        if epochs > run.row.epochs or (standing.ending in ("max_steps", "converged") and epochs > done):
            per_epoch = len(images.train) // run.row.batch
            standing.state = loop.extend(standing.state, (epochs - done) * per_epoch)
            run.row = dataclasses.replace(run.row, epochs=epochs)
    else:
        row = dataclasses.replace(row, **changes)
        run = Run(path, row, images, data, seed, seeds)
        standing, together = run.start()
    standing = train(run, standing, together, show=progress, patience=PATIENCE if early else None)
    print(sentence(run, standing))
    return {"interrupted": 130, "diverged": 1}.get(standing.ending, 0)


def _same(run: Run, name: str, images, changes: dict[str, Any], path: Path) -> None:
    if run.row.name != name:
        raise ValueError(
            f"'{path}' is the folder of a run of {run.row.name}, not of {name}; pass --out for a folder of its own."
        )
    if (run.images.name, run.images.protocol) != (images.name, images.protocol):
        raise ValueError(
            f"'{path}' is a run on {run.images.name}, {run.images.protocol}, not on {images.name}, {images.protocol}; "
            "pass --out for a folder of its own."
        )
    if "batch" in changes and changes["batch"] != run.row.batch:
        raise ValueError(
            f"'{path}' was trained with --batch {run.row.batch}, got {changes['batch']}; it cannot change."
        )


def run_evaluate(path: Path, *, results: Path, samples: int, inner: int, images: int | None, as_json: bool) -> None:
    """Measures every seed of a run and writes the records."""
    run = open_run(path)
    progress, together = run.load()
    made = []
    for which in range(run.seeds):
        record = records.measure(run, progress, together, which, samples=samples, inner=inner, images=images)
        (path / f"record-{record['seed']}.json").write_text(json.dumps(record, indent=1) + "\n")
        if record["test_images"] == len(run.images.test):
            records.write(record, results)
        made.append(record)
        if not as_json:
            print(_told(record))
    if as_json:
        print(json.dumps(made, indent=1))


def _told(record: dict[str, Any]) -> str:
    told = (
        f"{record['row']} on {record['data']} ({record['protocol']}), seed {record['seed']}, epoch {record['epochs']}: "
        f"bound {record['bound']:.3f} ± {record['bound_stderr']:.3f}"
    )
    if record["bound_samples"] > 1:
        told += f" ({record['bound_samples']} samples)"
    elif record["sandwich"] and record["bound_inner"]:
        told += f" (sandwich from {record['sandwich'][0]:.3f})"
    return told + (
        f", −log p by {record['estimate_samples']} samples {record['estimate']:.3f} ± {record['estimate_stderr']:.3f}, "
        f"training bound {record['train_bound']:.3f} nats per image"
    )


def run_sample(path: Path, *, out: Path | None, n: int, seed: int) -> None:
    """Draws images."""
    run = open_run(path)
    progress, together = run.load()
    learner = together(progress.best[0])
    for written in pictures.draw(learner, run.images, jr.key(seed), n, out or path / "samples.png"):
        print(f"written: {written}")
