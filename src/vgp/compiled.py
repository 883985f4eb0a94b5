"""What the host asks of targets and families outside of training, each compiled once per shape."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from .families.base import AbstractFamily
from .target import Target, Values


@eqx.filter_jit
def log_probs(target: Target, u: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log p at n points, as many at a time as fit in memory."""
    return jax.lax.map(target.log_prob, u, batch_size=1024)


@eqx.filter_jit
def sample(family: AbstractFamily, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
    """n draws of a family."""
    return family.sample(key, n)


@eqx.filter_jit
def constrained(target: Target, u: Float[Array, "n d"]) -> Values:
    """The user's values at n points, with a leading axis."""
    return jax.vmap(target.constrain)(u)
