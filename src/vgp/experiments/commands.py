"""What `vgp train`, `vgp evaluate` and `vgp sample` do."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

from .. import loop
from ..data import Images, load
from ..models import DRAW
from . import pictures, records
from .begun import begin_with, told_of
from .folder import DESCRIPTION, STATE, Progress, Run, is_kept, is_run, open_run
from .optimizer import OPTIMIZERS
from .parameters import Parameters
from .rows import Row, find
from .settings import applies, check, setting
from .train import PATIENCE, sentence, train

OPTIONS = ("batch", "optimizer", "decay", "warmup", "flip", "dreams", "architecture", "seed", "seeds")  # of its own


def run_train(
    name: str,
    *,
    data: str | None,
    protocol: str | None,
    out: Path | None,
    seed: int,
    seeds: int,
    resume: bool,
    fresh: bool,
    early: bool,
    start: Path | None = None,
    progress: bool = True,
    settings: Sequence[str] = (),
    **changes: Any,
) -> int:
    """Trains a row; the exit code. `settings` are changes too, as texts such as "num_data=32"."""
    row = find(name)
    changes = _together(row, {key: value for key, value in changes.items() if value is not None}, settings)
    _possible(row, {**changes, "seeds": seeds})
    data = row.data if data is None else data
    images = load(data, protocol)
    path = out or Path("runs") / f"{name}-{images.name}-{images.protocol}"
    if resume and not is_run(path):
        raise ValueError(
            f"There is no run in '{path}' to resume; leave --resume out to start one, or pass the folder of a run as "
            "--out."
        )
    if resume and start is not None:
        raise ValueError("--start is for a run that begins, got it with --resume; leave one of them out.")
    if is_run(path) and not fresh:
        run = open_run(path)
        _same(run, name, images, changes, seed, seeds)
        if not resume:
            raise ValueError(
                f"'{path}' already holds a run of {run.row.name}; pass --resume to go on with it, --fresh to start "
                "anew, or --out for another folder."
            )
        standing, together = run.load()
        done, epochs = len(standing.history), changes.get("epochs", run.row.epochs)
        if epochs < done:
            raise ValueError(
                f"'{path}' is already at epoch {done}, got --epochs {epochs}; pass {done} or more, or --fresh to start "
                "anew."
            )
        stopped = standing.ending == "converged"
        if stopped and early and "epochs" not in changes:
            print(sentence(run, standing))
            return 0
        anew = epochs != run.row.epochs or stopped or changes.get("tail", run.row.tail) != run.row.tail
        run.row = dataclasses.replace(run.row, **{key: changes[key] for key in ("rate", "tail") if key in changes})
        if anew:
            steps = (epochs - done) * (len(images.train) // run.row.batch)
            standing.state, standing.since = loop.extend(standing.state, steps, run.row.tail), done
            run.row = dataclasses.replace(run.row, epochs=epochs)
    else:
        row = dataclasses.replace(row, **changes)
        run = Run(path, row, images, data, seed, seeds)
        standing, together = run.start()
        if start is not None:
            standing = _begin_with(run, standing, together, start)
    standing = train(run, standing, together, show=progress, patience=PATIENCE if early else None)
    print(sentence(run, standing))
    return {"interrupted": 130, "diverged": 1, "collapsed": 1}.get(standing.ending, 0)


def _begin_with(run: Run, standing: Progress, together: Parameters, start: Path) -> Progress:
    other = open_run(start)
    if other.row.model == run.row.model and other.row.path != run.row.path:
        raise ValueError(
            f"The windows of {other.row.name} in '{start}' learned with path={other.row.path}, those of {run.row.name} "
            f"have path={run.row.path}; pass --set path={other.row.path}."
        )
    standing, taken = begin_with(standing, together, other)
    if not taken:
        raise ValueError(
            f"Nothing that {other.row.name} in '{start}' learned has the name and size of something in {run.row.name}; "
            "leave --start out, or name a run of the same model."
        )
    run.row = dataclasses.replace(run.row, begun=told_of(other))
    return standing


def _together(row: Row, changes: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    for key, value in map(setting, settings):
        applies(row, key)
        if changes.setdefault(key, value) != value:
            raise ValueError(f"--set {key}={value} was given beside {key} {changes[key]}; leave one of them out.")
    return changes


def _possible(row: Row, changes: dict[str, Any]) -> None:
    _least(1, **{f"--{key}": changes.get(key) for key in ("epochs", "batch", "seeds")})
    _least(0, **{"--warmup": changes.get("warmup")})
    rate, architecture = changes.get("rate", row.rate), changes.get("architecture", row.architecture)
    if not 0 < rate < np.inf:
        raise ValueError(f"--rate must be a positive number, got {rate}.")
    tail = changes.get("tail", row.tail)
    if not 0 <= tail <= 1:
        raise ValueError(f"--tail must be between 0 and 1, the share of the run in which the rate falls, got {tail}.")
    flip, optimizer = changes.get("flip", row.flip), changes.get("optimizer", row.optimizer)
    if not 0 <= flip < 0.5:
        raise ValueError(f"--flip must be 0 or more and less than 0.5, got {flip}; a few hundredths are usual.")
    dreams = changes.get("dreams", row.dreams)
    if not 0 <= dreams < np.inf:
        raise ValueError(f"--dreams must be 0 or more, got {dreams}; 1 gives them the weight of the training images.")
    decay = changes.get("decay", row.decay)
    if not 0 <= decay < np.inf:
        raise ValueError(f"--decay must be 0 or more, got {decay}; 0.1 is usual.")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"--optimizer must be {', '.join(OPTIMIZERS[:-1])} or {OPTIMIZERS[-1]}, got '{optimizer}'.")
    if "tail" in changes and optimizer == "rmsprop":
        raise ValueError(f"--tail goes with the other optimisers: the rate of rmsprop falls by itself, got {tail}.")
    names = ["deep", "literal"] if row.model == "dlgm" else [row.architecture]
    if architecture not in names:
        names = " or ".join(names)
        raise ValueError(f"--architecture must be {names}, got '{architecture}'.")
    check(dataclasses.replace(row, **{key: value for key, value in changes.items() if key != "seeds"}))


def _least(least: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}.")


def _same(run: Run, name: str, images: Images, changes: dict[str, Any], seed: int, seeds: int) -> None:
    path = run.path
    if run.row.name != name:
        raise ValueError(
            f"'{path}' is the folder of a run of {run.row.name}, not of {name}; pass --out for a folder of its own."
        )
    if (run.images.name, run.images.protocol) != (images.name, images.protocol):
        raise ValueError(
            f"'{path}' is a run on {run.images.name}, {run.images.protocol}, not on {images.name}, {images.protocol}; "
            "pass --out for a folder of its own."
        )
    if run.images.origin != images.origin:
        raise ValueError(
            f"'{path}' is a run on {run.images.origin}, not on {images.origin}; pass --out for a folder of its own."
        )
    # A seed, or a number of them, that was left out comes as 0 or 1.
    asked = {**changes, "seed": seed or run.seed, "seeds": run.seeds if seeds == 1 else seeds}
    for key in sorted({*changes, "seed", "seeds"} - {"epochs", "rate", "tail"}):
        had = getattr(run if key.startswith("seed") else run.row, key)
        if asked.get(key, had) != had:
            name = f"--{key} " if key in OPTIONS else f"--set {key}="
            raise ValueError(
                f"'{path}' was trained with {name}{had}, got {asked[key]}; it cannot change, pass --out for a folder "
                "of its own."
            )


def run_evaluate(path: Path, *, results: Path, samples: int, inner: int, images: int | None, as_json: bool) -> None:
    """Measures every seed of a run and writes the records."""
    _least(1, **{"--samples": samples, "--inner": inner, "--images": images})
    run = open_run(path)
    progress, together = run.load()
    made = []
    for which in range(run.seeds):
        record = records.measure(run, progress, together, which, samples=samples, inner=inner, images=images)
        (path / f"record-{record['seed']}.json").write_text(records.text(record))
        if record["test_images"] == len(run.images.test):
            records.write(record, results)
        made.append(record)
        if not as_json:
            print(_told(record))
    if as_json:
        print(records.text(made), end="")


def _told(record: dict[str, Any]) -> str:
    told = (
        f"{record['row']} on {record['data']} ({record['protocol']}), seed {record['seed']}, epoch {record['epochs']}: "
        f"bound {record['bound']:.3f} ± {record['bound_stderr']:.3f}"
    )
    if record["bound_samples"] > 1:
        told += f" ({record['bound_samples']} samples; of one {record['single']:.3f})"
    elif record["sandwich"] and record["bound_inner"]:
        told += f" (sandwich from {record['sandwich'][0]:.3f})"
    return told + (
        f", −log p by {record['estimate_samples']} samples {record['estimate']:.3f} ± {record['estimate_stderr']:.3f}, "
        f"training bound {record['train_bound']:.3f} nats per image"
    )


def run_keep(path: Path, out: Path) -> None:
    """A copy of a run with what it has learned and no more."""
    run = open_run(path)
    if is_run(out) and not is_kept(out):
        raise ValueError(f"'{out}' holds a run that is not a copy; pass another folder as --out.")
    kept = run.keep(run.load()[0], out)
    size = sum(file.stat().st_size for file in (kept.path / name for name in (DESCRIPTION, STATE)))
    print(f"kept: {run.row.name} in '{out}', {size / 1e6:.1f} MB")


def run_sample(path: Path, *, out: Path | None, n: int, seed: int) -> None:
    """Draws images."""
    _least(1, **{"-n": n})
    if out is not None and out.suffix != ".png":
        raise ValueError(f"The picture must be a .png file, got '{out}'.")
    run = open_run(path)
    progress, together = run.load()
    learner = together(progress.best[0])
    out = out or path / "samples.png"
    written = pictures.draw(learner, run.images, jr.key(seed), n, out)
    if isinstance(learner.model, DRAW):
        written.append(pictures.animate(learner.model, run.images, jr.key(seed), n, out.with_suffix(".gif")))
    for name in written:
        print(f"written: {name}")
