"""The one place where jitter is added: a Cholesky factor that always succeeds, and says at what price."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .triangular import factored, inverse

GROWTH = 10.0
ATTEMPTS = 6


class Factor(NamedTuple):
    """`lower` L with L Lᵀ = K + jitter I, its inverse, and the jitter that was needed."""

    lower: Float[Array, "m m"]
    inverse: Float[Array, "m m"]
    jitter: Float[Array, ""]


def smallest(dtype) -> float:
    """The jitter tried first, relative to the mean diagonal: 1e-6 in float32, 1e-12 in float64."""
    return 1e-6 if jnp.finfo(dtype).eps > 1e-10 else 1e-12


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def cholesky(matrix: Float[Array, "m m"], relative: float | None = None) -> Factor:
    """The Cholesky factor of `matrix + jitter * I`, and its inverse.

    The jitter starts at `smallest` times the mean diagonal and grows tenfold until the factor is finite
    and its pivots stand clear of rounding. One factorisation where the matrix is well conditioned. A search cannot
    be left to an accelerator, which would wait for the host at every turn: where `relative` is given, that times the
    mean diagonal is the jitter, and a matrix for which it is too little has a factor that is not finite.
    """
    scale = jnp.mean(jnp.diagonal(matrix))
    floor = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * scale
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def attempt(jitter):
        return factored(matrix + jitter * eye)

    if relative is not None:
        lower = attempt(relative * scale)
        return Factor(lower, inverse(lower), relative * scale)

    def failed(carry):
        lower, _, count = carry
        good = jnp.all(jnp.isfinite(lower)) & jnp.all(jnp.diagonal(lower) ** 2 > floor)
        return ~good & (count < ATTEMPTS)

    def grow(carry):
        _, jitter, count = carry
        return attempt(GROWTH * jitter), GROWTH * jitter, count + 1

    first = jnp.asarray(smallest(matrix.dtype), matrix.dtype) * scale
    lower, jitter, _ = jax.lax.while_loop(failed, grow, (attempt(first), first, 1))
    return Factor(lower, inverse(lower), jitter)


@cholesky.defjvp
def _cholesky_jvp(relative, primals, tangents):
    # dL = L Φ and dL⁻¹ = −Φ L⁻¹, with Φ the lower triangle of L⁻¹ dK L⁻ᵀ, its diagonal halved: products
    # only, no solves. The jitter counts as a constant.
    (matrix,), (tangent,) = primals, tangents
    factor = cholesky(matrix, relative)
    inner = _product(factor.inverse, _product((tangent + tangent.T) / 2, factor.inverse.T))
    phi = inner * (np.tri(len(inner), k=-1) + 0.5 * np.eye(len(inner))).astype(inner.dtype)
    moved = Factor(_product(factor.lower, phi), -_product(phi, factor.inverse), jnp.zeros_like(factor.jitter))
    return factor, moved


def _product(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
