"""The Gaussian process conditioned on variational data (eq. `gp_posterior`), dense."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .jitter import cholesky
from .kernels import HIGHEST, AbstractKernel


class AbstractConditioner(eqx.Module):
    """Kernel and variational inputs s, made ready once per step: it knows nothing of the outputs t.

    To add one, subclass and give `latent_dim`, the number c of coordinates of an input, and `rows(xi)`: weights w(ξ)
    and variance v(ξ) of the process at each ξ, so that the conditional mean of any output with t = L u is w(ξ) u. The
    weights are an array, or something that knows `weights @ u` without being one.
    """

    @property
    @abc.abstractmethod
    def latent_dim(self) -> int: ...

    @abc.abstractmethod
    def rows(self, xi: Float[Array, "*k c"]) -> tuple[Any, Float[Array, "*k"]]: ...


class Conditioner(AbstractConditioner):
    """The factor of K_ss for one set of inputs: it serves every output, draw and datapoint.

    `jitter` is relative to the mean diagonal; None finds the smallest that will do.
    """

    kernel: AbstractKernel
    inputs: Float[Array, "m c"]
    factor: Float[Array, "m m"]  # L, with L Lᵀ = C_ss + jitter and C = K / σ²
    whitener: Float[Array, "m m"]  # L⁻¹
    jitter: Float[Array, ""]

    def __init__(self, kernel: AbstractKernel, inputs: Float[Array, "m c"], jitter: float | None = None):
        self.kernel = kernel
        self.inputs = inputs
        if inputs.shape[0] == 0:
            self.factor = self.whitener = jnp.zeros((0, 0), inputs.dtype)
            self.jitter = jnp.zeros((), inputs.dtype)
        else:
            self.factor, self.whitener, self.jitter = cholesky(kernel.gram(inputs), jitter)

    @property
    def latent_dim(self) -> int:
        return self.inputs.shape[1]

    def rows(self, xi):
        points = xi.reshape(-1, self.latent_dim)
        cross = self.kernel.correlation(points, self.inputs)
        weights = jnp.matmul(cross, self.whitener.T, precision=HIGHEST)
        explained = jnp.sum(weights**2, axis=1)
        # Rounding may leave less than nothing; what the jitter adds at an input is the least that can be told.
        left = jnp.maximum(self.kernel.correlation_diagonal(points) - explained, self.jitter)
        variance = self.kernel.variance * left
        return weights.reshape(*xi.shape[:-1], weights.shape[-1]), variance.reshape(xi.shape[:-1])

    def colour(self, whitened: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """t = L u."""
        return self.factor @ whitened

    def whiten(self, outputs: Float[Array, "m p"]) -> Float[Array, "m p"]:
        """u = L⁻¹ t."""
        return self.whitener @ outputs

    def __call__(
        self, xi: Float[Array, "n c"], whitened: Float[Array, "m p"]
    ) -> tuple[Float[Array, "n p"], Float[Array, " n"]]:
        """Mean A(ξ)t of every output t = L u, given u, and the variance v(ξ) that the outputs share."""
        weights, variance = self.rows(xi)
        return weights @ whitened, variance


class EachConditioner(AbstractConditioner):
    """One set of inputs per datapoint, as in the paper's text: m³ work for each of them.

    The last axis but one of ξ runs over the datapoints.
    """

    each: Conditioner  # every array with a leading axis of datapoints

    def __init__(self, kernel: AbstractKernel, inputs: Float[Array, "b m c"], jitter: float | None = None):
        each = eqx.filter_vmap(lambda points: Conditioner(kernel, points, jitter), out_axes=eqx.if_array(0))
        self.each = each(inputs)

    @property
    def latent_dim(self) -> int:
        return self.each.inputs.shape[-1]

    def rows(self, xi):
        return jax.vmap(lambda one, points: one.rows(points), in_axes=(0, -2), out_axes=(-2, -1))(self.each, xi)
