"""Deep exponential families (Ranganath et al. 2015): layers of gamma or Poisson variables over counts."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.distributions import constraints

from ..noise import initial_normal
from .base import COUNTS, AbstractModel
from .sbn import layered_touches, split_layers

FLOOR = 1e-6  # added to every mean: a layer of Poisson variables may be zero throughout


class PositiveWeights(eqx.Module):
    """E[z_l | z_{l+1}] = z_{l+1} softplus(V): weights that are never negative.

    They start at log-normal draws, scaled so that variables of mean 1 above give the means `mean` below.
    """

    raw: Float[Array, "e d"]

    def __init__(self, above: int, mean: Float[np.ndarray, " d"], *, key: PRNGKeyArray):
        noise = np.exp(np.asarray(initial_normal(key, (above, len(mean))), float) - 0.5)
        self.raw = jnp.asarray(np.log(np.expm1(noise * np.maximum(mean, 1e-3) / above)), float)

    def __call__(self, above: Float[Array, "n e"]) -> Float[Array, "n d"]:
        return above @ jax.nn.softplus(self.raw) + FLOOR


class DEF(AbstractModel):
    """p(x | z₁) p(z₁ | z₂) … p(z_L) over counts x, with weights W_l = softplus(V_l), α the `shape`:

        z_L ~ Gamma(α, α),   x | z₁ ~ Poisson(z₁ W₀),
        z_l | z_{l+1} ~ Gamma(α, α / m) or Poisson(m), where m = z_{l+1} W_l is its mean.

    `latents` are the numbers of variables of the layers and `kinds` ("gamma" or "poisson") those of the layers under
    the top one, which is gamma; both from the lowest up: `DEF(1000, (50, 20, 10), ("poisson", "gamma"), key=key)`.
    α below 1 makes the gamma layers sparse. z is all layers side by side, the lowest first: gamma variables are
    positive, Poisson ones are counts as floats. `mean` is the mean of each count, where W₀ starts.
    """

    data = COUNTS
    dim: int = eqx.field(static=True)
    latents: tuple[int, ...] = eqx.field(static=True)
    kinds: tuple[str, ...] = eqx.field(static=True)
    shape: float = eqx.field(static=True)
    weights: PositiveWeights
    layers: tuple[PositiveWeights, ...]

    def __init__(
        self,
        counts: int,
        latents: tuple[int, ...],
        kinds: Sequence[str] = (),
        *,
        shape: float = 0.3,
        mean: Float[Array, " i"] | None = None,
        key: PRNGKeyArray,
    ):
        if len(kinds) != len(latents) - 1:
            raise ValueError(
                f"kinds says what each layer under the top one is: {len(latents) - 1} of them for {len(latents)} "
                f"layers, got {len(kinds)}."
            )
        if wrong := [kind for kind in kinds if kind not in ("gamma", "poisson")]:
            raise ValueError(f"A layer is 'gamma' or 'poisson', got {wrong[0]!r}.")
        if not shape > 0:
            raise ValueError(f"The shape of the gamma layers must be positive, got {shape}.")
        keys = jr.split(key, len(latents))
        self.dim, self.latents, self.shape = sum(latents), tuple(latents), float(shape)
        self.kinds = (*kinds, "gamma")
        start = np.ones(counts) if mean is None else np.asarray(mean, float)
        self.weights = PositiveWeights(latents[0], start, key=keys[0])
        pairs = zip(latents[1:], latents[:-1], keys[1:], strict=True)
        self.layers = tuple(PositiveWeights(above, np.ones(below), key=k) for above, below, k in pairs)

    @property
    def observed(self):
        return self.weights.raw.shape[1]

    @property
    def supports(self) -> tuple[constraints.Constraint, ...]:
        """The support of each layer's variables, the lowest first."""
        own = {"gamma": constraints.positive, "poisson": constraints.nonnegative_integer}
        return tuple(own[kind] for kind in self.kinds)

    @property
    def touches(self) -> Bool[np.ndarray, "t d"]:
        """Which coordinates of z each column of `log_terms` depends on."""
        return layered_touches(self.latents)

    def _layer(self, kind: str, mean) -> dist.Distribution:
        return dist.Poisson(mean) if kind == "poisson" else dist.Gamma(self.shape, self.shape / mean)

    def _unit_terms(self, z):
        # log p of every variable given the layer above, in the order of z.
        pieces = split_layers(z, self.latents)
        means = [layer(above) for layer, above in zip(self.layers, pieces[1:], strict=True)]
        means.append(jnp.ones_like(pieces[-1]))
        own = zip(self.kinds, means, pieces, strict=True)
        return jnp.concatenate([self._layer(kind, mean).log_prob(piece) for kind, mean, piece in own], axis=-1)

    def log_likelihood(self, x, z):
        return dist.Poisson(self.probabilities(z)).log_prob(x).sum(-1)

    def log_prior(self, z):
        return self._unit_terms(z).sum(-1)

    def log_terms(self, x: Float[Array, "n i"], z: Float[Array, "n d"]) -> Float[Array, "n t"]:
        """log p(x, z) as a sum of t = 1 + d terms: column 0 is log p(x | z₁), column 1 + i log p(z_i | layer above).

        Column 0 depends on every variable of the lowest layer, column 1 + i on z_i and, unless z_i is in the top layer,
        on every variable of the layer above. `touches` says the same as a table.
        """
        return jnp.concatenate([self.log_likelihood(x, z)[:, None], self._unit_terms(z)], axis=-1)

    def divergence(self, conditional, z):
        """None: bounds take log p(z) at the draws."""
        return None

    def probabilities(self, z):
        """The mean of each count given z: a rate, not a probability."""
        return self.weights(z[..., : self.latents[0]])

    def sample_prior(self, key, n):
        keys = jr.split(key, len(self.latents))
        pieces = [self._sample("gamma", keys[0], jnp.ones((n, self.latents[-1])))]
        for kind, layer, k in zip(reversed(self.kinds[:-1]), reversed(self.layers), keys[1:], strict=True):
            pieces.insert(0, self._sample(kind, k, layer(pieces[0])))
        return jnp.concatenate(pieces, axis=-1)

    def _sample(self, kind, key, mean):
        z = jnp.asarray(self._layer(kind, mean).sample(key), mean.dtype)
        # Sparse gamma draws may underflow to 0, where the density is infinite.
        return z if kind == "poisson" else jnp.maximum(z, jnp.finfo(z.dtype).tiny)
