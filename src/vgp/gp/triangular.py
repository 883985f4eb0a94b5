"""The inverse of a triangular matrix, by blocks."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

BLOCK = 64
LARGE = 256  # from here on products of blocks are faster than one substitution, which waits for every row


def inverse(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """L⁻¹. From `LARGE` rows on the diagonal blocks are inverted side by side, and then joined two by two:

    [A 0; C B]⁻¹ = [A⁻¹ 0; −B⁻¹CA⁻¹ B⁻¹], in log₂(m / 64) rounds of matrix products.
    """
    m = lower.shape[0]
    if m < LARGE:
        return solve_triangular(lower, jnp.eye(m, dtype=lower.dtype), lower=True)
    size = BLOCK
    while size < m:
        size *= 2
    padded = jnp.eye(size, dtype=lower.dtype).at[:m, :m].set(lower)
    blocks = _diagonal(padded, BLOCK)
    eye = jnp.broadcast_to(jnp.eye(BLOCK, dtype=lower.dtype), blocks.shape)
    inverses = solve_triangular(blocks, eye, lower=True)
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
