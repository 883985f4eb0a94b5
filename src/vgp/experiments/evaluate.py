"""What a trained model is worth: the bound with its sandwich, and the importance-sampled log p(x)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from ..bounds import Importance, draw, log_q_sandwich
from ..data import AbstractPixels
from ..families.base import AbstractHierarchical
from ..gradients import VALUES
from .rows import Learner

ROWS = 200_000  # draws at a time on an accelerator,
CPU_ROWS = 2_000  # and on a CPU


class Figure(NamedTuple):
    """A mean over images, in nats, with its standard error."""

    value: float
    stderr: float


class Bound(NamedTuple):
    """−ELBO per image: with log q from above (a bound on −log p), and from below; None where log q has no two sides."""

    upper: Figure
    lower: Figure | None


def _rows(learner: Learner) -> int:
    return (CPU_ROWS if jax.default_backend() == "cpu" else ROWS) // learner.encoder.stages


@eqx.filter_jit
def _bounds(learner: Learner, pixels: AbstractPixels, rows, key, draws: int, inner: int, outer: int):
    # (2, b): the two sides of the bound of each image, means over `draws`.
    x = pixels(rows, key)
    target, family = learner.model.at(x), learner.encoder.at(x, learner.model)
    b = len(rows)

    def one(key):
        if outer > 1 or not isinstance(family, AbstractHierarchical):
            value = Importance(inner=inner, outer=outer, split=False)(target, family, key, b, VALUES)
            return jnp.stack([value, jnp.full_like(value, jnp.nan)])
        z, y, _, inner_key = draw(family.view(), key, b)
        sides = log_q_sandwich(family.view(), z, y, inner_key, max(inner, 1))
        return target.log_probs(z) - jnp.stack([sides.upper, sides.lower])

    return jnp.mean(jax.lax.map(one, jr.split(key, draws)), axis=0)


def bound(
    learner: Learner, pixels: AbstractPixels, key: PRNGKeyArray, *, draws: int = 16, inner: int = 64, outer: int = 1
) -> Bound:
    """The bound: `outer` is an IWAE's k, `inner` the K of the evaluation."""
    upper, lower = map(_figure, bounds(learner, pixels, key, draws=draws, inner=inner, outer=outer))
    return Bound(upper, None if np.isnan(lower.value) else lower)


def bounds(
    learner: Learner, pixels: AbstractPixels, key: PRNGKeyArray, *, draws: int = 16, inner: int = 64, outer: int = 1
) -> Float[np.ndarray, "2 n"]:
    """The two sides of the bound on log p(x), for every image."""
    batch = max(1, min(len(pixels), _rows(learner) // (outer * (1 + inner if learner.encoder.latent_dim else 1))))
    return np.concatenate(
        [
            np.asarray(_bounds(learner, pixels, rows, jr.fold_in(key, i), draws, inner, outer))[:, :keep]
            for i, (rows, keep) in enumerate(_batches(len(pixels), batch))
        ],
        axis=1,
    )


@eqx.filter_jit
def _estimates(learner: Learner, pixels: AbstractPixels, rows, key, turns: int, each: int, inner: int):
    # log 1/M Σ p(x, z_j) / q̂(z_j) of each image, M = turns * each, summed as it comes.
    x = pixels(rows, key)
    target, family = learner.model.at(x), learner.encoder.at(x, learner.model)

    def turn(total, key):
        values = Importance(inner=inner, split=False)(target, family, key, each * len(rows), VALUES)
        return jnp.logaddexp(total, logsumexp(values.reshape(each, -1), axis=0)), None

    start = jnp.full(len(rows), -jnp.inf)
    total, _ = jax.lax.scan(turn, start, jr.split(key, turns))
    return total - jnp.log(turns * each)


def estimate(
    learner: Learner, pixels: AbstractPixels, key: PRNGKeyArray, *, samples: int = 5000, inner: int = 0
) -> Figure:
    """−log p(x) by importance sampling with q as the proposal: an upper bound in the mean, tight as samples grow."""
    return _figure(estimates(learner, pixels, key, samples=samples, inner=inner))


def estimates(
    learner: Learner, pixels: AbstractPixels, key: PRNGKeyArray, *, samples: int = 5000, inner: int = 0
) -> Float[np.ndarray, " n"]:
    """log p(x) by importance sampling, for every image."""
    each = next(size for size in (50, 20, 10, 5, 4, 2, 1) if samples % size == 0)
    batch = max(1, min(len(pixels), _rows(learner) // (each * (1 + inner))))
    values = [
        np.asarray(_estimates(learner, pixels, rows, jr.fold_in(key, i), samples // each, each, inner))[:keep]
        for i, (rows, keep) in enumerate(_batches(len(pixels), batch))
    ]
    return np.concatenate(values)


def _batches(total: int, batch: int):
    # Equal batches, so that one compilation serves them all; the last is filled up with its first row.
    for start in range(0, total, batch):
        rows = np.arange(start, start + batch)
        yield jnp.asarray(np.where(rows < total, rows, start)), min(batch, total - start)


def _figure(values: Float[Array, " n"] | np.ndarray) -> Figure:
    # Nats are positive here, and lower is better.
    values = -np.asarray(values, np.float64)
    return Figure(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0)
