"""Several fitted families as one: what restarts that disagree are combined into."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .base import AbstractFamily
from .place import Place


class Stack(AbstractFamily):
    """The mixture q(z) = Σ_r w_r q_r(z) of its members. It is measured and drawn from, not trained."""

    dim: int = eqx.field(static=True)
    members: tuple[AbstractFamily, ...]
    log_weights: Float[Array, " r"]
    place: Place | None = None

    @property
    def weights(self) -> Float[Array, " r"]:
        """w."""
        return jnp.exp(self.log_weights)

    def _sample(self, key, n):
        choice_key, *keys = jr.split(key, len(self.members) + 1)
        which = jr.categorical(choice_key, self.log_weights, shape=(n,))
        draws = jnp.stack([member.sample(k, n) for member, k in zip(self.members, keys, strict=True)])
        return draws[which, jnp.arange(n)]


class Pool(NamedTuple):
    """As many draws of every member, in the members' order, with log p and each member's log q at all of them."""

    log_p: Float[Array, " n"]
    log_q: Float[Array, "n r"]


def apart(pool: Pool) -> float:
    """How far the members are from being one distribution, in nats: 0 if they are, log R if they lie apart."""
    n, count = pool.log_q.shape
    own = pool.log_q.reshape(count, n // count, count)[np.arange(count), :, np.arange(count)].reshape(-1)
    return float(jnp.mean(own - jax.nn.logsumexp(pool.log_q, axis=1) + jnp.log(count)))


def stacked(members: list[AbstractFamily], pool: Pool, turns: int = 200) -> Stack:
    """The members with the weights that bring their mixture closest to p: stacking, by Pareto-smoothed weights.

    The pool's draws, weighted by p over the members' even mixture, stand for p; the weights maximise the mean of
    log Σ_r w_r q_r over them, by expectation maximisation.
    """
    return Stack(dim=members[0].dim, members=tuple(members), log_weights=_weights(pool, turns))


@eqx.filter_jit
def _weights(pool: Pool, turns: int) -> Float[Array, " r"]:
    from blackjax.diagnostics import psis_weights

    count = pool.log_q.shape[1]
    even = jax.nn.logsumexp(pool.log_q, axis=1) - jnp.log(count)
    ratio = pool.log_p - even
    log_importance, _ = psis_weights(jnp.where(jnp.isnan(ratio), -jnp.inf, ratio))
    importance = jax.nn.softmax(log_importance)

    def turn(_, log_weights):
        share = jax.nn.softmax(pool.log_q + log_weights, axis=1)
        return jnp.log(jnp.maximum(importance @ share, 1e-30))

    log_weights = jax.lax.fori_loop(0, turns, turn, jnp.full(count, -jnp.log(count)))
    return log_weights - jax.nn.logsumexp(log_weights)
