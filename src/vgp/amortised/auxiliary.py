"""The auxiliary model of an inference network, r(ξ, f | x, z)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..auxiliary import AbstractAuxiliary
from ..families.process import fold, unfold
from .networks import Dense


class Informed(eqx.Module):
    """r(ξ | x, z) = N(B e + network(h(x), e), diagonal) with e = (z − μ(x)) / σ(x) and h(x) the encoder's features.

    B and the network's last layer start at zero and the scale at one, so that r starts as q(ξ) and the bound with
    next to no gap. With `factorised` r(f | x, ξ, z) is a Gaussian with a mean and a scale of its own, as in the paper;
    else it is q(f | ξ), which costs nothing where f is integrated out.
    """

    slope: Dense
    from_x: Dense
    from_e: Dense
    second: Dense
    last: Dense
    factorised: bool = eqx.field(static=True)

    def __init__(
        self, features: int, dim: int, latent_dim: int, width: int = 200, *, factorised: bool = False, key: PRNGKeyArray
    ):
        keys = jr.split(key, 4)
        outputs = 2 * latent_dim + (2 * dim if factorised else 0)
        self.slope = Dense(dim, latent_dim, zero=True, key=key)
        self.from_x = Dense(features, width, key=keys[0])
        self.from_e = Dense(dim, width, key=keys[1])
        self.second = Dense(width, width, key=keys[2])
        self.last = Dense(width, outputs, zero=True, key=keys[3])
        self.factorised = factorised

    def at(self, features: Float[Array, "b h"]) -> "InformedAt":
        """The model at given data."""
        return InformedAt(self, self.from_x(features))


class InformedAt(AbstractAuxiliary):
    """`Informed` at b datapoints."""

    model: Informed
    known: Float[Array, "b w"]  # what the first layer has from x

    def _corrections(self, e):
        b, c = self.known.shape[0], self.model.slope.bias.shape[0]
        hidden = jnp.tanh(unfold(fold(self.model.from_e(e), b) + self.known, b))
        hidden = jnp.tanh(self.model.second(hidden))
        given = self.model.last(hidden)
        return jnp.split(given, (c, 2 * c, 2 * c + (given.shape[-1] - 2 * c) // 2), axis=-1)

    def latent(self, e):
        shift, stretch, _, _ = self._corrections(e)
        return dist.Normal(self.model.slope(e) + shift, jnp.exp(stretch)).to_event(1)

    def mapping(self, e, xi, prior):
        if not self.model.factorised:
            return prior
        _, _, shift, stretch = self._corrections(e)
        shape = (*xi.shape[:-1], e.shape[-1])
        return dist.Normal(jnp.broadcast_to(shift, shape), jnp.broadcast_to(jnp.exp(stretch), shape)).to_event(1)


class NoLatent(AbstractAuxiliary):
    """r of a family without latent inputs: nothing to say, and it says so at no cost."""

    def latent(self, e):
        empty = jnp.zeros((*e.shape[:-1], 0), e.dtype)
        return dist.Normal(empty, 1.0).to_event(1)

    def mapping(self, e, xi, prior: Any):
        return prior
