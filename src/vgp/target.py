"""Target: the log density of a flat unconstrained vector, and the way back to the user's names."""

import abc
from typing import Any

import equinox as eqx
import jax
import numpyro.distributions as dist
from jaxtyping import Array, Float

Values = Any  # the user's pytree of constrained values


class Target(eqx.Module):
    """What is approximated: log p(u), up to a constant, for u a flat vector of `dim` real numbers.

    To add a kind of target, subclass and give `dim`, `prior`, `log_likelihood(u)`, `constrain(u)`,
    `unconstrain(z)` and `log_jacobian(u)`. Where there is no separate prior, `log_likelihood` is the whole log density.
    """

    dim: eqx.AbstractVar[int]
    prior: eqx.AbstractVar[dist.Distribution | None]

    @abc.abstractmethod
    def log_likelihood(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(u) without the prior, log-Jacobian of the constraints included."""

    @abc.abstractmethod
    def constrain(self, u: Float[Array, " d"]) -> Values:
        """The user's pytree, on its own scale."""

    @abc.abstractmethod
    def unconstrain(self, z: Values) -> Float[Array, " d"]:
        """The inverse of `constrain`."""

    @abc.abstractmethod
    def log_jacobian(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """log |dz/du| of `constrain`."""

    def log_prob(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(u)."""
        value = self.log_likelihood(u)
        return value if self.prior is None else value + self.prior.log_prob(u)

    def log_probs(self, u: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log p at a batch of points."""
        return jax.vmap(self.log_prob)(u)

    def log_likelihoods(self, u: Float[Array, "n d"]) -> Float[Array, " n"]:
        """The part of log p without the prior, at a batch of points."""
        return jax.vmap(self.log_likelihood)(u)
