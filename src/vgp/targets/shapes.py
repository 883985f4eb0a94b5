"""Posteriors to try things on: four normalised shapes, whose best bound is 0, and eight schools."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ..target import Target
from .function import target


def _normal(x, mean, sd):
    return dist.Normal(mean, sd).log_prob(x)


def _banana(z: Float[Array, "2"]) -> Float[Array, ""]:
    return _normal(z[0], 0.0, 2.0) + _normal(z[1], z[0] ** 2 / 4, 1.0)


def _x_shape(z: Float[Array, "2"]) -> Float[Array, ""]:
    # Both components have variance 2 along each axis and covariance ±1.8.
    stretch, across = jnp.sqrt(3.8), jnp.sqrt(0.2)
    a, b = (z[0] + z[1]) / jnp.sqrt(2.0), (z[0] - z[1]) / jnp.sqrt(2.0)
    first = _normal(a, 0.0, stretch) + _normal(b, 0.0, across)
    second = _normal(a, 0.0, across) + _normal(b, 0.0, stretch)
    return jnp.logaddexp(first, second) - jnp.log(2.0)


def _two_modes(z: Float[Array, "2"]) -> Float[Array, ""]:
    mode = jnp.logaddexp(_normal(z[0], -2.0, 1.0), _normal(z[0], 2.0, 1.0)) - jnp.log(2.0)
    return mode + _normal(z[1], 0.0, 1.0)


def _funnel(z: Float[Array, "10"]) -> Float[Array, ""]:
    return _normal(z[0], 0.0, 3.0) + _normal(z[1:], 0.0, jnp.exp(z[0] / 2)).sum()


EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)


def _eight_schools(z) -> Float[Array, ""]:
    log_p = dist.HalfCauchy(5.0).log_prob(z["tau"]) + _normal(z["mu"], 0.0, 5.0)
    log_p += _normal(z["theta"], z["mu"], z["tau"]).sum()
    return log_p + _normal(jnp.asarray(EFFECTS), z["theta"], jnp.asarray(ERRORS)).sum()


def banana() -> Target:
    """z₁ ~ N(0, 2), z₂ ~ N(z₁²/4, 1). Normalised."""
    return target(_banana, jnp.zeros(2))


def x_shape() -> Target:
    """½ N(0, [[2, 1.8], [1.8, 2]]) + ½ N(0, [[2, −1.8], [−1.8, 2]]). Normalised."""
    return target(_x_shape, jnp.zeros(2))


def two_modes() -> Target:
    """½ N((−2, 0), I) + ½ N((2, 0), I). Normalised."""
    return target(_two_modes, jnp.zeros(2))


def funnel() -> Target:
    """Neal's funnel in ten dimensions: z₁ ~ N(0, 3), z₂..z₁₀ ~ N(0, e^{z₁/2}). Normalised."""
    return target(_funnel, jnp.zeros(10))


def eight_schools() -> Target:
    """Eight schools, centred: τ ~ HalfCauchy(5), μ ~ N(0, 5), θ_j ~ N(μ, τ), y_j ~ N(θ_j, σ_j). Not normalised."""
    example = {"mu": 0.0, "tau": 1.0, "theta": jnp.zeros(8)}
    return target(_eight_schools, example, {"mu": None, "tau": constraints.positive, "theta": None})


SHAPES = {
    "banana": banana,
    "x-shape": x_shape,
    "two-modes": two_modes,
    "funnel": funnel,
    "eight-schools": eight_schools,
}
