"""The Gaussian process conditioned on variational data (eq. `gp_posterior`), dense."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .jitter import cholesky
from .kernels import AbstractKernel


class Conditioner(eqx.Module):
    """Kernel, variational inputs s and the factor of K_ss: built once per step, whatever uses it.

    It knows nothing of the outputs t: the same conditioner serves every output, draw and datapoint.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "m c"]
    factor: Float[Array, "m m"]  # L, with L Lᵀ = C_ss + jitter and C = K / σ²
    whitener: Float[Array, "m m"]  # L⁻¹
    jitter: Float[Array, ""]

    def __init__(self, kernel: AbstractKernel, inputs: Float[Array, "m c"]):
        self.kernel = kernel
        self.inputs = inputs
        if inputs.shape[0] == 0:
            self.factor = self.whitener = jnp.zeros((0, 0), inputs.dtype)
            self.jitter = jnp.zeros((), inputs.dtype)
        else:
            self.factor, self.whitener, self.jitter = cholesky(kernel.gram(inputs))

    def weigh(self, whitened: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """α = C_ss⁻¹ t for outputs t = L u, so that the conditional mean is c(ξ, s) α: no solve per ξ."""
        return self.whitener.T @ whitened

    def __call__(
        self, xi: Float[Array, "n c"], alpha: Float[Array, "m p"]
    ) -> tuple[Float[Array, "n p"], Float[Array, " n"]]:
        """Mean A(ξ)t of every output and the variance v(ξ) that the outputs share."""
        cross = self.kernel.correlation(xi, self.inputs)
        explained = jnp.sum((cross @ self.whitener.T) ** 2, axis=1)
        # Rounding may leave less than nothing; what the jitter adds at an input is the least that can be told.
        left = jnp.maximum(self.kernel.correlation_diagonal(xi) - explained, self.jitter)
        return cross @ alpha, self.kernel.variance * left
