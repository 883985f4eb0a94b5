"""Named images in three splits, under one of two protocols of making them black and white."""

import os
from dataclasses import dataclass
from pathlib import Path

from . import digits, mnist, npz, sketch
from .pixels import AbstractPixels, Bits, Grays
from .splits import TEST, VALID, drawn_once

PROTOCOLS = ("fixed", "dynamic")
READERS = {  # by name, with the usual protocol
    "digits": (digits.read, "dynamic"),
    "mnist": (mnist.read, "fixed"),
    "sketch": (sketch.read, "fixed"),
}
NAMES = ", ".join(map(repr, READERS))


@dataclass(frozen=True)
class Images:
    """Images to train on, to choose settings by, and to report a figure on.

    A figure on `test` belongs to its `protocol`: those under "fixed" and "dynamic" must not be compared. Splits may
    be sorted, as MNIST's test images are by digit, so no part of one stands for the whole. The sketches of `valid` are
    in `train` too.
    """

    name: str  # "digits", "mnist", "sketch", or the stem of the file's name
    protocol: str  # "fixed", or "dynamic": each pixel of `train` is drawn anew at every call
    shape: tuple[int, ...]  # (h, w) of an image where known, else (d,)
    train: AbstractPixels
    valid: Bits
    test: Bits
    origin: str  # where the data came from, for the records


def load(source: str | os.PathLike | None = None, protocol: str | None = None) -> Images:
    """The images of a source: "digits", the default, "mnist", "sketch", or the path of an `.npz` file.

    Under protocol "fixed" every image is black and white once and for all. Under "dynamic" an image is gray, and is
    drawn black and white anew each time it is trained on; those for validation and test are drawn once, with seeds of
    their own, and are the same at every load. The default is "dynamic" for the digits, and "fixed" for all else.
    """
    if protocol not in (None, *PROTOCOLS):
        raise ValueError(
            f"The protocol must be 'fixed' or 'dynamic', got {protocol!r}; leave it out for the usual one of the data."
        )
    source = "digits" if source is None else source
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"The source must be {NAMES} or the path of an .npz file, got {type(source).__name__}; "
            "save arrays with np.savez and pass the file's path."
        )
    if isinstance(source, str) and source in READERS:
        name = source
        read, usual = READERS[name]
        protocol = protocol or usual
        splits = read(protocol)
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"The source must be {NAMES} or the path of an .npz file, got '{os.fspath(source)}', "
                f"which is no file (looked for '{path.absolute()}'); check the name."
            )
        name, protocol = path.stem, protocol or "fixed"
        splits = npz.read(path, protocol)
    if protocol == "fixed":
        train, valid, test = map(Bits.pack, (splits.train, splits.valid, splits.test))
        origin = splits.origin
    else:
        train = Grays(splits.train)
        valid, test = Bits.pack(drawn_once(splits.valid, VALID)), Bits.pack(drawn_once(splits.test, TEST))
        origin = f"{splits.origin}; valid and test drawn once by PCG64 with seeds {VALID} and {TEST}"
    return Images(name, protocol, splits.shape, train, valid, test, origin)
