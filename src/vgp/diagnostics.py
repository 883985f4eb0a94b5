"""How good is a fit? The sandwich on its ELBO, Pareto k-hat, and log q at a point."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from .bounds import draw, log_q_sandwich
from .families.base import AbstractExact, AbstractFamily, AbstractHierarchical, AbstractView
from .noise import sample
from .target import Target

BUDGET = 2**24  # floats that one chunk of an evaluation may hold


class Elbo(NamedTuple):
    """The sandwich: the true ELBO lies between `lower` and `upper`, each within a few `stderr`.

    Only `lower` is a bound on the log evidence. Families with an exact density have `lower == upper`.
    """

    lower: float
    upper: float
    stderr: float


class LogRatios(NamedTuple):
    """log p(z) − log q(z) at draws of q, with log q from above, from below, and on the extended space."""

    lower: np.ndarray
    upper: np.ndarray
    extended: np.ndarray

    @property
    def elbo(self) -> Elbo:
        mean, spread = self.lower.mean(dtype=np.float64), self.lower.std(dtype=np.float64)
        return Elbo(float(mean), float(self.upper.mean(dtype=np.float64)), float(spread / np.sqrt(len(self.lower))))


def log_ratios(
    target: Target, family: AbstractFamily, key: PRNGKeyArray, n: int = 16384, inner: int = 200
) -> LogRatios:
    """The log ratios at n draws, in chunks that fit in memory."""
    rows = 1 if isinstance(family, AbstractExact) else inner + 1
    chunk = max(1, min(n, 1024, BUDGET // (rows * _width(family))))
    keys = jr.split(key, -(-n // chunk))
    ratios = _log_ratios(target, family, keys, chunk, inner)
    return LogRatios(*(np.asarray(side).reshape(-1)[:n] for side in ratios))


def _width(family) -> int:
    # Floats that one latent input costs: its kernel row, twice, and its outputs.
    whitened = getattr(family, "whitened", None)
    return 2 * family.dim if whitened is None else 2 * sum(whitened.shape)


def _view(family: AbstractFamily) -> AbstractView:
    assert isinstance(family, AbstractHierarchical)
    return family.view()


@eqx.filter_jit
def _log_ratios(target, family, keys, chunk, inner):
    if isinstance(family, AbstractExact):

        def exact(key):
            z, log_q, _ = family.draw(key, chunk)
            return (target.log_probs(z) - log_q,) * 3

        return jax.lax.map(exact, keys)
    view = _view(family)

    def some(key):
        z, y, _, inner_key = draw(view, key, chunk)
        log_q = log_q_sandwich(view, z, y, inner_key, inner)
        log_p = target.log_probs(z)
        return log_p - log_q.upper, log_p - log_q.lower, log_p - log_q.single

    return jax.lax.map(some, keys)


def pareto_khat(log_ratio: np.ndarray) -> float:
    """The shape k̂ of the ratios' upper tail: below 0.7 importance weights can be trusted (Vehtari et al.)."""
    from blackjax.diagnostics import psis_weights

    log_ratio = np.where(np.isnan(log_ratio), -np.inf, log_ratio)
    return float(jax.jit(psis_weights)(jnp.asarray(log_ratio))[1])


class LogProb(NamedTuple):
    """log q(z) at given points, and the Monte Carlo error of each value (zero where q has a density)."""

    value: Float[Array, " n"]
    stderr: Float[Array, " n"]


@eqx.filter_jit
def log_prob(family: AbstractFamily, u: Float[Array, "n d"], key: PRNGKeyArray, inner: int = 1000) -> LogProb:
    """log q(u): for a hierarchical family the importance estimate over r, a lower estimate of log q.

    A point that is handed in has no ξ that generated it, so the upper side does not exist here.
    """
    if isinstance(family, AbstractExact):
        value = family.log_prob(u)
        return LogProb(value, jnp.zeros_like(value))
    view = _view(family)

    def one(args):
        point, key = args
        posterior = view.posterior(point[None])
        samples = sample(posterior, key, (inner,))
        log_weights = (view.log_joint(point[None], samples) - posterior.log_prob(samples))[:, 0]
        value = logsumexp(log_weights) - jnp.log(inner)
        return value, jnp.std(jnp.exp(log_weights - value)) / jnp.sqrt(inner)

    return LogProb(*jax.lax.map(one, (u, jr.split(key, u.shape[0])), batch_size=64))
