"""The Gaussian process conditioned on variational data (eq. `gp_posterior`), dense."""

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg as linalg
from jaxtyping import Array, Float

from .jitter import cholesky
from .kernels import AbstractKernel


class Conditioner(eqx.Module):
    """Kernel, variational inputs s and the factor of K_ss: built once per step, whatever uses it.

    It knows nothing of the outputs t: the same conditioner serves every output, draw and datapoint.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "m c"]
    whitener: Float[Array, "m m"]
    jitter: Float[Array, ""]

    def __init__(self, kernel: AbstractKernel, inputs: Float[Array, "m c"]):
        self.kernel = kernel
        self.inputs = inputs
        m = inputs.shape[0]
        if m == 0:
            self.whitener, self.jitter = jnp.zeros((0, 0), inputs.dtype), jnp.zeros((), inputs.dtype)
        else:
            factor, self.jitter = cholesky(kernel.gram(inputs))
            self.whitener = linalg.solve_triangular(factor, jnp.eye(m, dtype=factor.dtype), lower=True)

    def weigh(self, outputs: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """α = C_ss⁻¹ t with C = K / σ², so that the conditional mean is c(ξ, s) α: no solve per ξ."""
        return self.whitener.T @ (self.whitener @ outputs)

    def __call__(
        self, xi: Float[Array, "n c"], alpha: Float[Array, "m p"]
    ) -> tuple[Float[Array, "n p"], Float[Array, " n"]]:
        """Mean A(ξ)t of every output and the variance v(ξ) that the outputs share."""
        cross = self.kernel.correlation(xi, self.inputs)
        explained = jnp.sum((cross @ self.whitener.T) ** 2, axis=1)
        # With K_ss + jitter I the variance cannot truly fall below the jitter; rounding could make it.
        left = jnp.maximum(self.kernel.correlation_diagonal(xi) - explained, self.jitter)
        return cross @ alpha, self.kernel.variance * left
