"""The Gaussian families: mean-field and full rank. Both exact."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractExact, Draw
from .place import Place


class MeanField(AbstractExact):
    """q(z) = Π_i N(z_i; loc_i, scale_i²)."""

    dim: int = eqx.field(static=True)
    loc: Float[Array, " d"]
    log_scale: Float[Array, " d"]
    place: Place | None

    def __init__(self, dim: int, *, key: PRNGKeyArray):
        self.dim = dim
        self.loc = 0.1 * jr.normal(key, (dim,))
        self.log_scale = jnp.zeros(dim)
        self.place = None

    @property
    def distribution(self) -> dist.Distribution:
        return dist.Normal(self.loc, jnp.exp(self.log_scale)).to_event(1)

    def _draw(self, key, n):
        z = self.distribution.sample(key, (n,))
        return Draw(z, self._log_prob(z))

    def _log_prob(self, z):
        return self.distribution.log_prob(z)


class FullRank(AbstractExact):
    """q(z) = N(loc, L Lᵀ), L lower triangular with a positive diagonal."""

    dim: int = eqx.field(static=True)
    loc: Float[Array, " d"]
    log_diagonal: Float[Array, " d"]
    below: Float[Array, "d d"]
    place: Place | None
    correlates: ClassVar[bool] = True

    def __init__(self, dim: int, *, key: PRNGKeyArray):
        self.dim = dim
        self.loc = 0.1 * jr.normal(key, (dim,))
        self.log_diagonal, self.below = jnp.zeros(dim), jnp.zeros((dim, dim))
        self.place = None

    @property
    def factor(self) -> Float[Array, "d d"]:
        """L."""
        return jnp.tril(self.below, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def _draw(self, key, n):
        z = self.loc + jr.normal(key, (n, self.dim), self.loc.dtype) @ self.factor.T
        return Draw(z, self._log_prob(z))

    def _log_prob(self, z):
        return dist.MultivariateNormal(self.loc, scale_tril=self.factor).log_prob(z)
