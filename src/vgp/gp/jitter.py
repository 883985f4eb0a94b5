"""The one place where jitter is added: a Cholesky factor that always succeeds, and says at what price."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

GROWTH = 10.0
ATTEMPTS = 6


def smallest(dtype) -> float:
    """The jitter tried first, relative to the mean diagonal: 1e-6 in float32, 1e-12 in float64."""
    return 1e-6 if jnp.finfo(dtype).eps > 1e-10 else 1e-12


@jax.custom_jvp
def cholesky(matrix: Float[Array, "m m"]) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """Lower factor of `matrix + jitter * I`, and the jitter that was needed.

    The jitter starts at `smallest` times the mean diagonal and grows tenfold until the factor is finite
    and its pivots stand clear of rounding. One factorisation where the matrix is well conditioned.
    """
    scale = jnp.mean(jnp.diagonal(matrix))
    floor = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * scale
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def attempt(jitter):
        return jnp.linalg.cholesky(matrix + jitter * eye, symmetrize_input=False)

    def failed(carry):
        factor, _, count = carry
        pivots = jnp.diagonal(factor) ** 2
        good = jnp.all(jnp.isfinite(factor)) & jnp.all(pivots > floor)
        return ~good & (count < ATTEMPTS)

    def grow(carry):
        _, jitter, count = carry
        return attempt(GROWTH * jitter), GROWTH * jitter, count + 1

    first = jnp.asarray(smallest(matrix.dtype), matrix.dtype) * scale
    factor, jitter, _ = jax.lax.while_loop(failed, grow, (attempt(first), first, 1))
    return factor, jitter


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # dL = L Φ(L⁻¹ dK L⁻ᵀ), Φ the lower triangle with half the diagonal; the jitter counts as a constant.
    (matrix,), (tangent,) = primals, tangents
    factor, jitter = cholesky(matrix)
    solve = partial(jax.scipy.linalg.solve_triangular, factor, lower=True)
    inner = solve(solve((tangent + tangent.T) / 2).T)
    halved = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diagonal(inner))
    return (factor, jitter), (factor @ halved, jnp.zeros_like(jitter))
