"""Discrete posteriors small enough to enumerate, and the families that `vgp bench gradients` trains on them."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.nn import log_sigmoid, logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from ..families import VGP, Factorised
from ..meanfield import Bernoulli
from ..montecarlo import enumerate_states, enumerated, kl
from ..target import Target
from ..targets import target as make_target
from ..targets.discrete import Problem, ising_ring, noisy_or, two_mode_ring

DRAWS = 1024  # of ξ at a time


def problems(size: int) -> dict[str, Problem]:
    """The benchmark's posteriors of `size` binary variables."""
    return {
        "frustrated ring": ising_ring(size),
        "two modes": two_mode_ring(size),
        "noisy-or": noisy_or(size, size),
    }


class Enumerable(NamedTuple):
    """A posterior with all of its states, and log p at each."""

    target: Target
    states: Float[Array, "s d"]
    log_p: Float[np.ndarray, " s"]

    @staticmethod
    def of(problem: Problem) -> "Enumerable":
        """The target looks its terms up in a table of all states: the same program then serves every problem."""
        sizes = [2] * len(problem.example)
        states = jnp.asarray(enumerate_states(sizes), float)
        table = jax.jit(jax.vmap(problem.terms))(states)
        target = make_target(_looked_up, problem.example, problem.constraints, data=table, touches=problem.touches)
        return Enumerable(target, states, enumerated(np.asarray(table, float).sum(-1), sizes).log_probabilities)

    @property
    def dim(self) -> int:
        return self.target.dim

    def divergence(self, family: VGP | Factorised, key: PRNGKeyArray, draws: int) -> float:
        """KL(q ‖ p), with q(z) the mean of q(z | ξ) over draws of ξ, at all states."""
        log_q = np.asarray(_log_q(family, self.states, jr.split(key, -(-draws // DRAWS))), float)
        return kl(log_q, self.log_p)


def _looked_up(z: Float[Array, " d"], table: Float[Array, "s t"]) -> Float[Array, " t"]:
    places = 2.0 ** np.arange(z.shape[-1])[::-1]
    return table[jnp.asarray(z @ places, int)]


@eqx.filter_jit
def _log_q(family: VGP | Factorised, states, keys) -> Float[Array, " s"]:
    view: Any = family.view()

    def some(key):
        conditional: Any = view.conditional(view.sample_latent(key, DRAWS))
        logits = conditional.blocks[0].logits
        each = log_sigmoid(logits) @ states.T + log_sigmoid(-logits) @ (1 - states).T
        return logsumexp(each, axis=0) - jnp.log(DRAWS)

    return logsumexp(jax.lax.map(some, keys), axis=0) - jnp.log(len(keys))


def vgp(dim: int, num_data: int, key: PRNGKeyArray) -> VGP:
    """The family that `vgp.fit` chooses for binary variables."""
    return VGP(dim, num_data, meanfield=Bernoulli(), key=key)


def factorised(dim: int, key: PRNGKeyArray) -> Factorised:
    """A product of as many Bernoullis."""
    return Factorised(dim, Bernoulli(), key=key)
