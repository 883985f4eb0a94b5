"""Triangular factors and their inverses, of one matrix or of many."""

from functools import wraps

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

BLOCK = 64
LARGE = 256  # from here on products of blocks are faster than one substitution, which waits for every row


def _one_by_one(function):
    # On the CPU a batch of matrices is shared out among the threads by a call that itself waits on one of them: two
    # such calls at once on two cores wait for each other for ever (seen with JAX 0.10). A loop over the batch does not.
    in_turn = jax.custom_batching.sequential_vmap(function)

    @wraps(function)
    def call(matrix):
        return (in_turn if jax.default_backend() == "cpu" else function)(matrix)

    return call


@_one_by_one
def factored(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The Cholesky factor of a symmetric matrix; not finite where the matrix is not positive."""
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


@_one_by_one
def _substituted(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)


def inverse(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """L⁻¹. From `LARGE` rows on the diagonal blocks are inverted side by side, and then joined two by two:

    [A 0; C B]⁻¹ = [A⁻¹ 0; −B⁻¹CA⁻¹ B⁻¹], in log₂(m / 64) rounds of matrix products.
    """
    m = lower.shape[0]
    if m < LARGE:
        return _substituted(lower)
    size = BLOCK
    while size < m:
        size *= 2
    padded = jnp.eye(size, dtype=lower.dtype).at[:m, :m].set(lower)
    inverses = jax.vmap(_substituted)(_diagonal(padded, BLOCK))
    while len(inverses) > 1:
        a, b = inverses[::2], inverses[1::2]
        width = a.shape[-1]
        c = _diagonal(padded, 2 * width)[:, width:, :width]
        corner = -_product(b, _product(c, a))
        inverses = jnp.block([[a, jnp.zeros_like(a)], [corner, b]])
    return inverses[0, :m, :m]


def _diagonal(matrix: Float[Array, "m m"], width: int) -> Float[Array, "n w w"]:
    count = matrix.shape[0] // width
    each = jnp.arange(count)
    return matrix.reshape(count, width, count, width)[each, :, each, :]


def _product(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
