"""Scikit-learn's digits: 1,797 images of 8 x 8 pixels with values 0 to 16, shipped with that library."""

import numpy as np

from .splits import SHUFFLE, Splits, shuffled

TRAIN, VALID = 1397, 200  # and the last 200 are for the test


def read(protocol: str) -> Splits:
    """The digits in a fixed random order, cut in three; under "fixed" a pixel is one from the value 8 on."""
    from sklearn.datasets import load_digits  # slow to import, and needed nowhere else

    values, _ = load_digits(return_X_y=True)
    pixels = values >= 8 if protocol == "fixed" else np.round(values * 255 / 16)
    pixels = pixels.astype(np.uint8)[shuffled(len(values))]
    train, valid, test = np.split(pixels, [TRAIN, TRAIN + VALID])
    origin = f"scikit-learn's digits, shuffled by PCG64 with seed {SHUFFLE}"
    return Splits(train, valid, test, (8, 8), f"{origin}, one from 8 on" if protocol == "fixed" else origin)
