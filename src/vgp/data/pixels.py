"""Rows of black-and-white images, kept small on the device and opened up one batch at a time."""

import abc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8, UInt32


class AbstractPixels(eqx.Module):
    """Images as rows of `dim` pixels. Call it with row numbers and a key for a batch of zeros and ones.

    To add a kind, keep what is stored in an array field, and give `dim`, `__len__`, `__call__` and `mean`. A call must
    trace: it is made inside of compiled loops, under `vmap` too.
    """

    dim: eqx.AbstractVar[int]

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abc.abstractmethod
    def __call__(self, rows: Int[Array, " b"], key: PRNGKeyArray) -> Float[Array, "b d"]:
        """The images of these rows, of zeros and ones; a row number that is too large gives the last row."""

    @abc.abstractmethod
    def mean(self) -> Float[Array, " d"]:
        """Each pixel's mean over all images."""


class Bits(AbstractPixels):
    """Images whose pixels are fixed, eight to a byte as `np.packbits` packs each row. The key is not used."""

    packed: UInt8[Array, "n bytes"] = eqx.field(converter=jnp.asarray)
    dim: int = eqx.field(static=True)

    def __check_init__(self):
        _check_rows("Bits", self.packed)
        if self.packed.shape[1] != -(-self.dim // 8):
            raise ValueError(
                f"{self.dim} pixels take {-(-self.dim // 8)} bytes a row, got {self.packed.shape[1]}; "
                "use Bits.pack for an array of zeros and ones."
            )

    @classmethod
    def pack(cls, images) -> "Bits":
        """From an array of zeros and ones, one image a row."""
        images = np.asarray(images)
        if images.ndim != 2 or images.size == 0:
            raise ValueError(f"Bits.pack takes an array of shape (n, d), got {images.shape}; make each image a row.")
        other = images[(images != 0) & (images != 1)]
        if other.size:
            raise ValueError(f"Bits.pack takes zeros and ones, got {other[0]}; use Grays for gray images.")
        return cls(np.packbits(images.astype(bool), axis=1), images.shape[1])

    def __len__(self):
        return self.packed.shape[0]

    def __call__(self, rows, key):
        return jnp.unpackbits(self.packed[rows], axis=-1, count=self.dim).astype(float)

    def mean(self):
        # Bit by bit, so that the images are never all unpacked at once.
        ones = [((self.packed >> shift) & 1).sum(0, dtype=jnp.uint32) for shift in range(7, -1, -1)]
        return jnp.stack(ones, axis=-1).reshape(-1)[: self.dim].astype(float) / len(self)


class Grays(AbstractPixels):
    """Gray images, 0 to 255: at every call each pixel is drawn anew, one with probability gray / 255.

    The draw takes 16 random bits, so the probability is that of the nearest multiple of 2⁻¹⁶; a pixel of 0 is never
    one, and a pixel of 255 always.
    """

    grays: UInt8[Array, "n d"]
    dim: int = eqx.field(static=True)

    def __init__(self, grays):
        self.grays = jnp.asarray(grays)
        _check_rows("Grays", self.grays)
        self.dim = self.grays.shape[1]

    def __len__(self):
        return self.grays.shape[0]

    def __call__(self, rows, key):
        grays = self.grays[rows]
        bits = jr.bits(key, grays.shape, jnp.uint16).astype(jnp.uint32)
        return (bits < thresholds(grays)).astype(float)

    def mean(self):
        return self.grays.sum(0, dtype=jnp.uint32).astype(float) / (255 * len(self))


def thresholds(grays: UInt8[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """How many of the 65,536 values of 16 bits make the pixel one: 65,536 gray / 255 to the nearest integer.

    65,536 = 257 · 255 + 1, so it is 257 gray, and one more from the middle on.
    """
    return 257 * grays.astype(jnp.uint32) + (grays >= 128).astype(jnp.uint32)


def _check_rows(name: str, array: Array):
    if array.dtype != jnp.uint8 or array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"{name} takes an array of uint8 of shape (n, d), got {array.dtype} of shape {array.shape}; "
            "make each image a row of bytes."
        )
