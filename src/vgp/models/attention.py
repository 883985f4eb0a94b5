"""Selective attention (Gregor et al. 2015): a grid of Gaussian filters on an image, to read it or to write on it.

A glimpse is a chain of small operations, each as long on a GPU as its launch. So all filters that one network places
are made at once, and images are read and written in one sum each.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

RAW = 5  # numbers that place a window: centre across and down, filter width, stride, intensity
# They are bent to stay between these, in logarithms from the third on. A window whose filters all lie beside the image,
# or between two pixels, would see nothing, and no gradient would bring it back.
LOWEST = np.array([-1.0, -1.0, -2.5, -4.0, -4.0])
HIGHEST = np.array([1.0, 1.0, 7.0, 0.0, 4.0])
MIDDLE, REACH = (HIGHEST + LOWEST) / 2, (HIGHEST - LOWEST) / 2
ROUND, PART = 0.5, 0.3  # of a ring: its radius in halves of an image, and how much of an image a window covers
WIDE = 16  # one window in so many sees all of an image, before the others go round
LEAST = 1e-8  # of the sum of a filter: one that lies outside of the image reads next to nothing


class Window(NamedTuple):
    """N filters across and N down. Those down have the sum one; those across also say how strongly they act."""

    across: Float[Array, "n k w"]
    down: Float[Array, "n k h"]


class Layout(NamedTuple):
    """What windows there are on an image of `shape` (height, width): N of each, and whether it reads or writes.

    Reading multiplies by the intensity, writing divides by it. Raw numbers of zero stand for a centre in the middle,
    filters of a pixel's width, a stride that covers the image and an intensity of one, all but for the bend.
    """

    shape: tuple[int, int]
    sizes: tuple[int, ...]
    reads: tuple[bool, ...]

    def windows(self, *raw: Float[Array, "n 5"]) -> list[Window]:
        """The windows at given raw numbers of each."""
        found, made, (height, width) = _filters(self, jnp.concatenate(raw, axis=-1)), [], self.shape
        for size in self.sizes:
            across, down, found = jnp.split(found, (size, 2 * size), axis=1)
            made.append(Window(across[..., :width], down[..., :height]))
        return made

    def table(self) -> dict[str, np.ndarray]:
        """Of every filter: its window, whether it goes down, the pixels there, its place in the window, its power."""
        columns = []
        for window, (size, reads) in enumerate(zip(self.sizes, self.reads, strict=True)):
            apart = (max(self.shape) - 1) / max(size - 1, 1) * (np.arange(size) - (size - 1) / 2)
            for down in (0, 1):
                power = 0.0 if down else 1.0 if reads else -1.0
                columns += [(window, down, self.shape[1 - down], place, power) for place in apart]
        names = ("window", "down", "pixels", "place", "power")
        return {name: np.array(column) for name, column in zip(names, zip(*columns, strict=True), strict=True)}


def window(raw: Float[Array, "n 5"], size: int, shape: tuple[int, int], *, reads: bool) -> Window:
    """One window of `size` × `size` filters."""
    return Layout(shape, (size,), (reads,)).windows(raw)[0]


def _filters(layout: Layout, raw: Float[Array, "n r"]) -> Float[Array, "n f p"]:
    # All filters over the pixels of the longer side, window by window, of each those across first.
    own, numbers = layout.table(), bent(raw)
    indices = [RAW * own["window"] + i for i in (own["down"], 2, 3, 4)]
    x, log_variance, log_stride, log_intensity = (numbers[:, index] for index in indices)
    means = (own["pixels"] + 1) / 2 * (x + 1) + own["place"] * jnp.exp(log_stride)
    away = np.arange(1, max(layout.shape) + 1) - means[..., None]
    weights = jnp.exp(-0.5 * jnp.exp(-log_variance)[..., None] * away**2)
    if layout.shape[0] != layout.shape[1]:
        weights = weights * (np.arange(max(layout.shape)) < own["pixels"][:, None])
    gain = jnp.exp(own["power"] * log_intensity)
    return weights * (gain / (jnp.sum(weights, axis=-1) + LEAST))[..., None]


def bent(raw: Float[Array, "n r"]) -> Float[Array, "n r"]:
    """What raw numbers stand for: the centre, and logarithms of filter variance, stride and intensity."""
    middle, reach = (np.tile(each, raw.shape[-1] // RAW) for each in (MIDDLE, REACH))
    return jnp.tanh((raw - middle) / reach) * reach + middle


def tiling(size: int, shape: tuple[int, int]) -> np.ndarray:
    """Raw numbers of a window that sees all of an image: a tile for each filter, two of its widths across.

    At raw = 0 two filters by two lie in the corners, where images are empty, and nothing tells them to move.
    """
    return _raw(_tiles(size, shape))


def ring(size: int, shape: tuple[int, int], glimpses: int) -> np.ndarray:
    """What to add to `tiling`, T × 5, for some windows that see all of the image and then one round of smaller ones.

    By itself DRAW finds some way over the image: with some seeds a round, with others a line from corner to corner,
    which is tens of nats worse on sketches. Chosen by benchmarks/paths.py.
    """
    wide = max(1, glimpses // WIDE)
    angle = 2 * np.pi * (np.arange(glimpses - wide) + 0.5) / max(glimpses - wide, 1)
    across, down = (np.concatenate([np.zeros(wide), ROUND * side(angle)]) for side in (np.cos, np.sin))
    return way(size, shape, across, down, np.where(np.arange(glimpses) < wide, 1.0, PART))


def way(size: int, shape: tuple[int, int], across: np.ndarray, down: np.ndarray, part: np.ndarray) -> np.ndarray:
    """What to add to `tiling` for windows at these centres, in halves of the image, that see such a part of it each."""
    wanted = np.tile(_tiles(size, shape), (len(part), 1))
    wanted[:, 0], wanted[:, 1] = across, down
    wanted[:, 2] += 2 * np.log(part)
    wanted[:, 3] += np.log(part)
    return _raw(wanted) - tiling(size, shape)


def _tiles(size, shape):
    # The numbers of a window that sees all of an image, after the bend.
    longest = max(shape)
    stride, usual = longest / size, (longest - 1) / max(size - 1, 1)
    return np.array([0.0, 0.0, 2 * np.log(stride / 2), np.log(stride / usual), 0.0])


def _raw(wanted):
    # What is bent to these numbers.
    return MIDDLE + REACH * np.arctanh(np.clip((wanted - MIDDLE) / REACH, -0.95, 0.95))


def _products(window: Window) -> Float[Array, "n k k h w"]:
    # Never written down: it is summed over as it is made.
    return window.down[:, :, None, :, None] * window.across[:, None, :, None, :]


def read(window: Window, *images: Float[Array, "n h w"]) -> list[Float[Array, "n k k"]]:
    """What the filters see of each image: F_y image F_xᵀ, intensity included."""
    products = _products(window)
    return [jnp.sum(products * image[:, None, None], axis=(-2, -1)) for image in images]


def write(window: Window, patch: Float[Array, "n k k"]) -> Float[Array, "n h w"]:
    """The patch laid on an image: F_yᵀ patch F_x, divided by the intensity."""
    return jnp.sum(_products(window) * patch[:, :, :, None, None], axis=(1, 2))
