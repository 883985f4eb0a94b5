"""Triangular factors and their inverses, of one matrix or of many."""

from functools import wraps
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

BLOCK = 128  # rows up to which a library's factor and substitution are quickest: both wait for every row


def _one_by_one(function):
    # On the CPU a batch of matrices is shared out among the threads by a call that itself waits on one of them: two
    # such calls at once on two cores wait for each other for ever (seen with JAX 0.10). A loop over the batch does not.
    in_turn = jax.custom_batching.sequential_vmap(function)

    @wraps(function)
    def call(matrix):
        return (in_turn if jax.default_backend() == "cpu" else function)(matrix)

    return call


@_one_by_one
def _factor(matrix: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


@_one_by_one
def _inverse(lower: Float[Array, "m m"]) -> Float[Array, "m m"]:
    return solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)


class Factored(NamedTuple):
    """L with L Lᵀ the matrix, and L⁻¹; not finite where the matrix is not positive."""

    lower: Float[Array, "m m"]
    inverse: Float[Array, "m m"]


def factored(matrix: Float[Array, "m m"]) -> Factored:
    """The Cholesky factor of a symmetric matrix with its inverse, which above `BLOCK` rows are made of halves':

    of [A Cᵀ; C B] they are [L 0; D M] and [L⁻¹ 0; −M⁻¹DL⁻¹ M⁻¹], where L Lᵀ = A, D = C L⁻ᵀ and M Mᵀ = B − D Dᵀ.
    """
    m = matrix.shape[0]
    if m <= BLOCK:
        lower = _factor(matrix)
        return Factored(lower, _inverse(lower))
    half = BLOCK * -(-m // (2 * BLOCK))
    first = factored(matrix[:half, :half])
    below = _product(matrix[half:, :half], first.inverse.T)
    second = factored(matrix[half:, half:] - _product(below, below.T))
    corner = -_product(second.inverse, _product(below, first.inverse))
    return Factored(_joined(first.lower, below, second.lower), _joined(first.inverse, corner, second.inverse))


def _joined(a, corner, b):
    return jnp.block([[a, jnp.zeros_like(corner.T)], [corner, b]])


def _product(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
