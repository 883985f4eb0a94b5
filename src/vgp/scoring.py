"""Gradients where a draw cannot be followed: the score of q stands in for the path.

With y ↦ z drawn from q(z | y) and A the value of a bound at (z, y),

    ∇ E A = E ∇ A |_z + E Σ_i (A − b_i) ∇ log q(z_i | y),

the sum over the variables that have no path, for any baseline b_i that does not depend on z_i. All other gradients,
through ξ and f too, are in the first term and in q(z_i | y). A value here has that gradient and the bound's value.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from .families.base import AbstractView
from .gradients import ARM, VIMCO, AbstractGradient, AbstractScore, DisARM, LocalExpectations, ScoreFunction
from .meanfield import Factors
from .target import Target

PAIRED = (ARM, DisARM, LocalExpectations)  # estimators from two opposite draws of Bernoulli variables


def needs_score(conditional: Any) -> bool:
    """Are there variables whose draws cannot be followed?"""
    return isinstance(conditional, Factors) and len(conditional.scored) > 0


def check(gradient: AbstractGradient, conditional: Factors, outer: int) -> AbstractScore:
    """The estimator, if it is one for such variables."""
    if not isinstance(gradient, AbstractScore):
        raise TypeError(
            f"{type(gradient).__name__} follows the draws of z, and those of discrete variables cannot be followed; "
            "use vgp.gradients.ScoreFunction(), DisARM() or VIMCO()."
        )
    if isinstance(gradient, PAIRED) and outer > 1:
        raise TypeError(f"{type(gradient).__name__} needs outer=1; use vgp.gradients.VIMCO().")
    if isinstance(gradient, ScoreFunction) and outer > 1 and (gradient.baseline != "none" or gradient.rao_blackwell):
        raise TypeError(
            "ScoreFunction has its baseline and its Rao-Blackwellisation for outer=1; use vgp.gradients.VIMCO(), or "
            "vgp.gradients.ScoreFunction('none', False)."
        )
    if isinstance(gradient, VIMCO) and outer == 1:
        raise TypeError("VIMCO needs outer > 1; use vgp.gradients.ScoreFunction() or DisARM().")
    if isinstance(gradient, PAIRED) and not any(map(_is_binary, conditional.blocks)):
        raise TypeError(f"{type(gradient).__name__} is for Bernoulli variables; use vgp.gradients.ScoreFunction().")
    return gradient


def scored(
    parts,
    flips,
    target: Target,
    view: AbstractView,
    conditional: Factors,
    key: PRNGKeyArray,
    outer: int,
    gradient: AbstractGradient,
    whole: bool = True,
) -> Float[Array, " n"]:
    """The bound's values with a gradient that takes the scores into account.

    `parts(z)` are log p(z) − log q(z | ξ) and log q̂(z) − log q(z | ξ) for draws z of the conditional, one for each of
    its rows; unless the first is the `whole` of that, a part of it is in closed form. The bound is their difference.
    `flips(z)` are what each of them gains where a binary variable is the other one, None where that is not known.
    """
    gradient = check(gradient, conditional, outer)
    if isinstance(gradient, PAIRED):
        return _antithetic(parts, flips, view, conditional, key, gradient)
    z = conditional.sample(key)
    log_weights = jnp.subtract(*parts(z))
    scores = conditional.each(z)[:, conditional.scored]
    if outer > 1:
        groups = log_weights.reshape(outer, -1)
        total = logsumexp(groups, axis=0) - jnp.log(outer)
        signals = _vimco(groups) if isinstance(gradient, VIMCO) else jnp.broadcast_to(total, groups.shape)
        return total + _credit(signals.reshape(-1), scores.sum(-1)).reshape(outer, -1).sum(0)
    assert isinstance(gradient, ScoreFunction)
    signals = _signals(target, conditional, z, log_weights, gradient.rao_blackwell and whole)
    baseline = _baseline(signals, conditional.slopes(z)[:, conditional.scored], _datapoints(view), gradient.baseline)
    return log_weights + _credit(signals - baseline, scores).sum(-1)


def _credit(signal, score):
    # Zero, with the gradient signal · ∇ score.
    return jax.lax.stop_gradient(signal) * (score - jax.lax.stop_gradient(score))


def _datapoints(view: Any) -> int:
    process = getattr(view, "process", None)
    return 1 if process is None else process.local.datapoints or 1


def _signals(target, conditional: Factors, z, value, rao_blackwell: bool) -> Float[Array, "n s"]:
    # The value for every variable with a score, without what does not depend on it.
    which = conditional.scored
    found = target.log_terms(z) if rao_blackwell else None
    if found is None:
        # log q of the others is nearly what log p is, where the fit is good: it stays where all of log p does.
        return jnp.broadcast_to(value[:, None], (len(value), len(which)))
    each = conditional.each(z)
    signals = value[:, None] + each.sum(-1, keepdims=True) - each[:, which]
    terms, touches = found
    return signals - terms @ (~jnp.asarray(touches)[:, which]).astype(terms.dtype)


def _baseline(signals, slopes, datapoints: int, kind: str):
    # A mean over the other draws of the same datapoint; row i belongs to datapoint i modulo their number.
    if kind == "none":
        return 0.0
    count = len(signals) // datapoints
    if count < 2:
        raise ValueError(
            "A baseline is made from the other draws of a datapoint, and there is only one; take 2 draws or more, or "
            "vgp.gradients.ScoreFunction('none')."
        )
    grouped = signals.reshape(count, datapoints, -1)

    def others(x):  # the sum over the others, without the cancellation of a sum less one
        return jnp.tensordot(1 - jnp.eye(count, dtype=x.dtype), x, axes=1)

    mean = others(grouped) / (count - 1)
    if kind == "optimal":
        weights = slopes.reshape(grouped.shape) ** 2
        total = others(weights)
        some = total > jnp.finfo(total.dtype).tiny
        mean = jnp.where(some, others(weights * grouped) / jnp.where(some, total, 1.0), mean)
    return mean.reshape(signals.shape)


def _vimco(groups: Float[Array, "m n"]) -> Float[Array, "m n"]:
    # log 1/M Σ w less the same with one weight replaced by the geometric mean of the others.
    m = len(groups)
    stand_in = (groups.sum(0) - groups) / (m - 1)
    replaced = jnp.where(jnp.eye(m, dtype=bool)[:, :, None], stand_in[:, None], groups[None])  # left out, weight, n
    return logsumexp(groups, axis=0) - logsumexp(replaced, axis=1)


def _is_binary(block) -> bool:
    return isinstance(block, dist.BernoulliLogits)


def _antithetic(parts, flips, view, conditional: Factors, key, gradient) -> Float[Array, " n"]:
    # The Bernoulli blocks twice, from u and from 1 − u, the others once: those without a path have a plain score.
    coin_key, key = jr.split(key)
    pieces = conditional.split(conditional.sample(key))
    binary = [_is_binary(block) for block in conditional.blocks]
    logits = jnp.concatenate([b.logits for b, own in zip(conditional.blocks, binary, strict=True) if own], axis=-1)
    u = jr.uniform(coin_key, logits.shape, logits.dtype)
    p = jax.lax.stop_gradient(jax.nn.sigmoid(logits))
    first, second = (u < p).astype(logits.dtype), (1 - u < p).astype(logits.dtype)
    tossed = np.repeat(binary, conditional.sizes)

    def joined(coins):
        sizes = [size for size, own in zip(conditional.sizes, binary, strict=True) if own]
        own = iter(jnp.split(coins, np.cumsum(sizes)[:-1].tolist(), axis=-1))
        return jnp.concatenate([next(own) if ours else piece for piece, ours in zip(pieces, binary, strict=True)], -1)

    # Side by side, with the same noise in both: half the operations of one after the other.
    both = jax.vmap(joined)(jnp.stack([first, second]))
    known, ratio = jax.vmap(parts)(both)
    values = known - ratio
    if isinstance(gradient, LocalExpectations):
        gains, complete = _gains(parts, flips, both, tossed)
        slope, signals = p * (1 - p) * gains, None if complete else -ratio
    else:
        slope, signals = 0.0, values
    if signals is not None:
        gap = jax.lax.stop_gradient(signals[0] - signals[1])[:, None]
        if isinstance(gradient, ARM):
            slope = slope + gap * (0.5 - u)
        else:
            sign = jnp.where(second > 0, -1.0, 1.0) * (first != second)
            slope = slope + 0.5 * gap * sign * jax.nn.sigmoid(jnp.abs(jax.lax.stop_gradient(logits)))
    mean = 0.5 * (values[0] + values[1])
    result = mean + _credit(slope, logits).sum(-1)
    left = [i for i in conditional.scored if not tossed[i]]
    if left:
        z, which = both[0], np.array(left)
        signals = jnp.broadcast_to(mean[:, None], (len(mean), len(which)))
        baseline = _baseline(signals, conditional.slopes(z)[:, which], _datapoints(view), "optimal")
        result = result + _credit(signals - baseline, conditional.each(z)[:, which]).sum(-1)
    return result


def _gains(parts, flips, both, tossed) -> tuple[Float[Array, "n s"], bool]:
    # What is gained where a binary variable is one and not zero, a mean over the draws; and whether that is of all of
    # the bound, or of the first of its parts only.
    which, both = np.flatnonzero(tossed), jax.lax.stop_gradient(both)
    known, ratio = jax.eval_shape(flips, both[0])

    def tried(z):
        def value(z):
            return jnp.subtract(*parts(z))

        base = value(z)
        return jax.lax.map(lambda i: value(z.at[:, i].set(1 - z[:, i])) - base, jnp.asarray(which)).T

    def told(z):
        known, ratio = flips(z)
        return (known if ratio is None else known - ratio)[:, which]

    found = jax.vmap(tried if known is None else told)(both)
    return jnp.mean((1 - 2 * both[:, :, which]) * found, axis=0), known is None or ratio is not None
