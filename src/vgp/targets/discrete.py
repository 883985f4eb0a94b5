"""Posteriors with discrete variables, small enough to enumerate or integrate."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, PyTree
from numpyro.distributions import constraints
from scipy.special import ndtri

from ..target import Values


class Problem(NamedTuple):
    """A log density that is a sum of terms, each of few variables. The values are floats, discrete or not.

    `example` and `constraints` are as for `vgp.target`; `terms(z)` are the t terms; `touches[j, i]` says whether term j
    depends on coordinate i of z, its leaves ravelled side by side in the order of `jax.tree.leaves`. `marginals` are
    log densities of some of the variables, by name, the others summed or integrated out, where that has a closed form.
    """

    example: PyTree
    constraints: PyTree
    terms: Callable[[Values], Float[Array, " t"]]
    touches: Bool[np.ndarray, "t d"]
    marginals: Mapping[str, Callable[[Any], Float[Array, ""]]] = {}

    def log_density(self, z: Values) -> Float[Array, ""]:
        """The sum of the terms."""
        return jnp.sum(self.terms(z))


def ising_ring(
    n: int = 10,
    coupling: float = 1.0,
    field: float | Float[Array, " n"] | Float[np.ndarray, " n"] = 0.1,
    frustrated: bool = True,
) -> Problem:
    """log p(z) = Σ_i J_i s_i s_{i+1} + Σ_i h_i s_i + const., with spins s = 2z − 1 on a ring, z in {0, 1}ⁿ.

    J_i is `coupling`, but for the bond between the last spin and the first: reversed if `frustrated`, so that no state
    satisfies all bonds. Without a field 2n states are then equally likely and have exactly one bond broken. Not
    normalised. The terms are the n bonds, bond i between spins i and i + 1, and then the n fields.
    """
    if n < 3:
        raise ValueError(f"A ring has at least 3 spins, got {n}.")
    bonds = jnp.asarray([coupling] * (n - 1) + [-coupling if frustrated else coupling], float)
    fields = jnp.broadcast_to(jnp.asarray(field, float), (n,))

    def terms(z):
        s = 2 * z - 1
        return jnp.concatenate([bonds * s * jnp.roll(s, -1), fields * s])

    own = np.eye(n, dtype=bool)
    touches = np.concatenate([own | np.roll(own, 1, axis=1), own])
    return Problem(jnp.zeros(n), constraints.boolean, terms, touches)


def two_mode_ring(n: int = 10, coupling: float = 1.0, field: float = 0.05) -> Problem:
    """An `ising_ring` whose bonds all agree, in a weak field: two modes, all 0 and all 1, far apart.

    Their log odds are 2n × `field`, whatever the coupling.
    """
    return ising_ring(n, coupling, field, frustrated=False)


def noisy_or(
    causes: int = 8,
    effects: int = 8,
    parents: int = 3,
    *,
    prior: float = 0.2,
    strength: float = 0.8,
    leak: float = 0.02,
    observed: Float[Array, " e"] | Float[np.ndarray, " e"] | None = None,
) -> Problem:
    """Which causes z in {0, 1} are present, given which effects were observed (all, unless `observed` says):

        p(z_i = 1) = `prior`,   p(effect j = 0 | z) = (1 − leak) Π_{i causes j} (1 − strength)^{z_i}.

    Effect j has the `parents` causes j, j + 1, … (modulo their number). An observed effect has several explanations, of
    which one is enough: the posterior is correlated and has many modes. log_density is log p(z, effects), normalised
    over both. The terms are the causes' priors, and then the effects.
    """
    if not 1 <= parents <= causes:
        raise ValueError(f"An effect has between 1 and {causes} causes, got parents={parents}.")
    if wrong := [f"{k}={v}" for k, v in dict(prior=prior, strength=strength, leak=leak).items() if not 0 < v < 1]:
        raise ValueError(f"A probability here lies strictly between 0 and 1, got {', '.join(wrong)}.")
    seen = np.ones(effects) if observed is None else np.asarray(observed, float)
    if seen.shape != (effects,):
        raise ValueError(f"observed holds a 0 or 1 per effect, {effects} of them, got shape {seen.shape}.")
    linked = (np.arange(causes) - np.arange(effects)[:, None]) % causes < parents
    links, seen = jnp.asarray(linked, float), jnp.asarray(seen, float)

    def terms(z):
        causal = z * np.log(prior) + (1 - z) * np.log1p(-prior)
        absent = np.log1p(-leak) + links @ z * np.log1p(-strength)
        return jnp.concatenate([causal, jnp.where(seen > 0, jnp.log(-jnp.expm1(absent)), absent)])

    return Problem(jnp.zeros(causes), constraints.boolean, terms, np.concatenate([np.eye(causes, dtype=bool), linked]))


def mixture_assignments(
    n: int = 10,
    components: int = 2,
    *,
    separation: float = 3.0,
    scale: float = 1.0,
    prior_scale: float = 5.0,
    weights: Float[Array, " k"] | Float[np.ndarray, " k"] | None = None,
    y: Float[Array, " n"] | Float[np.ndarray, " n"] | None = None,
) -> Problem:
    """A Gaussian mixture in one dimension, its assignments kept:

        μ_k ~ N(0, prior_scale²),   c_i ~ Categorical(weights),   y_i ~ N(μ_{c_i}, scale²).

    The values are {"assignments": c, "means": μ}, c as floats 0 … components − 1. log_density is log p(c, μ, y). The
    weights are fixed; unless given they are equal, and so are the chances of all orders of the components. Without `y`,
    point i is of component i modulo their number, the components' centres are `separation` apart, and the points lie at
    quantiles of the normal. The terms are the priors of the means, and then log p(c_i) + log p(y_i | c_i, μ).

    Marginals: "means" is log p(μ, y), summed over the assignments, and "assignments" is log p(c, y), the means
    integrated out.
    """
    own = np.arange(n) % components
    if y is None:
        where = (np.arange(n) // components + 0.5) / -(-n // components)
        y = separation * (own - (components - 1) / 2) + scale * np.asarray(ndtri(where))
    points = jnp.asarray(y, float)
    if points.shape != (n,):
        raise ValueError(f"y must hold {n} numbers, got shape {points.shape}; pass n={points.size}.")
    chances = np.full(components, 1 / components) if weights is None else np.asarray(weights, float)
    if chances.shape != (components,) or not np.all(chances > 0) or abs(chances.sum() - 1) > 1e-4:
        raise ValueError(f"weights are {components} positive numbers that sum to 1, got {chances}.")
    log_w = jnp.asarray(np.log(chances), float)

    def terms(z):
        c, mu = jnp.asarray(z["assignments"], int), z["means"]
        data = log_w[c] + dist.Normal(mu[c], scale).log_prob(points)
        return jnp.concatenate([dist.Normal(0.0, prior_scale).log_prob(mu), data])

    def means(mu):
        each = log_w + dist.Normal(mu, scale).log_prob(points[:, None])
        return dist.Normal(0.0, prior_scale).log_prob(mu).sum() + logsumexp(each, axis=-1).sum()

    def assignments(c):
        # Per component with m points of sum S: N(y; 0, scale² I + prior_scale² 11ᵀ).
        mine = jnp.asarray(c, int)[:, None] == jnp.arange(components)
        m, total = mine.sum(0), points @ mine
        ratio = prior_scale**2 / (scale**2 + m * prior_scale**2)
        data = dist.Normal(0.0, scale).log_prob(points).sum() + jnp.sum(mine @ log_w)
        return data + jnp.sum(0.5 * ratio * (total / scale) ** 2 - 0.5 * jnp.log1p(m * (prior_scale / scale) ** 2))

    left = np.concatenate([np.zeros((components, n), bool), np.eye(n, dtype=bool)])
    right = np.concatenate([np.eye(components, dtype=bool), np.ones((n, components), bool)])
    return Problem(
        {"assignments": jnp.zeros(n), "means": jnp.zeros(components)},
        {"assignments": constraints.integer_interval(0, components - 1), "means": constraints.real},
        terms,
        np.concatenate([left, right], axis=1),
        {"means": means, "assignments": assignments},
    )
