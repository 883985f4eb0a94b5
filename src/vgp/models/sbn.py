"""Sigmoid belief networks: layers of binary units, the lowest of which gives the pixels."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.distributions import constraints

from ..amortised.networks import Dense, Trunk
from ..meanfield import Factors
from .base import AbstractModel, bernoulli_log_prob

AT_ONCE = 2**26  # numbers that may be written down at once to follow flips through a network


class SBN(AbstractModel):
    """p(x | z₁) p(z₁ | z₂) … p(z_L), every unit z in {0, 1} and every pixel Bernoulli:

        logit p(z_L = 1) = a,   logit p(z_l = 1 | z_{l+1}) = (2 z_{l+1} − 1) W_l + b_l,
        logit p(x = 1 | z₁) = h(2 z₁ − 1) W₀ + b₀,

    h being the identity or a network of tanh units. The layers read 2z − 1, which is centred where the units are fair:
    the pixels then start at their means. `latents` are the numbers of units of the layers, from the lowest up, and
    `hidden` the tanh units between z₁ and the pixels, from z₁ on. The three networks of the literature are

        SBN(784, key=key)                       one layer, linear
        SBN(784, hidden=(200, 200), key=key)    one layer, non-linear
        SBN(784, (200, 200), key=key)           two layers, linear

    z holds the units as floats, all layers side by side, the lowest first. `mean` is the mean of each pixel, where b₀
    starts; the prior's logits a are learned and start at 0.
    """

    dim: int = eqx.field(static=True)
    latents: tuple[int, ...] = eqx.field(static=True)
    trunk: Trunk
    logits: Dense
    layers: tuple[Dense, ...]
    prior: Float[Array, " e"]

    def __init__(
        self,
        pixels: int,
        latents: tuple[int, ...] = (200,),
        hidden: tuple[int, ...] = (),
        *,
        mean: Float[Array, " i"] | None = None,
        key: PRNGKeyArray,
    ):
        if not latents:
            raise ValueError("A sigmoid belief network has at least one layer of units; pass latents such as (200,).")
        keys = jr.split(key, len(latents) + 1)
        self.dim, self.latents = sum(latents), tuple(latents)
        self.trunk = Trunk((latents[0], *hidden), key=keys[0])
        self.logits = Dense(self.trunk.width, pixels, key=keys[1])
        if mean is not None:
            likely = jnp.clip(mean, 1e-3, 1 - 1e-3)
            self.logits = eqx.tree_at(lambda layer: layer.bias, self.logits, jnp.log(likely) - jnp.log1p(-likely))
        pairs = zip(latents[1:], latents[:-1], keys[2:], strict=True)
        self.layers = tuple(Dense(above, below, key=k) for above, below, k in pairs)
        self.prior = jnp.asarray(np.zeros(latents[-1]), float)

    @property
    def observed(self):
        return self.logits.bias.shape[0]

    @property
    def supports(self) -> tuple[constraints.Constraint, ...]:
        """The support of each layer's units, the lowest first."""
        return (constraints.boolean,) * len(self.latents)

    @property
    def touches(self) -> Bool[np.ndarray, "t d"]:
        """Which coordinates of z each column of `log_terms` depends on."""
        return layered_touches(self.latents)

    def _logits(self, z):
        return self.logits(self.trunk(2 * z[..., : self.latents[0]] - 1))

    def _unit_logits(self, z):
        # The logit of every unit given the layer above, in the order of z.
        pieces = split_layers(z, self.latents)
        below = [layer(2 * above - 1) for layer, above in zip(self.layers, pieces[1:], strict=True)]
        return jnp.concatenate([*below, jnp.broadcast_to(self.prior, pieces[-1].shape)], axis=-1)

    def log_likelihood(self, x, z):
        return bernoulli_log_prob(self._logits(z), x)

    def log_prior(self, z):
        return bernoulli_log_prob(self._unit_logits(z), z)

    def log_terms(self, x: Float[Array, "n i"], z: Float[Array, "n d"]) -> Float[Array, "n t"]:
        """log p(x, z) as a sum of t = 1 + d terms, for gradients that leave out the terms a unit has no part in.

        Column 0 is log p(x | z₁), which depends on every unit of the lowest layer and on no other. Column 1 + i is
        log p(z_i | layer above), which depends on z_i and, unless z_i is in the top layer, on every unit of the layer
        above. `touches` says the same as a table.
        """
        logits = self._unit_logits(z)
        units = z * logits - jax.nn.softplus(logits)
        return jnp.concatenate([self.log_likelihood(x, z)[:, None], units], axis=-1)

    def divergence(self, conditional, z):
        """Σ_l KL(q(z_l | ξ) ‖ p(z_l | z_{l+1})) of independent units, in closed form given the layer above."""
        logits = _binary_logits(conditional)
        if logits is None:
            return None
        prior = self._unit_logits(z)
        each = jax.nn.sigmoid(logits) * (logits - prior) + jax.nn.softplus(prior) - jax.nn.softplus(logits)
        return jnp.sum(each, axis=-1)

    def flips(
        self, x: Float[Array, "n i"], z: Float[Array, "n d"], conditional: Any, weight: Float[Array, ""] | float = 1.0
    ) -> Float[Array, "n d"] | None:
        """What `weight` log p(x | z₁) − `divergence` gains where one unit is the other one, for each of them.

        A unit reaches what is below it through a linear layer, so that a flip moves logits l by its row of weights W:
        the gain is Σ_j x_j Δ_j − softplus(l_j + Δ_j) + softplus(l_j) with Δ = ∓2W. For the upper layers x is the mean
        of the units below under q. Through layers of tanh units each flip is followed, all of them side by side.
        """
        logits = _binary_logits(conditional)
        if logits is None:
            return None
        below = split_layers(jax.nn.sigmoid(logits), self.latents)[:-1]
        lowest, *units = (2 * own - 1 for own in split_layers(z, self.latents))
        pixels = self._followed(lowest, x) if self.trunk.layers else _flips(self.logits, lowest, x)
        upper = [_flips(*each) for each in zip(self.layers, units, below, strict=True)]
        return jnp.concatenate([weight * pixels, *upper], axis=-1)

    def _followed(self, signs: Float[Array, "n e"], x: Float[Array, "n i"]) -> Float[Array, "n e"]:
        # What log p(x | z₁) gains by each flip. The first layer is moved by a row of its weights.
        first, *others = self.trunk.layers
        still, rest = first(signs), eqx.tree_at(lambda trunk: trunk.layers, self.trunk, tuple(others))

        def log_likelihood(hidden):
            return bernoulli_log_prob(self.logits(rest(jnp.tanh(hidden))), x)

        def flipped(unit):
            sign, row = unit
            return log_likelihood(still - 2 * sign[:, None] * row)

        widest = max(x.shape[-1], *(layer.bias.shape[0] for layer in self.trunk.layers))
        found = jax.lax.map(flipped, (signs.T, first.weight), batch_size=max(1, AT_ONCE // (len(x) * widest)))
        return found.T - log_likelihood(still)[:, None]

    def probabilities(self, z):
        return jax.nn.sigmoid(self._logits(z))

    def sample_prior(self, key, n):
        keys = jr.split(key, len(self.latents))
        pieces = [_coins(keys[0], jnp.broadcast_to(self.prior, (n, self.latents[-1])))]
        for layer, k in zip(reversed(self.layers), keys[1:], strict=True):
            pieces.insert(0, _coins(k, layer(2 * pieces[0] - 1)))
        return jnp.concatenate(pieces, axis=-1)


def _binary_logits(conditional: Any) -> Float[Array, "n d"] | None:
    # Those of all units, if q makes them independent and binary.
    blocks = conditional.blocks if isinstance(conditional, Factors) else ()
    if not blocks or not all(isinstance(block, dist.BernoulliLogits) for block in blocks):
        return None
    return jnp.concatenate([block.logits for block in blocks], axis=-1)


def _flips(layer: Dense, signs: Float[Array, "n e"], x: Float[Array, "n i"]) -> Float[Array, "n e"]:
    logits = layer(signs)
    linear = -2 * signs * (x @ layer.weight.T)
    moved = logits[:, None] - 2 * signs[:, :, None] * layer.weight  # never written down: it is summed as it is made
    return linear - jnp.sum(jax.nn.softplus(moved) - jax.nn.softplus(logits)[:, None], axis=-1)


def _coins(key, logits):
    return jr.bernoulli(key, jax.nn.sigmoid(logits)).astype(logits.dtype)


def split_layers(z: Float[Array, "*n d"], latents: tuple[int, ...]) -> list[Float[Array, "*n e"]]:
    """The layers' own variables, the lowest first."""
    return jnp.split(z, np.cumsum(latents)[:-1].tolist(), axis=-1)


def layered_touches(latents: tuple[int, ...]) -> Bool[np.ndarray, "t d"]:
    """Which coordinates of z = (z₁, …, z_L) the terms log p(x | z₁), log p(z_i | layer above) depend on."""
    layer = np.repeat(np.arange(len(latents)), latents)
    units = np.eye(len(layer), dtype=bool) | (layer[:, None] + 1 == layer)
    return np.concatenate([layer[None] == 0, units])
