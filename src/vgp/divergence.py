"""KL divergences between Gaussians, in closed form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.kl import kl_divergence


def gaussian_prior(prior: dist.Distribution | None) -> dist.Distribution | None:
    """The prior itself where it is Gaussian, else None."""
    base = prior.base_dist if isinstance(prior, dist.Independent) else prior
    return prior if isinstance(base, (dist.Normal, dist.MultivariateNormal)) else None


def gaussian_kl(first: dist.Independent, second: dist.Distribution) -> Float[Array, " n"]:
    """KL(N₁ ‖ N₂), N₁ factorised and N₂ factorised or with full covariance."""
    if isinstance(second, dist.MultivariateNormal):
        normal: Any = first.base_dist
        shape = jnp.broadcast_shapes(first.batch_shape, second.batch_shape)
        lower = jnp.asarray(second.scale_tril)
        factor = jnp.broadcast_to(lower, (*shape, *lower.shape[-2:]))
        first = dist.MultivariateNormal(normal.loc, scale_tril=jax.vmap(jnp.diag)(normal.scale))
        second = dist.MultivariateNormal(jnp.broadcast_to(second.loc, normal.loc.shape), scale_tril=factor)
    return kl_divergence(first, second)
