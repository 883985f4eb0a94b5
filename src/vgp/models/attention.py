"""Selective attention (Gregor et al. 2015): a grid of Gaussian filters on an image, to read it or to write on it."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

RAW = 5  # numbers that place a window: centre across and down, filter width, stride, intensity
REACH = np.array([4.0, 4.0, 8.0, 6.0, 6.0])  # they are bent to stay within this, so that nothing overflows
LEAST = 1e-8  # of the sum of a filter: one that lies outside of the image reads next to nothing


class Window(NamedTuple):
    """N filters across and N down, each of sum one, and how strongly they act."""

    across: Float[Array, "n k w"]
    down: Float[Array, "n k h"]
    intensity: Float[Array, " n"]


def window(raw: Float[Array, "n 5"], size: int, shape: tuple[int, int]) -> Window:
    """The window of `size` × `size` filters on an image of (height, width) pixels.

    At raw = 0 it has its centre in the middle, filters of a pixel's width, and a stride that covers the image.
    """
    height, width = shape
    bent = jnp.asarray(REACH) * jnp.tanh(raw / REACH)
    x, y, log_variance, log_stride, log_intensity = jnp.split(bent, RAW, axis=-1)
    stride = (max(height, width) - 1) / max(size - 1, 1) * jnp.exp(log_stride)
    offsets = (jnp.arange(size) - (size - 1) / 2) * stride
    precision = jnp.exp(-log_variance)[..., None]

    def filters(centre, pixels):
        means = (pixels + 1) / 2 * (centre + 1) + offsets
        away = jnp.arange(1, pixels + 1) - means[..., None]
        weights = jnp.exp(-0.5 * precision * away**2)
        return weights / (jnp.sum(weights, axis=-1, keepdims=True) + LEAST)

    return Window(filters(x, width), filters(y, height), jnp.exp(log_intensity)[..., 0])


def tiling(size: int, shape: tuple[int, int]) -> np.ndarray:
    """Raw numbers of a window that sees all of an image: a tile for each filter, two of its widths across.

    At raw = 0 two filters by two lie in the corners, where images are empty, and nothing tells them to move.
    """
    longest = max(shape)
    stride, usual = longest / size, (longest - 1) / max(size - 1, 1)
    wanted = np.array([0.0, 0.0, 2 * np.log(stride / 2), np.log(stride / usual), 0.0])
    return REACH * np.arctanh(wanted / REACH)


def read(window: Window, images: Float[Array, "n g h w"]) -> Float[Array, "n g k k"]:
    """What the filters see of each of g images: intensity · F_y image F_xᵀ."""
    rows = jnp.einsum("nkw,nghw->nghk", window.across, images)
    return window.intensity[:, None, None, None] * jnp.einsum("njh,nghk->ngjk", window.down, rows)


def write(window: Window, patch: Float[Array, "n k k"]) -> Float[Array, "n h w"]:
    """The patch laid on an image: F_yᵀ patch F_x / intensity."""
    rows = jnp.einsum("njk,nkw->njw", patch, window.across)
    return jnp.einsum("njh,njw->nhw", window.down, rows) / window.intensity[:, None, None]
