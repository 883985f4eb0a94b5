"""Reparameterised draws whose noise is made once."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray


def standard_normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype) -> Float[Array, "..."]:
    """Standard normal noise by the inverse error function, as `jax.random.normal`, but computed only once.

    The compiler would copy that function into every place that uses the noise: fifteen copies, a third of a
    step's program. It does not look into a loop, so the function goes through one, of two turns; where a launch costs
    more than the function, on an accelerator, it does not.
    """
    if jax.default_backend() != "cpu":
        return jr.normal(key, shape, dtype)
    half = -(-math.prod(shape) // 2)
    below = jnp.nextafter(jnp.array(-1.0, dtype), jnp.array(0.0, dtype))
    uniform = jr.uniform(key, (2, half), dtype, minval=below, maxval=1.0)
    noise = jax.lax.map(lambda u: jnp.sqrt(jnp.array(2.0, dtype)) * jax.lax.erf_inv(u), uniform)
    return noise.reshape(-1)[: math.prod(shape)].reshape(shape)


def sample(q: Any, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Any:
    """A reparameterised draw of q; factorised Normals, the usual case, through `standard_normal`."""
    base = q.base_dist if isinstance(q, dist.Independent) else None
    if not isinstance(base, dist.Normal):
        return q.sample(key, shape)
    loc, scale = jnp.asarray(base.loc), jnp.asarray(base.scale)
    return loc + scale * standard_normal(key, shape + q.shape(), loc.dtype)


def initial_normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Standard normal starting values. Outside of a compiled function they are drawn by numpy, seeded by the
    key, since compiling a generator for one draw would take longer than all the rest of a family's set-up.
    """
    if isinstance(key, Tracer):
        return jr.normal(key, shape)
    seed = np.asarray(jr.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key)
    return jnp.asarray(np.random.default_rng(seed.ravel()).normal(size=shape), float)
