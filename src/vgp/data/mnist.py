"""MNIST from files that the user has, checked against the published pixels whatever the files' format."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from . import npz
from .files import folders, places, sha256
from .splits import Splits

SHAPE = (28, 28)
DIM = 784
NUM_VALID = 2000  # under "dynamic" the last of the 60,000 training images are for validation
# Of the rows' bytes: eight pixels to a byte under "fixed", one under "dynamic".
SHA256 = {
    "fixed": {
        "train": "727146c35424b019f3e350e1e69faa05644a0abaf787e3f4e1a9632220a13906",
        "valid": "a256ac44ae26be720fad8616a05ed6ecfd1619930d9a208379bb2a4405df5b6d",
        "test": "9fcd8da6f0fdf09b2ba30fe63a0bb784042a0de82563172530229b983e294ff2",
    },
    "dynamic": {
        "train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    },
}
PUBLISHED = {
    "fixed": "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/",
    "dynamic": "https://storage.googleapis.com/cvdf-datasets/mnist/",
}
ORIGIN = {
    "fixed": "MNIST as binarized by Salakhutdinov and Murray",
    "dynamic": "MNIST of LeCun, Cortes and Burges, gray",
}
NPZ = {"fixed": "binarized_mnist.npz", "dynamic": "mnist.npz"}
# The files as they were published; each may still be compressed, with .gz after its name.
ORIGINALS = {
    "fixed": {split: f"binarized_mnist_{split}.amat" for split in ("train", "valid", "test")},
    "dynamic": {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"},
}

Rows = dict[str, UInt8[np.ndarray, "n bytes"]]  # by split


def read(protocol: str) -> Splits:
    """MNIST from the first folder that has its files."""
    for folder in folders():
        single = folder / NPZ[protocol]
        if single.is_file():
            return _splits(_from_npz(single, protocol), protocol, single.name)
        found = {split: _plain_or_zipped(folder / name) for split, name in ORIGINALS[protocol].items()}
        files = {split: path for split, path in found.items() if path is not None}
        if len(files) == len(found):
            parse = _amat if protocol == "fixed" else _idx
            rows = {split: _parsed(path, parse) for split, path in files.items()}
            return _splits(rows, protocol, " and ".join(path.name for path in files.values()))
    originals = " and ".join(ORIGINALS[protocol].values())
    raise FileNotFoundError(
        f"MNIST under protocol '{protocol}' needs {NPZ[protocol]}, or {originals}, and they are not in {places()}; "
        f"download the originals from {PUBLISHED[protocol]} to such a folder, or set VGP_DATA to the one that has them."
    )


def _splits(rows: Rows, protocol: str, files: str) -> Splits:
    for split, expected in SHA256[protocol].items():
        came = sha256(rows[split])
        if came != expected:
            raise ValueError(
                f"The {split} images in {files} must be the published ones, with sha256 {expected[:16]}, and have "
                f"{came[:16]}; download them again from {PUBLISHED[protocol]}."
            )
    origin = f"{ORIGIN[protocol]}, from {files}"
    if protocol == "fixed":
        parts = {split: np.unpackbits(packed.reshape(-1, DIM // 8), axis=1) for split, packed in rows.items()}
        return Splits(**parts, shape=SHAPE, origin=origin)
    train, valid = np.split(rows["train"].reshape(-1, DIM), [-NUM_VALID])
    return Splits(
        train, valid, rows["test"].reshape(-1, DIM), SHAPE, f"{origin}; the last {NUM_VALID} of train are valid"
    )


def _from_npz(path: Path, protocol: str) -> Rows:
    splits = tuple(SHA256[protocol])
    found = npz.arrays(path, (*splits, *(f"x_{split}" for split in splits)))
    rows = {split: found.get(split, found.get(f"x_{split}")) for split in splits}  # Keras has x_train, x_test
    kept = {
        split: array.reshape(len(array), -1)
        for split, array in rows.items()
        if array is not None and array.dtype == np.uint8 and array.ndim > 1 and len(array)
    }
    if len(kept) < len(splits):
        wrong = ", ".join(f"'{split}'" for split in splits if split not in kept)
        raise ValueError(
            f"'{path}' must have rows of uint8 as {', '.join(splits)}, and has no such {wrong}; replace it."
        )
    return kept


# ---------------------------------------------------------------- the files as they were published


def _plain_or_zipped(path: Path) -> Path | None:
    zipped = path.with_name(f"{path.name}.gz")
    return path if path.is_file() else zipped if zipped.is_file() else None


def _parsed(path: Path, parse: Callable[[bytes], np.ndarray]) -> UInt8[np.ndarray, "n bytes"]:
    try:
        return parse(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"'{path}' must be a file of MNIST's images, and is damaged ({error}); replace it.") from error


def _amat(text: bytes) -> UInt8[np.ndarray, "n bytes"]:
    """Lines of 784 zeros and ones with spaces between them."""
    characters = np.frombuffer(text, np.uint8)
    pixels = characters[characters > ord(" ")] - ord("0")
    return np.packbits(pixels.reshape(-1, DIM), axis=1)


def _idx(content: bytes) -> UInt8[np.ndarray, "n d"]:
    """Four big-endian integers, 2051 and the three lengths, and then the pixels."""
    kind, n, height, width = (int(number) for number in np.frombuffer(content, ">i4", count=4))
    if kind != 2051:
        raise ValueError(f"it begins with {kind}, not 2051")
    return np.frombuffer(content, np.uint8, offset=16).reshape(n, height * width)
