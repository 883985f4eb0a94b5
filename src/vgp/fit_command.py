"""`vgp fit`: the posterior of a model in the user's file, fitted, with all that came of it in one folder."""

import functools
import hashlib
import importlib.util
import inspect
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import typer
from numpyro import handlers
from numpyro.primitives import Messenger

from .cli import MODEL_FILE
from .fit import fit
from .interop.arviz import named_leaves, to_arviz
from .result import Fit, load
from .target import Target
from .targets import from_numpyro, target as make_target

DONE, FAILED, INTERRUPTED = 0, 1, 130  # exit codes

Data = dict[str, Any]


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
    log_density = np.asarray(_log_probs(target, jnp.asarray(points, float)), np.float64)
    return {
        "values": target.coordinates(),
        "data": None if data is None else hashlib.sha256(data.read_bytes()).hexdigest(),
        "log_density": log_density.tolist(),
    }


@eqx.filter_jit
def _log_probs(target, u):
    return target.log_probs(u)


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


# ---------------------------------------------------------------- the model


def load_target(where: str, data: Path | None = None) -> Target:
    """The target that `where`, FILE.py:NAME, stands for, given the data.

    NAME is a NumPyro model, a PyMC model, a `vgp.Target`, a function of the data that returns one of the last two, or
    a log density: of the values first and then the data by name, with `example` and perhaps `constraints` beside it in
    the file, as `vgp.target` takes them.
    """
    file, _, name = where.rpartition(":")
    if not (file and name.isidentifier()):
        file, name = where, ""
    raw = {} if data is None else _read(data)
    module = _import(Path(file))
    if not name or not hasattr(module, name):
        names = _candidates(module)
        missing = f"'{file}' has no '{name}'" if name else "The model's name is missing, as in FILE.py:NAME"
        raise ValueError(f"{missing}; the file has {', '.join(names) if names else 'no models or functions'}.")
    # PyTensor takes no JAX arrays, and NumPyro's traced indices no NumPy ones: the file says which it is about.
    as_array = np.asarray if "pymc" in Path(file).read_text(encoding="utf-8") else jnp.asarray
    return _target(module, name, {key: _value(key, value, as_array) for key, value in raw.items()})


def _target(module: ModuleType, name: str, data: Data) -> Target:
    found = getattr(module, name)
    if isinstance(found, Target) or _is_pymc(found):
        if data:
            raise ValueError(f"'{name}' is a model with its data; write a function that takes data and returns it.")
        return found if isinstance(found, Target) else _from_pymc(found)
    if not callable(found):
        raise ValueError(f"'{name}' must be a model, a target or a function, got {type(found).__name__}.")
    parameters = list(inspect.signature(found).parameters.values())
    is_density = parameters and _is_needed(parameters[0]) and parameters[0].name not in data
    if is_density and hasattr(module, "example"):
        _check_names(name, parameters[1:], data)
        constraints = getattr(module, "constraints", None)
        if isinstance(constraints, ModuleType):  # numpyro's, imported under its usual name
            constraints = None
        return make_target(functools.partial(found, **data) if data else found, module.example, constraints)
    _check_names(name, parameters, data, "; a log density needs an `example` of its values in the file")
    return _called(found, name, data)


def _called(function: Callable[..., Any], name: str, data: Data) -> Target:
    # A NumPyro model is known by its sites, anything else by what it returns. A model may fail here and be sound, as
    # one with an improper prior, which has no draws; if it is not, from_numpyro fails too and says why.
    sites = _Sites()
    with sites, handlers.seed(rng_seed=0):
        try:
            made = function(**data)
        except Exception:
            if not sites.found:
                raise
            made = None
    if isinstance(made, Target):
        return made
    if _is_pymc(made):
        return _from_pymc(made)
    if sites.found:
        return from_numpyro(function, **data)
    raise ValueError(
        f"'{name}' has no numpyro.sample sites and returned {type(made).__name__}, not a PyMC model or a vgp.Target."
    )


class _Sites(Messenger):
    """Notes whether there were sample sites."""

    found = False

    def process_message(self, msg):
        self.found |= msg["type"] == "sample"


def _is_pymc(value) -> bool:
    # Without importing PyMC: whoever made one has done that.
    bases = {(base.__module__.split(".")[0], base.__name__) for base in type(value).__mro__}
    return bool(bases & {("pymc", "Model"), ("pymc", "BaseModel")})


def _from_pymc(model) -> Target:
    from .targets.pymc import from_pymc

    return from_pymc(model)


def _check_names(name: str, parameters: list[inspect.Parameter], data: Data, hint: str = ""):
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = [p.name for p in named]
    unknown = [] if anything else [key for key in data if key not in taken]
    lacking = [p.name for p in named if _is_needed(p) and p.name not in data]
    accepted = f"its data is {', '.join(taken)}" if taken else "it takes no data"
    if unknown:
        raise ValueError(f"'{name}' does not take {_quoted(unknown)}, which --data has; {accepted}.")
    if lacking:
        raise ValueError(f"'{name}' needs {_quoted(lacking)}, which --data does not have; {accepted}{hint}.")


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not variable and parameter.default is parameter.empty


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# ---------------------------------------------------------------- the user's files


def _import(path: Path) -> ModuleType:
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"There is no Python file '{path}'; pass FILE.py:NAME.")
    spec = importlib.util.spec_from_file_location(MODEL_FILE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODEL_FILE] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script, so that it finds its neighbours
    spec.loader.exec_module(module)
    return module


def _candidates(module: ModuleType) -> list[str]:
    def is_own(value):
        return (
            isinstance(value, Target)
            or _is_pymc(value)
            or (inspect.isfunction(value) and value.__module__ == MODEL_FILE)
        )

    return [name for name, value in vars(module).items() if not name.startswith("_") and is_own(value)]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"There is no data file '{path}'.")
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: array if array.ndim else array.item() for name, array in arrays.items()}
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"'{path}' is damaged, or no .npz file of plain arrays ({error}).") from error
    if path.suffix != ".json":
        raise ValueError(f"The data must be a .json or .npz file, got '{path}'.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"'{path}' is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not a text file in UTF-8.") from error
    if not isinstance(data, dict):
        raise ValueError(f"'{path}' must hold an object of data by name, got a {type(data).__name__}.")
    return data


def _value(name: str, value: Any, as_array: Callable[[np.ndarray], Any]) -> Any:
    # Single numbers stay as they are, since a plate's size must be a Python integer; so do lists of words.
    if isinstance(value, dict):
        return {key: _value(f"{name}.{key}", part, as_array) for key, part in value.items()}
    if not isinstance(value, (list, np.ndarray)):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind in "biuf":
        return as_array(array)
    if array.dtype.kind == "U" and all(isinstance(word, str) for word in value):
        return list(value)
    raise ValueError(f"The data '{name}' must be a number or rows of numbers, all of one length.")
