"""A user's own images, from the arrays `train`, `valid` and `test` of an `.npz` file."""

import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from .splits import SHUFFLE, Splits, shuffled

KEYS = ("train", "valid", "test")


def read(path: Path, protocol: str) -> Splits:
    """The splits in the file; those for validation and test are cut from `train` where it has none of them."""
    raw = arrays(path, KEYS)
    if "train" not in raw:
        found = ", ".join(_keys(path)) or "none"
        raise ValueError(f"'{path}' must have an array 'train', and its keys are {found}; save it under that key.")
    for key, array in raw.items():
        _check(f"'{key}' in '{path}'", array)
    shapes = {key: array.shape[1:] for key, array in raw.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{shape} in '{key}'" for key, shape in shapes.items())
        raise ValueError(f"The images in '{path}' must all have one shape, got {listed}; save them alike.")
    convert = _bits if protocol == "fixed" else _grays
    parts = {key: convert(f"'{key}' in '{path}'", array).reshape(len(array), -1) for key, array in raw.items()}
    origin = f"{path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    missing = [key for key in KEYS if key not in parts]
    if missing:
        parts |= _cut(parts["train"], missing, path)
        origin += f"; {' and '.join(missing)} cut from train, a tenth each, by PCG64 with seed {SHUFFLE}"
    return Splits(**parts, shape=shapes["train"], origin=origin)


def arrays(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Those of the file's arrays that have one of these keys."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"'{path}' must be an .npz file, and is none or is damaged; write it with np.savez.")
    found, name = {}, f"'{path}'"
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in keys:
                if key in file:
                    name = f"'{key}' in '{path}'"
                    found[key] = np.asarray(file[key])
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{name} must be an array of numbers, and could not be read ({error}); write it again with np.savez."
        ) from error
    return found


def _keys(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as file:
        return list(file)


def _check(name: str, array: np.ndarray):
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got {array.dtype}; save pixels as uint8, bool or float.")
    if array.ndim not in (2, 3):
        raise ValueError(f"{name} must have shape (n, d) or (n, h, w), got {array.shape}; make each image a row.")
    if array.size == 0:
        raise ValueError(f"{name} is empty, with shape {array.shape}; save at least one image of one pixel.")
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.argwhere(np.isnan(array))[0][0])
        raise ValueError(f"{name} must hold numbers and is NaN at row {row}; drop the row, or fill it in.")


def _bits(name: str, array: np.ndarray) -> UInt8[np.ndarray, "..."]:
    other = array[(array != 0) & (array != 1)]
    if other.size:
        raise ValueError(
            f"{name} must hold zeros and ones under protocol 'fixed', got {other[0]}; "
            "threshold the pixels, or use protocol 'dynamic', which takes grays."
        )
    return array.astype(np.uint8)


def _grays(name: str, array: np.ndarray) -> UInt8[np.ndarray, "..."]:
    expected = f"{name} must hold floats in [0, 1] or integers from 0 to 255 under protocol 'dynamic'"
    if array.dtype.kind == "b":
        raise ValueError(f"{expected}, got bool; use protocol 'fixed' for images that are black and white.")
    top = 1 if array.dtype.kind == "f" else 255
    other = array[(array < 0) | (array > top)]
    if other.size:
        raise ValueError(f"{expected}, got {other[0]} in {array.dtype}; scale the pixels to that range.")
    if top == 255 and array.max() <= 1:
        raise ValueError(
            f"{expected}, got integers that are all 0 or 1, which would be black or almost so; "
            "use protocol 'fixed', or save probabilities as floats."
        )
    return (np.round(array * 255.0) if top == 1 else array).astype(np.uint8)


def _cut(train: UInt8[np.ndarray, "n d"], missing: list[str], path: Path) -> dict[str, np.ndarray]:
    n, size = len(train), max(1, len(train) // 10)
    if n <= len(missing):
        raise ValueError(
            f"'train' in '{path}' must have more than {len(missing)} images for {' and '.join(missing)} to be cut "
            f"from it, got {n}; save more images, or the missing arrays too."
        )
    *parts, rest = np.split(shuffled(n), [size * (i + 1) for i in range(len(missing))])
    return {"train": train[np.sort(rest)]} | {key: train[rows] for key, rows in zip(missing, parts, strict=True)}
