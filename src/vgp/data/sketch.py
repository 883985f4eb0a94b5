"""The sketches of Eitz, Hays and Alexa (2012), 56 x 56: packed already, or made from the archive that they published.

`sketch56.npz` has the pixels of all 20,000, eight to a byte, in the order of the numbers in the archive's file names.
From the archive they are made by `black_and_white`, and must then be the same ones; they are kept in the cache, so
that it is done only once.

The recipe is that of the public notebook behind the published figures of DRAW on these data (Sketch.ipynb in
jbornschein/draw, with scikit-image of 2015). Three of its choices cannot be told from the recipe's words alone:

- The block of 16 x 16 has no middle. Ink reaches 8 pixels up and left, and 7 down and right, which is what SciPy does,
  and scikit-image since it builds on SciPy; before, it was the other way round. The packed images agree, if the
  published sketches are centred: they lie 0.026 of a small pixel (± 0.002) up and left of the middle on average, and
  half a pixel in 1111 / 56 is 0.025.
- Pixels are squares, and a sample is taken where the middle of the small one lies: at (k + ½) 1111 / 56 - ½. This is
  what scikit-image's `resize` does in all its versions.
- A sample weighs the four pixels around it, and was then cut down to an integer, so it is one where all four are ink.

The archive was not at hand when this was written: each step was tested on made-up images, and the whole only by the
sum that every load checks.
"""

import io
import itertools
import os
import tempfile
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, UInt8
from scipy import ndimage

from ..cache import cache_folder
from . import npz
from .files import folders, places, sha256
from .splits import SHUFFLE, Splits, shuffled

SHAPE = (56, 56)
DIM = 3136
NUM, NUM_TRAIN, NUM_VALID = 20_000, 18_000, 1_000  # and the last 2,000 are for the test
SIDE = 1111  # of a published image
BLOCK = 16
SHA256 = "97a85c0979f07735c153ab4ae2b3382d74ce397cdeceb67754357550530e5d57"  # of the packed rows
INK = 0.08673  # the part of all pixels that is one
PUBLISHED = "http://cybertron.cg.tu-berlin.de/eitz/projects/classifysketch/"
NPZ, ARCHIVE = "sketch56.npz", "sketches_png.zip"

Rows = UInt8[np.ndarray, "n bytes"]


def read(protocol: str) -> Splits:
    """The sketches in a fixed random order, cut in 18,000 and 2,000; the last 1,000 of the former are `valid` too.

    The paper trains on all 18,000. So the images of `valid` are also trained on, and a bound on them tells little of
    when to stop.
    """
    if protocol != "fixed":
        raise ValueError(
            f"The sketches are black and white as they are, so their protocol must be 'fixed', got '{protocol}'; "
            "leave it out."
        )
    rows, file = _rows()
    images = np.unpackbits(rows[shuffled(len(rows))], axis=1)
    train, test = np.split(images, [NUM_TRAIN])
    origin = (
        f"Sketch of Eitz, Hays and Alexa, from {file}, shuffled by PCG64 with seed {SHUFFLE}; "
        f"valid is the last {NUM_VALID} of train, and is trained on too"
    )
    return Splits(train, train[-NUM_VALID:], test, SHAPE, origin)


def _rows() -> tuple[Rows, str]:
    """The packed images, and the name of the file they are from; a packed file anywhere comes before an archive."""
    for folder in folders():
        packed = folder / NPZ
        if packed.is_file():
            return _from_npz(packed), packed.name
    for folder in folders():
        archive = folder / ARCHIVE
        if archive.is_file():
            return _from_archive(archive), archive.name
    raise FileNotFoundError(
        f"The sketches need {NPZ} or {ARCHIVE}, and neither is in {places()}; download {ARCHIVE} from {PUBLISHED} to "
        "one of these folders, or set VGP_DATA to the folder that has it."
    )


def _from_npz(path: Path) -> Rows:
    rows = npz.arrays(path, ("bits",)).get("bits")
    if rows is None or rows.dtype != np.uint8 or rows.shape != (NUM, DIM // 8):
        came = "none" if rows is None else f"{rows.dtype} of shape {rows.shape}"
        raise ValueError(
            f"'{path}' must have an array 'bits' of uint8 of shape {(NUM, DIM // 8)}, and has {came}; remove it, or "
            "replace it."
        )
    if (came := sha256(rows)) != SHA256:
        raise ValueError(
            f"The images in '{path}' must be the published ones, with sha256 {SHA256[:16]}, and have {came[:16]}; "
            f"remove it, and download {ARCHIVE} from {PUBLISHED} instead."
        )
    return rows


# ---------------------------------------------------------------- the archive as it was published


def _from_archive(path: Path) -> Rows:
    try:
        with zipfile.ZipFile(path) as archive:
            files = _in_order(archive.namelist())
            with ThreadPoolExecutor() as pool:  # decoding and filtering both let go of Python's lock
                rows = np.stack(list(pool.map(lambda file: _packed(file, archive.read(file)), files)))
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"'{path}' must be the archive of the sketches, and is damaged or another ({error}); download it again "
            f"from {PUBLISHED}."
        ) from error
    if (came := sha256(rows)) != SHA256:
        ink = np.unpackbits(rows).mean()
        raise ValueError(
            f"The images made from '{path}' must be the published ones, with sha256 {SHA256[:16]} and {INK:.5f} of the "
            f"pixels one, and have {came[:16]} and {ink:.5f}; download it again from {PUBLISHED}, or use {NPZ}."
        )
    with suppress(OSError):  # a cache that cannot be written to only costs time
        _keep(rows, files)
    return rows


def _in_order(names: list[str]) -> list[str]:
    """The images' names, each .../class/number.png, by their numbers, which must be all those from 1 on."""
    numbers = {}
    for name in names:
        path = Path(name)
        if path.suffix == ".png" and path.stem.isdecimal() and "__MACOSX" not in path.parts:
            numbers[int(path.stem)] = name
    if sorted(numbers) != list(range(1, NUM + 1)):
        raise ValueError(f"it must have the images 1.png to {NUM}.png, and has {len(numbers)} with a number")
    return [numbers[number] for number in sorted(numbers)]


def _packed(file: str, content: bytes) -> UInt8[np.ndarray, " bytes"]:
    try:
        from PIL import Image  # matplotlib brings it, but it is needed only here
    except ImportError as error:
        raise ImportError(f"Reading {ARCHIVE} needs Pillow; install it with `pip install pillow`.") from error
    try:
        with Image.open(io.BytesIO(content)) as image:
            gray = np.asarray(image.convert("L"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{file} is no image") from error
    if gray.shape != (SIDE, SIDE):
        raise ValueError(f"{file} must have {SIDE} x {SIDE} pixels, and has {gray.shape[0]} x {gray.shape[1]}")
    return np.packbits(black_and_white(gray))


def _keep(rows: Rows, files: list[str]):
    """Writes the packed file where it will be found the next time, whole or not at all."""
    short = ["/".join(Path(file).parts[-2:]) for file in files]
    classes, labels = np.unique([Path(file).parent.name for file in files], return_inverse=True)
    folder = cache_folder() / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sketch") as beside:
        whole = Path(beside) / NPZ
        np.savez_compressed(whole, bits=rows, labels=labels.astype(np.int16), classes=classes, files=np.array(short))
        os.replace(whole, folder / NPZ)


# ---------------------------------------------------------------- from gray to black and white, and small


def black_and_white(gray: UInt8[np.ndarray, "h w"]) -> Bool[np.ndarray, "56 56"]:
    """A published image, black on white, as the small image with ink as ones."""
    ink = gray <= gray.mean()
    return sampled(dilated(ink))


def dilated(ink: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """One where a pixel from 7 before to 8 after, in rows and in columns, is ink; outside of the image is none.

    SciPy mirrors the image at its edges, which makes no difference: ink that is mirrored reaches no pixel that it does
    not reach itself.
    """
    return ndimage.grey_dilation(ink, size=(BLOCK, BLOCK))


def sampled(ink: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "56 56"]:
    """One where all the pixels that a bilinear sample takes part of are ink. Nothing is smoothed before.

    Smoothing, as `resize` does by default in newer libraries, leaves no sample of a thin line at one: empty images.
    """
    around = (_around(length, small) for length, small in zip(ink.shape, SHAPE, strict=True))
    return np.logical_and.reduce([ink[np.ix_(rows, columns)] for rows, columns in itertools.product(*around)])


def _around(length: int, small: int) -> Int[np.ndarray, "2 small"]:
    """The last pixel before each sample's place, (k + ½) length / small - ½, and the first after; in whole numbers."""
    place = (2 * np.arange(small) + 1) * length - small  # in units of 1 / (2 small)
    return np.stack([place // (2 * small), -(-place // (2 * small))])
