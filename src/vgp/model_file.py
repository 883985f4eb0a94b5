"""A model in the user's own file, with data from another, as a target: what `vgp fit FILE.py:NAME --data` reads."""

import functools
import importlib.util
import inspect
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from .cli import MODEL_FILE
from .target import Target
from .targets import from_numpyro, from_pymc, target as make_target

Data = dict[str, Any]


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
        return found if isinstance(found, Target) else from_pymc(found)
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
        return from_pymc(made)
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
