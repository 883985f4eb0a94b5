"""Training, validation and test images as they come from a source, and the random choices that are made once.

The choices are the same on every machine: they use only the raw stream of NumPy's PCG64, which no version changes.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

SHUFFLE, VALID, TEST = 0, 1, 2  # the seeds: of the order of the rows, of the draws for validation, and for the test


class Splits(NamedTuple):
    """Rows of pixels: zeros and ones under protocol "fixed", 0 to 255 under "dynamic"."""

    train: UInt8[np.ndarray, "n d"]
    valid: UInt8[np.ndarray, "m d"]
    test: UInt8[np.ndarray, "k d"]
    shape: tuple[int, ...]  # of one image
    origin: str


def shuffled(n: int) -> Int[np.ndarray, " n"]:
    """The numbers below n in a random order that is always the same."""
    return np.argsort(np.random.PCG64(SHUFFLE).random_raw(n), kind="stable")


def drawn_once(grays: UInt8[np.ndarray, "n d"], seed: int) -> Bool[np.ndarray, "n d"]:
    """Each pixel drawn with probability gray / 255, always the same for one seed."""
    return np.random.PCG64(seed).random_raw(grays.size).reshape(grays.shape) % 255 < grays
