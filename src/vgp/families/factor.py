"""Variational factor analysis: the VGP with a linear kernel, s = I and t = W. Exact."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractExact, Draw
from .place import Place


class FactorAnalysis(AbstractExact):
    """z = loc + Wᵀ ξ + scale ε with ξ ~ N(0, I) in `latent_dim` dimensions: q(z) = N(loc, Wᵀ W + scale²).

    Appendix A of the paper names it a special case "without variational data"; it is the one with m = c,
    s = I and t = W, where the linear kernel leaves no variance at all.
    """

    dim: int = eqx.field(static=True)
    loc: Float[Array, " d"]
    loadings: Float[Array, "c d"]
    log_scale: Float[Array, " d"]
    place: Place | None

    def __init__(self, dim: int, latent_dim: int = 1, *, key: PRNGKeyArray):
        self.dim = dim
        self.loc = jnp.zeros(dim)
        self.loadings = 0.1 * jr.normal(key, (latent_dim, dim))
        self.log_scale = jnp.zeros(dim)
        self.place = None

    def _draw(self, key, n):
        xi_key, key = jr.split(key)
        xi = jr.normal(xi_key, (n, self.loadings.shape[0]), self.loc.dtype)
        noise = jnp.exp(self.log_scale) * jr.normal(key, (n, self.dim), self.loc.dtype)
        z = self.loc + xi @ self.loadings + noise
        return Draw(z, self._log_prob(z))

    def _log_prob(self, z):
        variance = jnp.exp(2 * self.log_scale)
        return dist.LowRankMultivariateNormal(self.loc, self.loadings.T, variance).log_prob(z)
