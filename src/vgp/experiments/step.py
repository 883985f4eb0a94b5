"""One step of training: a batch, the bound, its gradient, the optimiser. Seeds go side by side."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import loop
from ..bounds import AbstractBound
from ..data import AbstractPixels
from ..families.base import frozen
from ..gradients import AbstractGradient
from ..models import AbstractModel
from .parameters import Parameters

SHUFFLE = 2**31 - 1  # folded into the key for an epoch's order, apart from the numbers of steps


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
    flip: float = eqx.field(static=True, default=0.0)  # the share of pixels that are turned over for the encoder
    dreams: float = eqx.field(static=True, default=0.0)  # the weight of images that the model draws, for the encoder

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

    def opened(self, state: loop.State) -> loop.State:
        """The state as the steps of an epoch pass it on."""
        return jax.vmap(self.together.opened)(state)

    def closed(self, state: loop.State) -> loop.State:
        """The inverse of `opened`."""
        return jax.vmap(self.together.closed)(state)

    def __call__(self, state: loop.State, order: Int[Array, "s t b"]):
        return jax.vmap(self._one)(state, order)

    def _one(self, state, order):
        data_key, bound_key = jr.split(jr.fold_in(state.key, state.step))
        x = self.pixels(order[state.step % self.per_epoch], data_key)
        seen = x
        if self.flip:
            # The bound is one for whatever q: noise in what the encoder sees keeps it from learning x by heart.
            seen = jnp.where(jr.bernoulli(jr.fold_in(data_key, 1), self.flip, x.shape), 1 - x, x)
        weight = jnp.minimum((state.step + 1) / self.warmup, 1.0) if self.warmup else 1.0

        def bound(model, encoder, x, seen, key):
            target, family = model.at(x, 1 / weight), encoder.at(seen, model)
            return weight * jnp.mean(self.bound(target, family, key, self.draws * self.batch, self.gradient))

        def objective(params):
            learner = self.together(params)
            value = bound(learner.model, learner.encoder, x, seen, bound_key)
            if not self.dreams:
                return value, value
            # Of what the model draws there is no end, and no encoder can learn it by heart; the model learns nothing.
            model = frozen(learner.model)
            drawn = _drawn(model, jr.fold_in(data_key, 2), self.batch)
            dreamt = bound(model, learner.encoder, drawn, drawn, jr.fold_in(bound_key, 1))
            return value + self.dreams * dreamt, value

        (_, value), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
        return loop.update(state, value, gradient, self.optimizer, self.tail)


def _drawn(model: AbstractModel, key: PRNGKeyArray, n: int) -> Float[Array, "n i"]:
    prior_key, key = jr.split(key)
    likely = model.probabilities(model.sample_prior(prior_key, n))
    return jr.bernoulli(key, likely).astype(likely.dtype)
