"""One step of training: a batch, the bound, its gradient, the optimiser. Seeds go side by side."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Int

from .. import loop, optimizers
from ..bounds import AbstractBound
from ..data import AbstractPixels
from ..gradients import AbstractGradient
from .rows import Learner, Row

ALIGNED = 64  # numbers: 256 bytes of single precision
SHUFFLE = 2**31 - 1  # folded into the key for an epoch's order, apart from the numbers of steps


@lru_cache
def adam(rate: float, clip: float | None = None) -> optax.GradientTransformation:
    """Adam as the published rows use it; `clip` bounds the norm of the gradient."""
    return optax.adam(rate) if clip is None else optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate))


def optimizer_of(row: Row) -> optax.GradientTransformation:
    """The row's optimiser."""
    return optimizers.rmsprop(row.rate) if row.optimizer == "rmsprop" else adam(row.rate, row.clip)


class Layout(NamedTuple):
    """Where the arrays of a tree lie in one vector: each at a multiple of `ALIGNED` numbers, with zeros between them.

    A product reads its weights where they lie. Where they do not begin at such an address a GPU's library may take a
    slower way, or have none.
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    def ravel(self, tree) -> Array:
        """The arrays of a tree in one vector."""
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate([jnp.pad(leaf, (0, -leaf.size % ALIGNED)) for leaf in leaves])

    def unravel(self, flat: Array) -> Any:
        """The inverse of `ravel`."""
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = [part for size in sizes for part in (size, -size % ALIGNED)]  # every array, and what follows it
        parts = jnp.split(flat, np.cumsum(pieces)[:-1])[::2]
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)


class Parameters(eqx.Module):
    """How a learner is put together from one flat vector: few arrays are few launches."""

    layout: Layout = eqx.field(static=True)
    static: Any = eqx.field(static=True)

    def __call__(self, flat: Array) -> Learner:
        return eqx.combine(self.layout.unravel(flat), self.static)


def taken_apart(learner: Learner) -> tuple[Array, Parameters]:
    """The learned numbers in one vector, and the way back."""
    arrays, static = eqx.partition(learner, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    layout = Layout(tree, tuple(leaf.shape for leaf in leaves))
    return layout.ravel(arrays), Parameters(layout, static)


class TrainStep(eqx.Module):
    """A step of every seed: `loop.run` with `turn` set to an epoch walks it."""

    pixels: AbstractPixels
    together: Parameters
    bound: AbstractBound
    gradient: AbstractGradient
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True)  # steps
    tail: bool = eqx.field(static=True)
    draws: int = eqx.field(static=True, default=1)  # of z for each image

    @property
    def per_epoch(self) -> int:
        """Steps in an epoch: full batches only; the order is drawn anew each time."""
        return len(self.pixels) // self.batch

    def begin(self, state: loop.State) -> Int[Array, "s t b"]:
        """The order of the data in this epoch, for every seed."""

        def order(key, step):
            key = jr.fold_in(jr.fold_in(key, SHUFFLE), step // self.per_epoch)
            rows = jr.permutation(key, len(self.pixels))
            return rows[: self.per_epoch * self.batch].reshape(self.per_epoch, self.batch)

        return jax.vmap(order)(state.key, state.step)

    def __call__(self, state: loop.State, order: Int[Array, "s t b"]):
        return jax.vmap(self._one)(state, order)

    def _one(self, state, order):
        data_key, bound_key = jr.split(jr.fold_in(state.key, state.step))
        x = self.pixels(order[state.step % self.per_epoch], data_key)
        weight = jnp.minimum((state.step + 1) / self.warmup, 1.0) if self.warmup else 1.0

        def objective(params):
            learner = self.together(params)
            target, family = learner.model.at(x, 1 / weight), learner.encoder.at(x, learner.model)
            return weight * jnp.mean(self.bound(target, family, bound_key, self.draws * self.batch, self.gradient))

        value, gradient = jax.value_and_grad(objective)(state.params)
        return loop.update(state, value, gradient, self.optimizer, self.tail)
