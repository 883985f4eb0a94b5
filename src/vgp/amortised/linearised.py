"""An auxiliary model that knows the warp: the posterior of ξ under the warp made linear around a network's guess."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..auxiliary import AbstractAuxiliary
from ..families.process import Process, each_times
from ..gp import Conditioner
from ..gp.jitter import cholesky
from ..gp.kernels import HIGHEST
from ..noise import standard_normal
from .auxiliary import Standard

JITTER = 1e-6  # relative; the precision is one or more in every direction


def linearised(process: Process, steps: int) -> Process:
    """The process with so many steps of scoring between its auxiliary model's guess and r; none by zero."""
    if steps == 0:
        return process
    local = dataclasses.replace(process.local, beside=process.conditioner.latent_dim)
    known = dataclasses.replace(process, local=local)
    return dataclasses.replace(process, auxiliary=Linearised(known, steps))


class Linearised(AbstractAuxiliary):
    """r(ξ | x, z) = N(ξ̂, C⁻ᵀ D² C⁻¹): steps of Fisher's scoring from the guess of the process's own auxiliary model.

    With parameters a(ξ) ≈ a(ξ₀) + J (ξ − ξ₀) of q(z | ξ), their slopes s = ∂ log q / ∂a and their information w there,
    the precision is C Cᵀ = I + Jᵀ w J and the mean ξ̂ = ξ₀ + (C Cᵀ)⁻¹ (Jᵀ s − ξ₀). For a Normal mean-field, where a is
    the mean, w = n⁻¹ for noise of variance n and s = (e − a) / n, that is exact for a linear warp. ξ₀ is the guess's
    mean and D its scale, one for a guess that leaves the precision as it is. J is the warp's derivative, c passes
    through it; the family itself needs none.
    """

    process: Process
    steps: int = eqx.field(static=True)

    def latent(self, e):
        guess: Any = self.process.auxiliary.latent(e)
        xi, factor = self._step(guess.base_dist.loc, self._first(guess.base_dist.loc, e))
        for _ in range(self.steps - 1):
            xi, factor = self._step(xi, self._linear(xi, e))
        return Precise(xi, factor.lower, factor.inverse, guess.base_dist.scale)

    def _step(self, xi, linear):
        jacobian, slope, root = linear
        scaled = jacobian * root
        product = jnp.einsum("ind,jnd->nij", scaled, scaled, precision=HIGHEST)
        factor = jax.vmap(lambda matrix: cholesky(matrix, JITTER))(jnp.eye(len(scaled), dtype=xi.dtype) + product)
        up = jnp.sum(jacobian * slope, axis=-1).T - xi
        return xi + each_times(each_times(up, factor.inverse.swapaxes(1, 2)), factor.inverse), factor

    def _first(self, xi, e):
        datapoints, shared = self.process.local.datapoints, isinstance(self.process.conditioner, Conditioner)
        if datapoints is None or not shared or not isinstance(self.process.auxiliary, Standard):
            return self._linear(xi, e)
        return self._linear_at_zero(e, datapoints)

    def _linear_at_zero(self, e, b: int):
        # `_linear` at ξ = 0 for all of e: one row of the kernel, and its derivative, serve all b datapoints.
        conditioner = self.process.conditioner
        zero = jnp.zeros((len(e) // b, 1, conditioner.latent_dim), e.dtype)
        at, along = conditioner.rows(zero), jax.vmap(lambda v: jax.jvp(conditioner.rows, (zero,), (v + zero,))[1])

        def parameters(weights, variance):
            variance = jnp.broadcast_to(variance, (len(e) // b, b))
            return self._slopes(*self.process.warped(weights, variance, zero), e)

        _, slope, root = parameters(*at)
        moved = jax.vmap(lambda *v: jax.jvp(lambda *at: parameters(*at)[0], at, v)[1])
        return moved(*along(jnp.eye(conditioner.latent_dim, dtype=e.dtype))), slope, root

    def _linear(self, xi: Float[Array, "n c"], e):
        # The derivative of q's parameters along each coordinate of ξ, (c, n, d), their slopes and root of information.
        def parameters(xi):
            return self._slopes(*self.process.warp(xi), e)

        def along(direction):
            return jax.jvp(lambda xi: parameters(xi)[0], (xi,), (jnp.broadcast_to(direction, xi.shape),))[1]

        _, slope, root = parameters(xi)
        return jax.vmap(along)(jnp.eye(xi.shape[-1], dtype=xi.dtype)), slope, root

    def _slopes(self, mean, variance, drive, e):
        meanfield = self.process.meanfield
        return meanfield.slopes(meanfield.integrated(mean, variance, drive), e)

    def mapping(self, e, xi, prior):
        return prior

    def flips(self, e, xi):
        # After one step from a guess that does not depend on z the mean is linear in the slopes, and those of binary
        # variables are z − p: a flip moves it along a row of the inverse precision, by one.
        if self.steps > 1 or not isinstance(self.process.auxiliary, Standard):
            return None
        q: Any = self.latent(e)
        jacobian, _, _ = self._first(jnp.zeros_like(q.loc), e)
        along = jnp.einsum("cnd,nc->nd", jacobian, xi - q.loc)
        white = jnp.einsum("nbc,cnd->nbd", q.inverse, jacobian)
        return -e * along - 0.5 * jnp.sum(white**2, axis=1)


class Precise(eqx.Module):
    """N(loc, C⁻ᵀ D² C⁻¹), from the factor C of a precision and a diagonal D."""

    loc: Float[Array, "n c"]
    factor: Float[Array, "n c c"]
    inverse: Float[Array, "n c c"]
    scale: Float[Array, "n c"]

    def sample(self, key, shape=()):
        noise = self.scale * standard_normal(key, (*shape, *self.loc.shape), self.loc.dtype)
        return self.loc + each_times(noise, self.inverse)

    def log_prob(self, xi):
        white = each_times(xi - self.loc, self.factor) / self.scale
        volume = jnp.log(jnp.diagonal(self.factor, axis1=-2, axis2=-1)) - jnp.log(self.scale)
        return jnp.sum(volume - 0.5 * white**2 - 0.5 * jnp.log(2 * jnp.pi), axis=-1)
