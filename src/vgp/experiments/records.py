"""One JSON record per evaluated seed: what was measured, of which configuration, on what, by which commit."""

import hashlib
import json
import math
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from ..data import AbstractPixels
from . import evaluate
from .folder import Progress, Run
from .parameters import Parameters


def measure(
    run: Run,
    progress: Progress,
    together: Parameters,
    which: int,
    *,
    samples: int,
    inner: int,
    images: int | None = None,
) -> dict[str, Any]:
    """Everything there is to say of one seed, at its best parameters; `images` of the test set (None: all)."""
    learner, began = together(progress.best[which]), time.monotonic()
    seed = run.seed + which
    keys = jr.split(jr.fold_in(jr.key(20160), seed), 3)
    row, latent = run.row, bool(learner.encoder.latent_dim)
    test = some_of(run.images.test, images)
    bound = evaluate.bound(learner, test, keys[0], inner=inner if latent else 0, outer=row.outer)
    trained = evaluate.bound(
        learner, some_of(run.images.train, 5000), keys[1], draws=1, inner=inner if latent else 0, outer=row.outer
    )
    # Where the bound is of several samples, which has no second side, that of one sample beside it.
    one = bound if row.outer == 1 else evaluate.bound(learner, test, keys[0], inner=inner if latent else 0)
    estimate = evaluate.estimate(learner, test, keys[2], samples=samples, inner=4 if latent else 0)
    return {
        "row": row.name,
        "data": run.images.name,
        "protocol": run.images.protocol,
        "seed": seed,
        "bound": bound.upper.value,
        "bound_stderr": bound.upper.stderr,
        "bound_samples": row.outer,
        "bound_inner": inner if latent else 0,
        "sandwich": None if bound.lower is None else [bound.lower.value, bound.upper.value],
        "single": one.upper.value,
        "single_sandwich": None if one.lower is None else [one.lower.value, one.upper.value],
        "estimate": estimate.value,
        "estimate_stderr": estimate.stderr,
        "estimate_samples": samples,
        "train_bound": trained.upper.value,
        "test_images": len(test),
        "epochs": len(progress.history),
        "picked": int(progress.best_at(progress.checks)[which]) if len(progress.checks) else None,
        "validation": [[int(check[0]), -float(check[1 + which])] for check in progress.checks],
        "seconds": round(progress.seconds, 1),
        "evaluation_seconds": round(time.monotonic() - began, 1),
        "seeds_at_once": run.seeds,
        "ending": progress.ending,
        "origin": run.images.origin,
        "configuration": row.configuration(),
        **setting(),
    }


def some_of(pixels: AbstractPixels, count: int | None) -> AbstractPixels:
    """So many of the images, evenly spaced: a test set may be sorted, so never a prefix. None is all of them."""
    if count is None or count >= len(pixels):
        return pixels
    rows = np.linspace(0, len(pixels) - 1, count).astype(int)
    return jax.tree.map(lambda leaf: leaf[rows] if leaf.ndim and leaf.shape[0] == len(pixels) else leaf, pixels)


def setting() -> dict[str, Any]:
    """Where and with what a measurement was made."""
    return {
        "hardware": f"{jax.devices()[0].device_kind}, {len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
    }


def _commit() -> str:
    if told := os.environ.get("VGP_COMMIT"):  # where a copy runs that git does not know
        return told
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return "unknown"
    return asked.stdout.strip() or "unknown"


def write(record: dict[str, Any], folder: Path) -> Path:
    """Writes a record to FOLDER/train, by its row, data, protocol, epochs and seed; not over one of other settings."""
    name = "{row}-{data}-{protocol}-{epochs}-{seed}.json".format(**record)
    path, settings = folder / "train" / name, json.dumps(record["configuration"], sort_keys=True)
    if path.exists() and _settings(path) != settings:
        path = path.with_stem(f"{path.stem}-{hashlib.sha256(settings.encode()).hexdigest()[:6]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(record))
    return path


def text(record: Any) -> str:
    """A record, or a list of them, as JSON: a figure that is not finite is null, since JSON has no NaN."""
    return json.dumps(_plain(record), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(path: Path) -> str | None:
    try:
        return json.dumps(json.loads(path.read_text())["configuration"], sort_keys=True)
    except (ValueError, KeyError, TypeError):
        return None
