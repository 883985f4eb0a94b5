"""DRAW (Gregor et al. 2015): an image is drawn on a canvas, glimpse by glimpse, each with its own latent variables."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.networks import Dense
from .attention import RAW, ring, tiling, window, write
from .base import AbstractModel, bernoulli_log_prob
from .lstm import LSTM, Memory


class Canvas(NamedTuple):
    """Where a drawing stands: the decoder's memory, and the logits of the pixels so far."""

    memory: Memory
    logits: Float[Array, "n i"]


class Drawing(eqx.Module):
    """n draws of z with what became of them, so that nothing of it has to be computed twice.

    `canvas` is the finished one; `process` is the encoder's q of every glimpse, glimpses × n rows.
    """

    z: Float[Array, "n d"]
    canvas: Float[Array, "n i"]
    process: Any

    def __len__(self):
        return len(self.z)


class DRAW(AbstractModel):
    """p(x | z₁ … z_T) with z_t standard normal: h_t = LSTM(h_{t−1}, z_t), and the canvas gains write(h_t) each time.

    `shape` is (height, width) of an image; `latents` the variables of a glimpse; `size` the filters of the writing
    window, across and down; `mean` the mean of each pixel, where the canvas starts. z is all glimpses side by side, the
    first one first. With `path="ring"` every glimpse adds learned numbers of its own to those of its windows, which
    begin with all of the image and then go round it; "none" is DRAW as published.
    """

    dim: int = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    glimpses: int = eqx.field(static=True)
    latents: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    cell: LSTM
    writer: Dense
    blank: Float[Array, " i"]
    path: Float[Array, "t 5"] | None

    def __init__(
        self,
        shape: tuple[int, int],
        glimpses: int = 64,
        latents: int = 100,
        units: int = 256,
        size: int = 5,
        *,
        mean: Float[Array, " i"] | None = None,
        normalised: bool = False,
        path: Literal["none", "ring"] = "none",
        key: PRNGKeyArray,
    ):
        if path not in ("none", "ring"):
            raise ValueError(f"path must be 'none' or 'ring', got {path!r}.")
        cell_key, write_key = jr.split(key)
        self.shape, self.glimpses, self.latents, self.size = shape, glimpses, latents, size
        self.dim = glimpses * latents
        self.cell = LSTM(latents, units, normalised=normalised, key=cell_key)
        first = np.concatenate([tiling(size, shape), np.zeros(size**2)])
        self.writer = Dense(units, RAW + size**2, key=write_key).starting(first)
        self.path = jnp.asarray(ring(size, shape, glimpses), float) if path == "ring" else None
        pixels = shape[0] * shape[1]
        likely = np.full(pixels, 0.5) if mean is None else np.clip(np.asarray(mean, float), 1e-3, 1 - 1e-3)
        self.blank = jnp.asarray(np.log(likely) - np.log1p(-likely), float)

    @property
    def observed(self):
        return self.shape[0] * self.shape[1]

    def begin(self, n: int) -> Canvas:
        """n blank canvases."""
        return Canvas(self.cell.begin(n), jnp.broadcast_to(self.blank, (n, len(self.blank))))

    def advance(self, canvas: Canvas, z: Float[Array, "n l"], place: Float[Array, " 5"] | None = None) -> Canvas:
        """The canvas after one more glimpse; `place` is its row of the path, where there is one."""
        memory = self.cell(canvas.memory, z)
        written = self.writer(memory.h)
        raw = written[:, :RAW] if place is None else written[:, :RAW] + place
        there = window(raw, self.size, self.shape, reads=False)
        added = write(there, written[:, RAW:].reshape(-1, self.size, self.size))
        return Canvas(memory, canvas.logits + added.reshape(canvas.logits.shape))

    def canvases(self, z: Float[Array, "n d"]) -> Float[Array, "t n i"]:
        """The logits after every glimpse."""

        def step(canvas, inputs):
            canvas = self.advance(canvas, *inputs)
            return canvas, canvas.logits

        each = z.reshape(len(z), self.glimpses, self.latents).swapaxes(0, 1)
        return jax.lax.scan(step, self.begin(len(z)), (each, self.path))[1]

    def _logits(self, z):
        return z.canvas if isinstance(z, Drawing) else self.canvases(z)[-1]

    def log_likelihood(self, x, z):
        return bernoulli_log_prob(self._logits(z), x)

    def log_prior(self, z):
        flat = z.z if isinstance(z, Drawing) else z
        return dist.Normal(0.0, 1.0).log_prob(flat).sum(-1)

    def divergence(self, conditional: Any, z):
        return conditional.divergence(z)

    def probabilities(self, z):
        return jax.nn.sigmoid(self._logits(z))

    def sample_prior(self, key, n):
        return jr.normal(key, (n, self.dim))
