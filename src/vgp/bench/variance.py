"""The variance of estimators of a gradient at equal cost, and whether their means are the exact gradient."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..bounds import Importance, log_q_upper
from ..compiling import alone
from ..families import VGP, AbstractFamily
from ..gradients import ARM, AbstractGradient, DisARM, LocalExpectations
from ..target import Target

CLEAR = 4.0  # standard errors from zero that a gradient has to be for another to be a share of it


def draws(gradient: AbstractGradient, evaluations: int, outer: int = 1, variables: int = 1) -> int:
    """How many values of a bound so many evaluations of log p pay for: ARM and DisARM take two for each, and local
    expectations as many more for every variable.
    """
    each = {ARM: 2, DisARM: 2, LocalExpectations: 2 + 2 * variables}.get(type(gradient), 1)
    return max(evaluations // (each * outer), 1)


class Agreement(NamedTuple):
    """A mean gradient along another: as a share of that one, with a standard error, and how many standard errors `off`.

    The share is 1 where they agree, and its error is what it is there. Where the other is as good as zero, as at an
    optimum, a share says nothing, and is NaN.
    """

    share: float
    stderr: float
    off: float


class Gradients(NamedTuple):
    """Independent estimates of the gradient of all parameters."""

    each: Float[np.ndarray, "b p"]

    @property
    def variance(self) -> float:
        """The sum of the parameters' variances."""
        return float(self.each.var(axis=0, ddof=1).sum())

    def along(self, other: "Gradients") -> Agreement:
        """How the mean agrees with that of others. The direction is that of half of them, and the rest are compared:
        noise that is in both would lengthen the mean.
        """
        half = len(other.each) // 2
        direction = other.each[:half].mean(axis=0)
        (mine, my_error), (theirs, their_error) = (_mean(g @ direction) for g in (self.each, other.each[half:]))
        error = float(np.hypot(my_error, their_error))
        known = abs(theirs) > CLEAR * their_error
        share, stderr = (mine / theirs, error / abs(theirs)) if known else (float("nan"),) * 2
        return Agreement(share, stderr, (mine - theirs) / error)


def _mean(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def estimates(
    target: Target,
    family: AbstractFamily,
    gradient: AbstractGradient,
    key: PRNGKeyArray,
    *,
    evaluations: int,
    batches: int,
    inner: int = 16,
    outer: int = 1,
) -> Gradients:
    """An estimator's gradients of `Importance(inner, outer)`, each at the cost of `evaluations` of log p."""
    bound, n = Importance(inner=inner, outer=outer), draws(gradient, evaluations, outer, family.dim)
    found = _estimates(target, family, bound, gradient, n, jr.split(key, batches))
    return Gradients(np.asarray(found, np.float64))


@alone
def _estimates(target, family, bound, gradient, n: int, keys):
    return _mapped(lambda family, key: bound(target, family, key, n, gradient).mean(), family, keys)


def summed_out(
    target: Target, family: VGP, states: Float[Array, "s d"], key: PRNGKeyArray, *, batches: int, inner: int = 16
) -> Gradients:
    """The gradients of `Importance(inner)` with z summed out, for one ξ each: ξ and the inner samples are left."""
    return Gradients(np.asarray(_summed_out(target, family, states, inner, jr.split(key, batches)), np.float64))


@alone
def _summed_out(target, family, states, inner: int, keys):
    def value(family, key):
        view: Any = family.view()
        latent_key, inner_key = jr.split(key)
        y = jnp.broadcast_to(view.sample_latent(latent_key, 1), (len(states), family.latent_dim))
        values = target.log_probs(states) - log_q_upper(view, states, y, inner_key, inner)
        return jnp.exp(view.conditional(y).log_prob(states)) @ values

    return _mapped(value, family, keys)


def _mapped(value, family, keys) -> Float[Array, "b p"]:
    params, rest = eqx.partition(family, eqx.is_inexact_array)

    def one(key):
        gradient = jax.grad(lambda params: value(eqx.combine(params, rest), key))(params)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    return jax.lax.map(one, keys)
