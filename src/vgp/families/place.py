"""Where a family lies: the fixed affine map between its whitened coordinates and the target's."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ..target import Target


class Place(eqx.Module):
    """z = loc + factor w. The factor is a lower triangular matrix, or a vector for a diagonal one.

    A family is learned in whitened coordinates w, in which a posterior of any scale and correlation looks
    round, so that equal steps of the optimiser are equally bold. The map itself is not learned.
    """

    loc: Float[Array, " d"]
    factor: Float[Array, " d"] | Float[Array, "d d"]

    def __call__(self, w: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """z of w."""
        loc, factor = jax.lax.stop_gradient((self.loc, self.factor))
        return loc + (w * factor if factor.ndim == 1 else w @ factor.T)

    def inverse(self, z: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """w of z."""
        loc, factor = jax.lax.stop_gradient((self.loc, self.factor))
        if factor.ndim == 1:
            return (z - loc) / factor
        rows = (z - loc).reshape(-1, loc.shape[0])
        return jax.scipy.linalg.solve_triangular(factor, rows.T, lower=True).T.reshape(z.shape)

    @property
    def log_volume(self) -> Float[Array, ""]:
        """log |dz/dw|."""
        diagonal = self.factor if self.factor.ndim == 1 else jnp.diagonal(self.factor)
        return jax.lax.stop_gradient(jnp.sum(jnp.log(jnp.abs(diagonal))))

    @property
    def diagonal(self) -> "Place":
        """The place with the same spread of every coordinate, and no correlation between them."""
        if self.factor.ndim == 1:
            return self
        return Place(self.loc, jnp.sqrt(jnp.sum(self.factor**2, axis=1)))

    def pull_back(self, prior: dist.Distribution | None) -> dist.Distribution | None:
        """The distribution of w for z ~ prior, where the prior is a factorised Normal; else None."""
        base: Any = prior.base_dist if isinstance(prior, dist.Independent) else None
        if not isinstance(base, dist.Normal):
            return None
        loc = self.inverse(base.loc)
        factor = jax.lax.stop_gradient(self.factor)
        if factor.ndim == 1:
            return dist.Normal(loc, jnp.asarray(base.scale) / factor).to_event(1)
        scaled = factor / jnp.asarray(base.scale)[:, None]
        return dist.MultivariateNormal(loc, precision_matrix=scaled.T @ scaled)


class Whitened(Target):
    """A target in the whitened coordinates of a place: log p(w) = log p(z) + log |dz/dw|."""

    target: Target
    place: Place
    prior: dist.Distribution | None

    def __init__(self, target: Target, place: Place):
        self.target, self.place = target, place
        self.prior = place.pull_back(target.prior)

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.target.dim

    def log_likelihood(self, u):
        z = self.place(u)
        if self.prior is not None:  # which holds the volume itself
            return self.target.log_likelihood(z)
        return self.target.log_prob(z) + self.place.log_volume

    def constrain(self, u):
        return self.target.constrain(self.place(u))

    def unconstrain(self, z):
        return self.place.inverse(self.target.unconstrain(z))

    def log_jacobian(self, u):
        return self.target.log_jacobian(self.place(u)) + self.place.log_volume
