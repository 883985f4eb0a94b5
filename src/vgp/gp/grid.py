"""Variational inputs on a regular grid."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

REACH = 4.0  # a standard normal coordinate lies further out than this once in sixteen thousand draws


class Grid(eqx.Module):
    """`points` inputs along each latent dimension, evenly spaced from `low` to `high`: m is their product.

    `Grid(100)` is one line of a hundred; `Grid((100, 100, 100))` or `Grid(100, latent_dim=3)` has a million. Bounds are
    one number for all dimensions or one for each, and cover a standard normal by default. A grid is not learned.
    """

    points: tuple[int, ...] = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        points: int | Sequence[int],
        latent_dim: int | None = None,
        *,
        low: float | Sequence[float] = -REACH,
        high: float | Sequence[float] = REACH,
    ):
        several = [x for x in (points, low, high) if isinstance(x, (Sequence, np.ndarray))]
        c = len(several[0]) if latent_dim is None and several else 1 if latent_dim is None else latent_dim

        def each(value, kind):
            values = tuple(value) if isinstance(value, (Sequence, np.ndarray)) else (value,) * c
            if len(values) != c:
                raise ValueError(f"A Grid of {c} latent dimensions needs {c} {kind}, got {len(values)}.")
            return values

        self.points = tuple(int(n) for n in each(points, "numbers of points"))
        self.low = tuple(float(x) for x in each(low, "lower bounds"))
        self.high = tuple(float(x) for x in each(high, "upper bounds"))
        if c < 1 or min(self.points) < 2:
            raise ValueError(f"A Grid needs two points or more along every dimension, got {self.points}.")
        for a, b in zip(self.low, self.high, strict=True):
            if not a < b or not math.isfinite(b - a):
                raise ValueError(f"The bounds of a Grid must be finite and rising, got {a} to {b}.")

    @property
    def latent_dim(self) -> int:
        """c."""
        return len(self.points)

    @property
    def size(self) -> int:
        """m."""
        return math.prod(self.points)

    @property
    def axes(self) -> list[Float[np.ndarray, " n"]]:
        """The coordinates along each dimension."""
        return [np.linspace(a, b, n) for a, b, n in zip(self.low, self.high, self.points, strict=True)]

    def inputs(self) -> Float[Array, "m c"]:
        """All the points, the last coordinate fastest."""
        return jnp.asarray(np.stack(np.meshgrid(*self.axes, indexing="ij"), -1).reshape(-1, self.latent_dim), float)
