"""Scales from networks."""

import jax.numpy as jnp
from jaxtyping import Array, Float

LEAST = -8.0  # of a log scale


def positive(log_scale: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """exp(log_scale), bent so that it stays above e⁻⁸."""
    return jnp.exp(LEAST + jnp.logaddexp(log_scale - LEAST, 0.0))
