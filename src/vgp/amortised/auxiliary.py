"""The auxiliary model of an inference network, r(ξ, f | x, z)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..auxiliary import AbstractAuxiliary, affine_posterior
from ..families.process import each_times, fold, unfold
from .networks import Dense


class Informed(eqx.Module):
    """r(ξ | x, z) = N(B g + network(h(x), g), diagonal), with h(x) the encoder's features, e = (z − μ(x)) / σ(x) and
    g = (e, G(x) e) for local outputs G(x) of rank `rank`.

    G(x) e is what a linear warp's exact posterior sees of z, so that r need not learn the product of two networks. B
    and the network's last layer start at zero and the scale at one, so that r starts as q(ξ) and the bound with
    next to no gap. With `factorised` r(f | x, ξ, z) is a Gaussian with a mean and a scale of its own, as in the paper;
    else it is q(f | ξ), which costs nothing where f is integrated out.
    """

    slope: Dense
    from_x: Dense
    from_g: Dense
    second: Dense
    last: Dense
    factorised: bool = eqx.field(static=True)
    projects: bool = eqx.field(static=True)

    def __init__(
        self,
        features: int,
        dim: int,
        latent_dim: int,
        width: int = 200,
        *,
        rank: int = 0,
        factorised: bool = False,
        key: PRNGKeyArray,
    ):
        keys = jr.split(key, 4)
        outputs = 2 * latent_dim + (2 * dim if factorised else 0)
        self.slope = Dense(dim + rank, latent_dim, zero=True, key=key)
        self.from_x = Dense(features, width, key=keys[0])
        self.from_g = Dense(dim + rank, width, key=keys[1])
        self.second = Dense(width, width, key=keys[2])
        self.last = Dense(width, outputs, zero=True, key=keys[3])
        self.factorised, self.projects = factorised, rank > 0

    def started(self, linear: Float[Array, "d c"], noise: Float[Array, " d"]) -> "Informed":
        """The same model, beginning at the posterior of e = linear ξ + noise ε."""
        slope, covariance = affine_posterior(linear, noise)
        d, c = linear.shape
        new = (
            self.slope.weight.at[:d].set(slope.T),
            self.last.bias.at[c : 2 * c].set(0.5 * jnp.log(jnp.diagonal(covariance))),
        )
        return eqx.tree_at(lambda r: (r.slope.weight, r.last.bias), self, new)

    def at(self, features: Float[Array, "b h"], outputs: Float[Array, "b r d"] | None = None) -> "InformedAt":
        """The model at given data; `outputs` G(x) where it has a rank."""
        return InformedAt(self, self.from_x(features), outputs)


class InformedAt(AbstractAuxiliary):
    """`Informed` at b datapoints."""

    model: Informed
    known: Float[Array, "b w"]  # what the first layer has from x
    outputs: Float[Array, "b r d"] | None

    def _seen(self, e):
        if self.outputs is None:
            return e
        b = self.known.shape[0]
        projected = each_times(fold(e, b), self.outputs.swapaxes(1, 2))
        return jnp.concatenate([e, unfold(projected, b)], axis=-1)

    def _corrections(self, g):
        b, c = self.known.shape[0], self.model.slope.bias.shape[0]
        hidden = jnp.tanh(unfold(fold(self.model.from_g(g), b) + self.known, b))
        hidden = jnp.tanh(self.model.second(hidden))
        given = self.model.last(hidden)
        return jnp.split(given, (c, 2 * c, 2 * c + (given.shape[-1] - 2 * c) // 2), axis=-1)

    def latent(self, e):
        g = self._seen(e)
        shift, stretch, _, _ = self._corrections(g)
        return dist.Normal(self.model.slope(g) + shift, jnp.exp(stretch)).to_event(1)

    def mapping(self, e, xi, prior):
        if not self.model.factorised:
            return prior
        _, _, shift, stretch = self._corrections(self._seen(e))
        shape = (*xi.shape[:-1], e.shape[-1])
        return dist.Normal(jnp.broadcast_to(shift, shape), jnp.broadcast_to(jnp.exp(stretch), shape)).to_event(1)


class Standard(AbstractAuxiliary):
    """r(ξ | x, z) = q(ξ): nothing is learned of ξ. Also where `linearised` begins without a network."""

    latent_dim: int = eqx.field(static=True)
    projects = False

    def at(self, features: Float[Array, "b h"], outputs: Float[Array, "b r d"] | None = None) -> "Standard":
        """The model at given data."""
        return self

    def latent(self, e):
        return dist.Normal(jnp.zeros((*e.shape[:-1], self.latent_dim), e.dtype), 1.0).to_event(1)

    def mapping(self, e, xi, prior):
        return prior

    def flips(self, e, xi):
        return jnp.zeros_like(e)


class NoLatent(AbstractAuxiliary):
    """r of a family without latent inputs: nothing to say, and it says so at no cost."""

    def latent(self, e):
        empty = jnp.zeros((*e.shape[:-1], 0), e.dtype)
        return dist.Normal(empty, 1.0).to_event(1)

    def mapping(self, e, xi, prior: Any):
        return prior

    def flips(self, e, xi):
        return jnp.zeros_like(e)
