"""`vgp fit`: the posterior of a model in the user's file, fitted, with all that came of it in one folder."""

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import typer

from . import compiled
from .fit import fit
from .interop.arviz import named_leaves, to_arviz
from .model_file import load_target
from .result import Fit, load
from .target import Target

DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit codes


def run(
    where: str,
    data: Path | None,
    out: Path,
    *,
    seed: int = 0,
    steps: int | None = None,
    restarts: int = 1,
    draws: int = 4000,
    batch_size: int | None = None,
    resample: bool = False,
    fresh: bool = False,
) -> int:
    """Fits the model at FILE.py:NAME into the folder `out`, going on from the run that it holds; an exit code."""
    if draws < 1:
        raise ValueError(f"--draws must be a whole number, 1 or more, got {draws}.")
    checkpoint = out / "fit.vgp"
    try:
        target = load_target(where, data)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"The folder '{out}' cannot be made ({error.strerror}); pass another with -o.") from error
        settings = {"seed": seed, "steps": steps, "restarts": restarts, "batch_size": batch_size}
        _claim(out, settings | _fingerprint(target, data), fresh)
        if checkpoint.exists():
            typer.echo(_found(checkpoint))
        fitted = fit(
            target, key=jr.key(seed), steps=steps, restarts=restarts, batch_size=batch_size, checkpoint=checkpoint
        )
        _write_all(fitted, jr.fold_in(jr.key(seed), 1), draws, resample, out)
    except KeyboardInterrupt:
        kept = f"{checkpoint} keeps what was learned, and the same command goes on from there"
        typer.echo(f"Stopped by Ctrl-C: {kept if checkpoint.exists() else 'nothing was learned yet'}.", err=True)
        return INTERRUPTED
    if fitted.status.name == "interrupted":
        typer.echo(f"Stopped by Ctrl-C: the same command goes on from {checkpoint}.", err=True)
        return INTERRUPTED
    return FAILED if fitted.status.name == "diverged" else DONE


# ---------------------------------------------------------------- whose run is in the folder


def _fingerprint(target: Target, data: Path | None) -> dict[str, Any]:
    # A run may only be gone on with if it is of the same posterior, wherever that came from: its log density at a few
    # points tells. Data in a file is compared exactly, since a row among many hardly shows in the sum.
    points = np.random.default_rng(0).normal(size=(4, target.dim))
    log_density = np.asarray(compiled.log_probs(target, jnp.asarray(points, float)), np.float64)
    return {
        "values": target.coordinates(),
        "data": None if data is None else hashlib.sha256(data.read_bytes()).hexdigest(),
        "log_density": log_density.tolist(),
    }


def _claim(out: Path, record: dict[str, Any], fresh: bool):
    # Refuses a folder that holds a run of something else, which would be gone on with silently otherwise.
    path, checkpoint = out / "fit.json", out / "fit.vgp"
    if fresh:
        checkpoint.unlink(missing_ok=True)
    if checkpoint.exists():
        try:
            before = json.loads(path.read_text())
            changed = next((name for name in record if not _same(record[name], before[name])), None)
        except (OSError, ValueError, KeyError):
            before, changed = {}, "values"
        if changed is not None:
            what = "of another model or other data"
            if changed in ("seed", "steps", "restarts", "batch_size"):
                option, value = changed.replace("_", "-"), before[changed]
                what = f"without --{option}" if value is None else f"with --{option} {value}"
            raise ValueError(
                f"'{out}' holds a fit {what}; pass another folder with -o, or --fresh to start this one anew."
            )
    _replace(path, lambda temporary: temporary.write_text(json.dumps(record, indent=2) + "\n"))


def _same(new, old) -> bool:
    if new and isinstance(new, list) and isinstance(new[0], float):
        return len(new) == len(old) and np.allclose(new, old, rtol=1e-5, equal_nan=True)
    return new == old


def _found(checkpoint: Path) -> str:
    before = load(checkpoint)
    steps, finished = len(before.histories), before.status.name in ("converged", "max_steps")
    return f"{checkpoint} holds this fit, finished." if finished else f"Going on from step {steps} of {checkpoint}."


# ---------------------------------------------------------------- what is written


def _write_all(fitted: Fit, key, draws: int, resample: bool, out: Path):
    text = str(fitted.summary())
    typer.echo(text)
    _replace(out / "summary.txt", lambda path: path.write_text(text + "\n", encoding="utf-8"))
    fitted.save(out / "fit.vgp")  # again, now that it is measured
    _replace(out / "fit.png", lambda path: fitted.plot().savefig(path, dpi=130))
    name = _write_draws(fitted, key, draws, resample, out)
    typer.echo(f"\nIn {out}: {name} ({draws} draws), summary.txt, fit.png, and fit.vgp for vgp.load.")


def _write_draws(fitted: Fit, key, draws: int, resample: bool, out: Path) -> str:
    has = {name: importlib.util.find_spec(name) is not None for name in ("arviz", "netCDF4", "h5netcdf", "h5py")}
    engine = "netcdf4" if has["netCDF4"] else "h5netcdf" if has["h5netcdf"] and has["h5py"] else None
    if has["arviz"] and engine:
        tree = to_arviz(fitted, key, draws, resample)
        _replace(out / "draws.nc", lambda path: tree.to_netcdf(str(path), engine=engine))
        (out / "draws.npz").unlink(missing_ok=True)  # of an earlier run
        return "draws.nc"
    lacking = "a NetCDF engine" if has["arviz"] else "ArviZ"
    typer.echo(f"\nWithout {lacking} the draws go to draws.npz; for draws.nc: pip install arviz h5netcdf h5py.")
    values = named_leaves(fitted.sample(key, draws, resample=resample))
    _replace(out / "draws.npz", lambda path: np.savez(path, **values))
    (out / "draws.nc").unlink(missing_ok=True)
    return "draws.npz"


def _replace(path: Path, write: Callable[[Path], Any]):
    # Whole or not at all: a full disk leaves the earlier file as it was.
    temporary = path.with_name(f".new-{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
