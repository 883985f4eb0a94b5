"""Deep latent Gaussian models: Gaussian layers, the lowest of which gives the pixels."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.chain import ChainConditional
from ..amortised.networks import Dense, Trunk
from ..divergence import gaussian_kl
from .base import AbstractModel, bernoulli_log_prob

REACH = 6.0  # a layer's scale given the one above stays within e^±6


class GaussianLayer(eqx.Module):
    """p(z_l | z_{l+1}) = N(μ(z_{l+1}), σ(z_{l+1})²)."""

    trunk: Trunk
    loc: Dense
    log_scale: Dense

    def __init__(self, sizes: tuple[int, ...], dim: int, *, key: PRNGKeyArray):
        keys = jr.split(key, 3)
        self.trunk = Trunk(sizes, key=keys[0])
        self.loc = Dense(self.trunk.width, dim, key=keys[1])
        self.log_scale = Dense(self.trunk.width, dim, zero=True, key=keys[2])

    def __call__(self, above: Float[Array, "n e"]) -> dist.Independent:
        h = self.trunk(above)
        return dist.Normal(self.loc(h), jnp.exp(REACH * jnp.tanh(self.log_scale(h) / REACH))).to_event(1)


class DLGM(AbstractModel):
    """p(x | z₁) p(z₁ | z₂) … p(z_L), with z_L standard normal and Bernoulli pixels.

    `latents` are the numbers of variables of the layers and `hidden` the units of the network under each, both from
    the lowest up: `DLGM(784, (100, 50), ((200, 200), (100, 100)), key=key)`. z is all layers side by side, the lowest
    first. `mean` is the mean of each pixel, where the last bias starts.
    """

    dim: int = eqx.field(static=True)
    latents: tuple[int, ...] = eqx.field(static=True)
    trunk: Trunk
    logits: Dense
    layers: tuple[GaussianLayer, ...]

    def __init__(
        self,
        pixels: int,
        latents: tuple[int, ...],
        hidden: tuple[tuple[int, ...], ...],
        *,
        mean: Float[Array, " i"] | None = None,
        key: PRNGKeyArray,
    ):
        if len(latents) != len(hidden):
            raise ValueError(f"There must be one network per layer, got {len(hidden)} for {len(latents)} layers.")
        keys = jr.split(key, len(latents) + 1)
        self.dim, self.latents = sum(latents), tuple(latents)
        self.trunk = Trunk((latents[0], *hidden[0]), key=keys[0])
        self.logits = Dense(self.trunk.width, pixels, key=keys[1])
        if mean is not None:
            likely = jnp.clip(mean, 1e-3, 1 - 1e-3)
            self.logits = eqx.tree_at(lambda layer: layer.bias, self.logits, jnp.log(likely) - jnp.log1p(-likely))
        self.layers = tuple(
            GaussianLayer((above, *units), below, key=k)
            for above, units, below, k in zip(latents[1:], hidden[1:], latents[:-1], keys[2:], strict=True)
        )

    @property
    def observed(self):
        return self.logits.bias.shape[0]

    def _split(self, z):
        ends = [sum(self.latents[: i + 1]) for i in range(len(self.latents) - 1)]
        return jnp.split(z, ends, axis=-1)

    def _logits(self, z):
        return self.logits(self.trunk(z[..., : self.latents[0]]))

    def log_likelihood(self, x, z):
        return bernoulli_log_prob(self._logits(z), x)

    def log_prior(self, z):
        pieces = self._split(z)
        top = dist.Normal(0.0, 1.0).log_prob(pieces[-1]).sum(-1)
        below = (layer(above).log_prob(own) for layer, own, above in zip(self.layers, pieces, pieces[1:], strict=False))
        return sum(below, start=top)

    def divergence(self, conditional: Any, z):
        pieces, standard = self._split(z), dist.Normal(0.0, 1.0).expand((self.latents[-1],)).to_event(1)
        if not isinstance(conditional, ChainConditional):
            # Given ξ the layers are independent: each has its divergence, at the draws of the one above.
            normal = conditional.base_dist
            own = zip(self._split(normal.loc), self._split(normal.scale), strict=True)
            layers = [dist.Normal(loc, scale).to_event(1) for loc, scale in own]
            priors = [*(p(above) for p, above in zip(self.layers, pieces[1:], strict=True)), standard]
            return sum(gaussian_kl(q, p) for q, p in zip(layers, priors, strict=True))
        # From the bottom up, a layer was drawn before the one that its prior depends on: only the top has a divergence.
        *lower, top = conditional.layers(z)
        total = gaussian_kl(top, standard)
        for q, layer, own, above in zip(lower, self.layers, pieces, pieces[1:], strict=False):
            total = total - q.entropy() - layer(above).log_prob(own)
        return total

    def probabilities(self, z):
        return jax.nn.sigmoid(self._logits(z))

    def sample_prior(self, key, n):
        keys = jr.split(key, len(self.latents))
        pieces = [jr.normal(keys[0], (n, self.latents[-1]))]
        for layer, k in zip(reversed(self.layers), keys[1:], strict=True):
            pieces.insert(0, layer(pieces[0]).sample(k))
        return jnp.concatenate(pieces, axis=-1)
