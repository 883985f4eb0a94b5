"""How good is a fit? The sandwich on its ELBO, Pareto k-hat, and log q at a point."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from . import compiled
from .bounds import draw, log_q_sandwich
from .families.base import AbstractExact, AbstractFamily, AbstractHierarchical, AbstractView, whitened
from .families.stack import Pool, Stack
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
        with np.errstate(invalid="ignore"):  # an impossible draw has a ratio of −inf, and the spread is then NaN
            mean, spread = self.lower.mean(dtype=np.float64), self.lower.std(dtype=np.float64)
            upper = self.upper.mean(dtype=np.float64)
        return Elbo(float(mean), float(upper), float(spread / np.sqrt(len(self.lower))))


def log_ratios(
    target: Target, family: AbstractFamily, key: PRNGKeyArray, n: int = 16384, inner: int = 200
) -> LogRatios:
    """The log ratios at n draws, in chunks that fit in memory."""
    if isinstance(family, Stack):
        return _stacked_log_ratios(target, family, key, n, inner)
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
    target, family = whitened(target, family)
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


# ---------------------------------------------------------------- a mixture of families


def pooled(target: Target, members: Sequence[AbstractFamily], key: PRNGKeyArray, n: int = 1024, inner: int = 64):
    """n draws of every member, with log p and each member's log q at all of them."""
    keys = jr.split(key, (2, len(members)))
    z = jnp.concatenate([compiled.sample(member, k, n) for member, k in zip(members, keys[0], strict=True)])
    log_q = [log_prob(member, z, k, inner).value for member, k in zip(members, keys[1], strict=True)]
    return Pool(compiled.log_probs(target, z), jnp.stack(log_q, axis=1))


def _stacked_log_ratios(target, stack: Stack, key, n: int, inner: int) -> LogRatios:
    # As many draws of each member as its weight says. The member that made a draw gives log q from above, with what
    # generated the draw, and from below; the others are estimated with as many samples, which keeps the mixture's
    # log q from above where it is (each estimate replaces one of the samples by the one that generated z).
    counts = np.maximum(np.round(np.asarray(stack.weights) * n).astype(int), 0)
    pieces = []
    for r, count in enumerate(counts):
        if count == 0:
            continue
        z, own, log_p = _own_log_q(target, stack.members[r], jr.fold_in(key, r), int(count), inner)
        keys = _keys(jr.fold_in(key, 1000 + r), stack)
        others = [
            None if j == r else log_prob(member, z, keys[j], inner + 1).value for j, member in enumerate(stack.members)
        ]
        pieces.append([log_p - _mixed([side if q is None else q for q in others], stack) for side in own])
    return LogRatios(*(np.concatenate([np.asarray(part) for part in side]) for side in zip(*pieces, strict=True)))


def _keys(key: PRNGKeyArray, stack: Stack):
    return jr.split(key, len(stack.members))


def _mixed(log_q: Sequence[Float[Array, " n"]], stack: Stack) -> Float[Array, " n"]:
    return jax.nn.logsumexp(jnp.stack(log_q, axis=1) + stack.log_weights, axis=1)


@eqx.filter_jit
def _own_log_q(target, member, key, n, inner):
    # Draws of a member with its own log q at them: from above, from below, and on the extended space.
    chunk = min(n, 256)
    keys = jr.split(key, -(-n // chunk))

    def some(key):
        if isinstance(member, AbstractExact):
            z, log_q, _ = member.draw(key, chunk)
            return z, (log_q,) * 3
        view = _view(member)
        w, y, _, inner_key = draw(view, key, chunk)
        volume = 0.0 if member.place is None else member.place.log_volume
        log_q = log_q_sandwich(view, w, y, inner_key, inner)
        z = w if member.place is None else member.place(w)
        return z, (log_q.upper - volume, log_q.lower - volume, log_q.single - volume)

    z, own = jax.lax.map(some, keys)
    z, own = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], (z, own))
    return z, own, jax.lax.map(target.log_prob, z, batch_size=256)


# ---------------------------------------------------------------- importance weights


class Smoothed(NamedTuple):
    """Pareto-smoothed importance weights: log w normalised, k̂ of their tail, and the draws they are worth."""

    log_weights: Float[Array, " n"]
    khat: float
    ess: float


def smoothed(log_ratio: np.ndarray | Float[Array, " n"]) -> Smoothed:
    """Weights from log p − log q; a ratio that is NaN counts as no weight at all."""
    from blackjax.diagnostics import psis_weights

    log_ratio = jnp.asarray(log_ratio)
    log_weights, khat = jax.jit(psis_weights)(jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio))
    log_weights = log_weights - jax.nn.logsumexp(log_weights)
    return Smoothed(log_weights, float(khat), float(jnp.exp(-jax.nn.logsumexp(2 * log_weights))))


def pareto_khat(log_ratio: np.ndarray) -> float:
    """The shape k̂ of the ratios' upper tail: below 0.7 importance weights can be trusted (Vehtari et al.)."""
    return smoothed(log_ratio).khat


class LogProb(NamedTuple):
    """log q(z) at given points, and the Monte Carlo error of each value (zero where q has a density)."""

    value: Float[Array, " n"]
    stderr: Float[Array, " n"]


@eqx.filter_jit
def log_prob(family: AbstractFamily, u: Float[Array, "n d"], key: PRNGKeyArray, inner: int = 1000) -> LogProb:
    """log q(u): for a hierarchical family the importance estimate over r, a lower estimate of log q.

    A point that is handed in has no ξ that generated it, so the upper side does not exist here.
    """
    if isinstance(family, Stack):
        each = [log_prob(member, u, k, inner) for member, k in zip(family.members, _keys(key, family), strict=True)]
        value = _mixed([one.value for one in each], family)
        shares = [jnp.exp(w + one.value - value) for w, one in zip(family.log_weights, each, strict=True)]
        errors = [share * one.stderr for share, one in zip(shares, each, strict=True)]
        return LogProb(value, jnp.sqrt(sum(error**2 for error in errors)))
    if isinstance(family, AbstractExact):
        value = family.log_prob(u)
        return LogProb(value, jnp.zeros_like(value))
    volume = 0.0 if family.place is None else family.place.log_volume
    u = u if family.place is None else family.place.inverse(u)
    view = _view(family)

    def one(args):
        point, key = args
        posterior = view.posterior(point[None])
        samples = sample(posterior, key, (inner,))
        log_weights = (view.log_joint(point[None], samples) - posterior.log_prob(samples))[:, 0]
        value = logsumexp(log_weights) - jnp.log(inner)
        return value - volume, jnp.std(jnp.exp(log_weights - value)) / jnp.sqrt(inner)

    return LogProb(*jax.lax.map(one, (u, jr.split(key, u.shape[0])), batch_size=64))
