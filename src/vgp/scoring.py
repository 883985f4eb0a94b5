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
from .gradients import ARM, VIMCO, AbstractGradient, AbstractScore, DisARM, ScoreFunction
from .meanfield import Factors
from .target import Target


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
    if isinstance(gradient, (ARM, DisARM)) and outer > 1:
        raise TypeError(f"{type(gradient).__name__} needs outer=1; use vgp.gradients.VIMCO().")
    if isinstance(gradient, ScoreFunction) and outer > 1 and (gradient.baseline != "none" or gradient.rao_blackwell):
        raise TypeError(
            "ScoreFunction has its baseline and its Rao-Blackwellisation for outer=1; use vgp.gradients.VIMCO(), or "
            "vgp.gradients.ScoreFunction('none', False)."
        )
    if isinstance(gradient, VIMCO) and outer == 1:
        raise TypeError("VIMCO needs outer > 1; use vgp.gradients.ScoreFunction() or DisARM().")
    if isinstance(gradient, (ARM, DisARM)) and not any(map(_is_binary, conditional.blocks)):
        raise TypeError(f"{type(gradient).__name__} is for Bernoulli variables; use vgp.gradients.ScoreFunction().")
    return gradient


def scored(
    value,
    target: Target,
    view: AbstractView,
    conditional: Factors,
    key: PRNGKeyArray,
    outer: int,
    gradient: AbstractGradient,
    whole: bool = True,
) -> Float[Array, " n"]:
    """The bound's values with a gradient that takes the scores into account.

    `value(z)` is log p(z) − log q̂(z) for draws z of the conditional, one for each of its rows; unless it is the `whole`
    of that, a part of it is in closed form.
    """
    gradient = check(gradient, conditional, outer)
    if isinstance(gradient, (ARM, DisARM)):
        return _antithetic(value, view, conditional, key, gradient)
    z = conditional.sample(key)
    log_weights = value(z)
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
    if not rao_blackwell:
        return jnp.broadcast_to(value[:, None], (len(value), len(which)))
    each = conditional.each(z)
    signals = value[:, None] + each.sum(-1, keepdims=True) - each[:, which]
    found = target.log_terms(z)
    if found is None:
        return signals
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
            "vgp.gradients.ScoreFunction(baseline='none')."
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


def _antithetic(value, view, conditional: Factors, key, gradient) -> Float[Array, " n"]:
    # The Bernoulli blocks twice, from u and from 1 − u, the others once: those without a path have a plain score.
    coin_key, key = jr.split(key)
    pieces = conditional.split(conditional.sample(key))
    binary = [_is_binary(block) for block in conditional.blocks]
    logits = jnp.concatenate([b.logits for b, own in zip(conditional.blocks, binary, strict=True) if own], axis=-1)
    u = jr.uniform(coin_key, logits.shape, logits.dtype)
    p = jax.lax.stop_gradient(jax.nn.sigmoid(logits))
    first, second = (u < p).astype(logits.dtype), (1 - u < p).astype(logits.dtype)

    def whole(coins):
        sizes = [size for size, own in zip(conditional.sizes, binary, strict=True) if own]
        tossed = iter(jnp.split(coins, np.cumsum(sizes)[:-1].tolist(), axis=-1))
        return jnp.concatenate([next(tossed) if own else piece for piece, own in zip(pieces, binary, strict=True)], -1)

    # Side by side, with the same noise in both: half the operations of one after the other.
    values = jax.vmap(lambda coins: value(whole(coins)))(jnp.stack([first, second]))
    gap = jax.lax.stop_gradient(values[0] - values[1])[:, None]
    if isinstance(gradient, ARM):
        slope = gap * (0.5 - u)
    else:
        sign = jnp.where(second > 0, -1.0, 1.0) * (first != second)
        slope = 0.5 * gap * sign * jax.nn.sigmoid(jnp.abs(jax.lax.stop_gradient(logits)))
    mean = 0.5 * (values[0] + values[1])
    result = mean + _credit(slope, logits).sum(-1)
    left = [i for i in conditional.scored if not np.repeat(binary, conditional.sizes)[i]]
    if left:
        z, which = whole(first), np.array(left)
        signals = jnp.broadcast_to(mean[:, None], (len(mean), len(which)))
        baseline = _baseline(signals, conditional.slopes(z)[:, which], _datapoints(view), "optimal")
        result = result + _credit(signals - baseline, conditional.each(z)[:, which]).sum(-1)
    return result
