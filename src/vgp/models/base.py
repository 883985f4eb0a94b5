"""A model with learned parameters, and the target that it is at a batch of data."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from ..target import Target


class Kind(NamedTuple):
    """What a model's data are: their name, what they must be, and what to do with others."""

    name: str
    told: str
    inside: Callable[[np.ndarray], np.ndarray]
    advice: str


PIXELS = Kind("pixels", "numbers from 0 to 1", lambda x: (x >= 0) & (x <= 1), "scale them, for example by 1 / 255")
COUNTS = Kind("counts", "whole numbers from 0 on", lambda x: (x >= 0) & (x == np.round(x)), "round or shift them")


class AbstractModel(eqx.Module):
    """p(x, z) = p(x | z) p(z). To add one, subclass and give:

    - `dim`, the number of latent variables of one datapoint;
    - `observed`, how many values a datapoint has, and `data`, what they are, if not `PIXELS`;
    - `log_likelihood(x, z)`, log p(x | z) for a batch of rows;
    - `log_prior(z)`, log p(z);
    - `divergence(conditional, z)`, KL(q(z | ξ) ‖ p(z)) as far as it has a closed form, with the rest at the draws z;
    - `probabilities(z)`, the mean of each pixel given z, and `sample_prior(key, n)`.
    """

    dim: eqx.AbstractVar[int]
    data: ClassVar[Kind] = PIXELS

    @property
    @abc.abstractmethod
    def observed(self) -> int: ...

    @abc.abstractmethod
    def log_likelihood(self, x: Float[Array, "n i"], z: Float[Array, "n d"]) -> Float[Array, " n"]: ...

    @abc.abstractmethod
    def log_prior(self, z: Float[Array, "n d"]) -> Float[Array, " n"]: ...

    @abc.abstractmethod
    def divergence(self, conditional: Any, z: Float[Array, "n d"]) -> Float[Array, " n"] | None: ...

    @abc.abstractmethod
    def probabilities(self, z: Float[Array, "n d"]) -> Float[Array, "n i"]: ...

    @abc.abstractmethod
    def sample_prior(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]: ...

    def at(self, x: Float[Array, "b i"], weight: Float[Array, ""] | float = 1.0) -> "Batch":
        """The target at a batch of b datapoints; `weight` multiplies the log likelihood (KL warm-up)."""
        self._check(x)
        return Batch(dim=self.dim, model=self, x=x, weight=jnp.asarray(weight))

    def _check(self, x):
        name, kind, n = type(self).__name__, self.data, self.observed
        if jnp.ndim(x) != 2 or jnp.shape(x)[1] != n:
            raise ValueError(
                f"The data of this {name} are rows of {n} {kind.name}, got shape {jnp.shape(x)}; pass (n, {n}), one "
                f"datapoint as x[None], or build the {name} with as many {kind.name} as there are."
            )
        if isinstance(x, Tracer):  # inside a compiled function there are no values to look at
            return
        values = np.asarray(x)
        wrong = values[~(np.isfinite(values) & kind.inside(values))]
        if wrong.size:
            raise ValueError(
                f"The data of this {name} are {kind.name}, {kind.told}, got {wrong[0]:g}; {kind.advice}, or take a "
                "model of other values."
            )


class Batch(Target):
    """log p(x_i, z_i): row i of z belongs to datapoint i modulo their number."""

    dim: int = eqx.field(static=True)
    model: AbstractModel
    x: Float[Array, "b i"]
    weight: Float[Array, ""]
    prior: dist.Distribution | None = None

    @property
    def posteriors(self):
        return len(self.x)

    def log_likelihoods(self, u):
        return self.weight * self.model.log_likelihood(self._rows(len(u)), u)

    def _rows(self, n: int) -> Float[Array, "n i"]:
        if n == len(self.x):
            return self.x
        return jnp.broadcast_to(self.x, (n // len(self.x), *self.x.shape)).reshape(n, -1)

    def log_probs(self, u):
        return self.log_likelihoods(u) + self.model.log_prior(u)

    def divergence(self, conditional, u):
        return self.model.divergence(conditional, u)

    def log_terms(self, u):
        terms, touches = getattr(self.model, "log_terms", None), getattr(self.model, "touches", None)
        if terms is None or touches is None:
            return None
        found = terms(self._rows(len(u)), u)
        return found.at[:, 0].multiply(self.weight), jnp.asarray(touches)

    def flips(self, conditional, u):
        flips = getattr(self.model, "flips", None)
        return None if flips is None else flips(self._rows(len(u)), u, conditional, self.weight)

    def supports(self):
        supports, latents = getattr(self.model, "supports", None), getattr(self.model, "latents", None)
        if supports is None or latents is None:
            return super().supports()
        names = [f"layer {i + 1}" for i in range(len(latents))]
        return list(zip(names, supports, latents, strict=True))

    def log_likelihood(self, u):
        if len(self.x) != 1:
            raise TypeError("A batch has one z per datapoint; use log_probs.")
        return self.log_probs(u[None])[0]

    def constrain(self, u):
        return u

    def unconstrain(self, z):
        return z

    def log_jacobian(self, u):
        return jnp.zeros(())


def bernoulli_log_prob(logits: Float[Array, "n i"], x: Float[Array, "n i"]) -> Float[Array, " n"]:
    """log p(x) of independent pixels, from their logits."""
    return jnp.sum(x * logits - jax.nn.softplus(logits), axis=-1)
