"""The distribution of independent variables of several kinds, with what estimators of gradients ask of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float


class Factors(eqx.Module):
    """Blocks of independent variables side by side: each a numpyro distribution whose last batch axis they are.

    A draw of a block that cannot be reparameterised carries no gradient; `each` has its score.
    """

    blocks: tuple[Any, ...]

    @staticmethod
    def of(q: Any) -> "Factors":
        """Any factorised distribution as factors."""
        return q if isinstance(q, Factors) else Factors((q.base_dist if isinstance(q, dist.Independent) else q,))

    @property
    def sizes(self) -> list[int]:
        """How many variables each block has."""
        return [block.batch_shape[-1] for block in self.blocks]

    @property
    def event_shape(self) -> tuple[int]:
        return (sum(self.sizes),)

    @property
    def reparameterised(self) -> list[bool]:
        """Whether a gradient can follow the draws of each block."""
        return [bool(block.has_rsample) for block in self.blocks]

    @property
    def scored(self) -> np.ndarray:
        """The variables that need a score, by number."""
        kinds = zip(self.sizes, self.reparameterised, strict=True)
        return np.flatnonzero(np.concatenate([np.full(size, not path) for size, path in kinds]))

    def split(self, z: Float[Array, "*n d"]) -> list[Float[Array, "*n e"]]:
        """The variables of each block."""
        return jnp.split(z, np.cumsum(self.sizes)[:-1].tolist(), axis=-1)

    def sample(self, key, shape: tuple[int, ...] = ()) -> Float[Array, "*k d"]:
        keys = jr.split(key, len(self.blocks))
        drawn = [_drawn(block, k, shape) for block, k in zip(self.blocks, keys, strict=True)]
        return jnp.concatenate(drawn, axis=-1)

    def each(self, z: Float[Array, "*n d"]) -> Float[Array, "*k d"]:
        """log q of every variable."""
        pairs = zip(self.blocks, self.split(z), strict=True)
        return jnp.concatenate([_log_prob(block, own) for block, own in pairs], axis=-1)

    def log_prob(self, z: Float[Array, "*n d"]) -> Float[Array, "*k"]:
        return jnp.sum(self.each(z), axis=-1)

    def slopes(self, z: Float[Array, "*n d"]) -> Float[Array, "*k d"]:
        """How log q of every variable changes as the numbers that it depends on rise together."""

        def along(block, own):
            if isinstance(block, dist.CategoricalLogits):  # which do not change as all rise: as that of z's class does
                return -jnp.expm1(_log_prob(block, own))
            arrays, rest = eqx.partition(block, eqx.is_inexact_array)
            ones = jax.tree.map(jnp.ones_like, arrays)
            return jax.jvp(lambda arrays: _log_prob(eqx.combine(arrays, rest), own), (arrays,), (ones,))[1]

        pairs = zip(self.blocks, self.split(z), strict=True)
        return jnp.concatenate([along(block, own) for block, own in pairs], axis=-1)


def _drawn(block, key, shape):
    if isinstance(block, dist.Gamma):
        # Draws of small shapes are often too small for a float, and have no gradient there. So in logarithms, and as a
        # draw of a larger shape times U^(1 / shape).
        keys, own, shape = jr.split(key), jnp.asarray(block.concentration), (*shape, *block.batch_shape)
        log_z = jr.loggamma(keys[0], own + 1, shape) - jr.exponential(keys[1], shape) / own - jnp.log(block.rate)
        return jnp.exp(jnp.maximum(log_z, 1 + jnp.log(jnp.finfo(log_z.dtype).tiny)))
    z = block.sample(key, shape)
    if block.has_rsample:
        return _inside(block, z)
    return jax.lax.stop_gradient(z.astype(jnp.zeros(()).dtype))


def _inside(block, z):
    # A draw that has been rounded to the edge of its support would have an infinite density.
    tiny, eps = jnp.finfo(z.dtype).tiny, jnp.finfo(z.dtype).eps
    if isinstance(block, dist.Beta):
        return jnp.clip(z, eps, 1 - eps)
    if isinstance(block, (dist.Exponential, dist.LogNormal)):
        return jnp.maximum(z, tiny)
    return z


def _log_prob(block, z):
    if block.support.is_discrete:
        z = jax.lax.stop_gradient(z)
    if isinstance(block, dist.CategoricalLogits):
        k = z.astype(jnp.int32)
        inside = (k >= 0) & (k < jnp.shape(block.logits)[-1])  # for counts there is something beyond
        return jnp.where(inside, block.log_prob(jnp.where(inside, k, 0)), -jnp.inf)
    return block.log_prob(z)
