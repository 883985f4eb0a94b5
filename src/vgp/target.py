"""Target: the log density of a flat unconstrained vector, and the way back to the user's names."""

import abc
from typing import Any

import equinox as eqx
import jax
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpyro.distributions import constraints

from .divergence import gaussian_kl, gaussian_prior

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
        """log p(u) without the prior; where there is none, with the log-Jacobian of the constraints."""

    @abc.abstractmethod
    def constrain(self, u: Float[Array, " d"]) -> Values:
        """The user's pytree, on its own scale."""

    @abc.abstractmethod
    def unconstrain(self, z: Values) -> Float[Array, " d"]:
        """The inverse of `constrain`."""

    @abc.abstractmethod
    def log_jacobian(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """log |dz/du| of `constrain`."""

    @property
    def posteriors(self) -> int:
        """Of how many datapoints it is, each with a z of its own: one, but for a batch of a deep model."""
        return 1

    def coordinates(self) -> list[str]:
        """A name for every number in u."""
        return [f"u[{i}]" for i in range(self.dim)]

    @property
    def num_data(self) -> int | None:
        """How many rows of data a batch can be taken from; None where there are none."""
        return None

    def minibatch(self, key: PRNGKeyArray, size: int) -> "Target":
        """The same target on a random batch of its data, scaled so that its log density is unbiased."""
        raise TypeError(f"{type(self).__name__} has no data to take batches from.")

    def for_step(self, key: PRNGKeyArray, size: int | None, step: Int[Array, ""]) -> "Target":
        """The target as one step of a fit sees it: on a batch, where the fit takes batches."""
        return self if size is None else self.minibatch(key, size)

    def observed(self) -> dict[str, Array]:
        """The observed data by name, where the target knows it."""
        return {}

    def predict(self, key: PRNGKeyArray, values: Values) -> dict[str, Array]:
        """New data by name, one per row of constrained `values` with a leading axis, where the target can draw it."""
        return {}

    def labels(self) -> tuple[dict[str, list], dict[str, list[str]]]:
        """ArviZ's coords and dims: the coordinates by dimension, and the dimensions of each value."""
        return {}, {}

    def divergence(self, conditional: Any, u: Float[Array, "n d"]) -> Float[Array, " n"] | None:
        """KL(q(u | ξ) ‖ p(u)) in closed form, None where there is none; `u` are draws of the conditional."""
        prior = gaussian_prior(self.prior)
        factorised = isinstance(conditional, dist.Independent) and isinstance(conditional.base_dist, dist.Normal)
        return gaussian_kl(conditional, prior) if prior is not None and factorised else None

    def log_terms(self, u: Float[Array, "n d"]) -> tuple[Float[Array, "n t"], Bool[Array, "t d"]] | None:
        """Terms that log p is the sum of, and which coordinates each depends on, where the target knows such terms.

        What depends on no discrete coordinate may be left out of them.
        """
        return None

    def flips(self, conditional: Any, u: Float[Array, "n d"]) -> Float[Array, "n d"] | None:
        """What log p without the prior, less `divergence(conditional, u)`, gains where a binary coordinate is the other
        one; None where a target has no quicker way to know than to try.
        """
        return None

    def supports(self) -> list[tuple[str, constraints.Constraint, int]]:
        """Names, supports and numbers of the coordinates of u, in their order: real, but for those that are kept."""
        return [("the values", constraints.real, self.dim)]

    def kept(self, *names: str) -> "Target":
        """The target with these values in u as they are, for a mean-field with their support."""
        raise TypeError(f"{type(self).__name__} cannot keep values as they are; use vgp.target or vgp.from_numpyro.")

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
