"""Exact answers for few discrete variables: all states, one after the other. In numpy and double precision."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

MOST = 2**22  # states: 12 binary variables have 2¹², 22 are the most


class Enumerated(NamedTuple):
    """A distribution over all states of d discrete variables.

    `log_normaliser` is log Σ exp(log density); `marginals[i, v]` is P(z_i = v), 0 where z_i has no value v; `means` and
    `correlations` are those of the values 0, 1, …. A variable that never varies has correlation 0 with every other one.
    """

    log_normaliser: float
    log_probabilities: Float[np.ndarray, " s"]
    probabilities: Float[np.ndarray, " s"]
    marginals: Float[np.ndarray, "d k"]
    means: Float[np.ndarray, " d"]
    correlations: Float[np.ndarray, "d d"]


def enumerate_states(sizes: Sequence[int]) -> Float[np.ndarray, "s d"]:
    """All states of variables with `sizes[i]` values 0, 1, …, as floats; the last variable changes fastest."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"Every variable has at least one value, and there is at least one, got sizes {list(sizes)}.")
    if math.prod(sizes) > MOST:
        raise ValueError(
            f"There are {math.prod(sizes)} states, more than the {MOST} that are enumerated; sample instead."
        )
    return np.stack(np.unravel_index(np.arange(math.prod(sizes)), tuple(sizes)), axis=-1).astype(float)


def enumerated(log_densities: Float[Array, " s"] | Float[np.ndarray, " s"], sizes: Sequence[int]) -> Enumerated:
    """The distribution with these log densities, up to a constant, at the states of `enumerate_states(sizes)`."""
    states, log_density = enumerate_states(sizes), np.asarray(log_densities, np.float64)
    if len(log_density) != len(states):
        raise ValueError(f"There are {len(states)} states, got {len(log_density)} log densities.")
    if not np.max(log_density) < np.inf or np.max(log_density) == -np.inf:  # NaN is neither
        raise ValueError("The log densities must be numbers or −inf, and not all of them −inf.")
    log_normaliser = np.logaddexp.reduce(log_density)
    log_p = log_density - log_normaliser
    p = np.exp(log_p)
    marginals = np.stack([p @ (states == value) for value in range(max(sizes))], axis=-1)
    means = p @ states
    covariance = (states - means).T @ (p[:, None] * (states - means))
    sd = np.sqrt(np.diag(covariance))
    spread = np.outer(sd, sd)
    correlations = np.divide(covariance, spread, out=np.eye(len(sd)), where=spread > 1e-30)
    return Enumerated(float(log_normaliser), log_p, p, marginals, means, correlations)


def kl(
    log_q: Float[Array, " s"] | Float[np.ndarray, " s"], log_p: Float[Array, " s"] | Float[np.ndarray, " s"]
) -> float:
    """KL(q ‖ p) = Σ q log (q / p) over all states, from log probabilities.

    Both must sum to one, but for rounding, which is taken out: an error there would look like a better or worse q.
    """
    q, p = (np.asarray(values, np.float64) for values in (log_q, log_p))
    for name, values in (("log_q", q), ("log_p", p)):
        total = np.exp(values).sum()
        if not abs(total - 1) < 1e-3:
            raise ValueError(
                f"The probabilities of {name} sum to {total:.6g}, not to 1; pass those of all states, "
                "or normalise them with enumerated(...).log_probabilities."
            )
    q, p = q - np.logaddexp.reduce(q), p - np.logaddexp.reduce(p)
    seen = q > -np.inf
    return float(np.sum(np.exp(q[seen]) * (q[seen] - p[seen])))
