"""One file format for fits and checkpoints: a zip of plain arrays and one page of JSON.

Nothing in it can execute code: arrays are read without pickle, and modules are rebuilt from a description
that may name only classes of this package. Files are replaced atomically: a full disk or a crash in the
middle leaves the previous file as it was.
"""

import dataclasses
import importlib
import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

FORMAT = "vgp-1"
META = "meta.json"


class CheckpointError(ValueError):
    """A file that is not a checkpoint, is damaged, or does not fit what it is loaded into."""


# ---------------------------------------------------------------- files


def write(path: str | os.PathLike, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Writes arrays by name and a page of JSON, or leaves whatever was at `path` untouched."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.writestr(META, json.dumps({"format": FORMAT, **meta}))
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `write` wrote. A damaged file is refused by the name of its damaged leaf."""
    path, name = Path(path), META
    if not path.exists():
        raise FileNotFoundError(f"There is no saved fit at '{path}'; check the path, or save one with fit.save(path).")
    try:
        with zipfile.ZipFile(path) as archive:
            meta = json.loads(archive.read(META))
            if meta.get("format") != FORMAT:
                raise CheckpointError(
                    f"'{path}' has the format {meta.get('format')!r}, expected {FORMAT!r}: another version's."
                )
            arrays = {}
            for name in archive.namelist():
                if name != META:
                    with archive.open(name) as member:
                        arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, zlib.error) as error:
        if isinstance(error, CheckpointError):
            raise
        if name == META:
            raise CheckpointError(f"'{path}' is not a saved fit of vgp, or damaged; load an earlier copy.") from error
        leaf = name.removesuffix(".npy")
        raise CheckpointError(f"'{path}' is damaged at the leaf '{leaf}'; load an earlier copy.") from error
    return arrays, meta


# ---------------------------------------------------------------- pytrees


def flatten(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """The array leaves of a pytree by their paths; typed random keys become their data."""
    leaves, _ = tree_flatten_with_path(tree)
    return {prefix + keystr(path): _plain(leaf) for path, leaf in leaves if eqx.is_array(leaf)}


def restore(like: Any, arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """`like` with its array leaves replaced by the saved ones, refused by name where they do not fit."""
    leaves, treedef = tree_flatten_with_path(like)
    wanted = {prefix + keystr(path) for path, leaf in leaves if eqx.is_array(leaf)}
    for name in arrays:
        if name.startswith(prefix) and name not in wanted:
            raise CheckpointError(f"The saved leaf '{name}' has no place here; was the fit made with other arguments?")
    return jax.tree.unflatten(treedef, [_place(prefix + keystr(path), leaf, arrays) for path, leaf in leaves])


def _plain(leaf) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _place(name, leaf, arrays):
    if not eqx.is_array(leaf):
        return leaf
    if name not in arrays:
        raise CheckpointError(f"The leaf '{name}' is missing from the file; was the fit made with other arguments?")
    saved, expected = arrays[name], _plain(leaf)
    if saved.shape != expected.shape or saved.dtype != expected.dtype:
        raise CheckpointError(
            f"The saved leaf '{name}' is {saved.dtype}{list(saved.shape)}, expected "
            f"{expected.dtype}{list(expected.shape)}; was the fit made with other arguments?"
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(leaf))
    return jnp.asarray(saved)


# ---------------------------------------------------------------- modules


def describe(node: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A module as JSON: its class and fields by name. Its arrays go into `arrays`."""
    if eqx.is_array(node):
        arrays[name] = np.asarray(node)
        return {"array": name}
    if isinstance(node, eqx.Module):
        kind = type(node)
        fields = {
            field.name: getattr(node, field.name) for field in dataclasses.fields(kind) if hasattr(node, field.name)
        }
        described = {field: describe(value, f"{name}.{field}", arrays) for field, value in fields.items()}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": described}
    if isinstance(node, (tuple, list)):
        return {type(node).__name__: [describe(value, f"{name}[{i}]", arrays) for i, value in enumerate(node)]}
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"value": node}
    return {"foreign": type(node).__name__}


def rebuild(description: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The module that `describe` described."""
    if "array" in description:
        if description["array"] not in arrays:
            raise CheckpointError(f"The leaf '{description['array']}' is missing from the file.")
        return jnp.asarray(arrays[description["array"]])
    if "value" in description:
        return description["value"]
    for sequence in (tuple, list):
        if sequence.__name__ in description:
            return sequence(rebuild(item, arrays) for item in description[sequence.__name__])
    if "class" not in description:
        raise CheckpointError(
            f"The saved fit holds a {description.get('foreign')} that a file cannot carry; "
            "rebuild the family and pass it: vgp.load(path, target, family=family)."
        )
    kind = _lookup(description["class"])
    module, own = object.__new__(kind), {field.name for field in dataclasses.fields(kind)}
    for field, value in description["fields"].items():
        if field in own:  # an older file holds what belongs to the class as well
            object.__setattr__(module, field, rebuild(value, arrays))
    return module


def _lookup(name: str) -> type:
    # Only this package's own modules may be named in a file.
    package, _, attribute = name.partition(":")
    found = None
    if package.split(".")[0] == __name__.split(".")[0]:
        try:
            found = getattr(importlib.import_module(package), attribute, None)
        except ImportError:
            found = None
    if not (isinstance(found, type) and issubclass(found, eqx.Module)):
        raise CheckpointError(
            f"The saved fit holds the class '{name}', which is not one of vgp's; "
            "rebuild the family and pass it: vgp.load(path, target, family=family)."
        )
    return found
