"""An auxiliary model that knows the warp: the posterior of ξ under the warp made linear around a network's guess."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..auxiliary import AbstractAuxiliary
from ..families.process import Process, each_times, fold, unfold
from ..gp import Conditioner
from ..gp.jitter import cholesky
from ..gp.kernels import HIGHEST
from ..meanfield import AbstractMeanField
from ..noise import standard_normal
from .auxiliary import Standard

JITTER = 1e-6  # relative; the precision is one or more in every direction


def linearised(process: Process, steps: int) -> Process:
    """The process with so many steps of scoring between its auxiliary model's guess and r; none by zero."""
    if steps == 0:
        return process
    local = dataclasses.replace(process.local, beside=process.conditioner.latent_dim)
    known = dataclasses.replace(process, local=local)
    follows = steps == 1 and isinstance(process.auxiliary, Standard)
    return dataclasses.replace(process, auxiliary=FromZero(known) if follows else Linearised(known, steps))


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
        xi, factor = self._step(guess.base_dist.loc, e)
        for _ in range(self.steps - 1):
            xi, factor = self._step(xi, e)
        return Precise(xi, factor.lower, factor.inverse, guess.base_dist.scale)

    def _step(self, xi, e):
        jacobian, slope, root = self._linear(xi, e)
        factor = _factor(jacobian * root)
        return xi + _solved(factor, jnp.sum(jacobian * slope, axis=-1).T - xi), factor

    def _linear(self, xi: Float[Array, "n c"], e):
        # The derivative of q's parameters along each coordinate of ξ, (c, n, d), their slopes and root of information.
        def parameters(xi):
            return self.process.meanfield.slopes(self.process.meanfield.integrated(*self.process.warp(xi)), e)

        def along(direction):
            return jax.jvp(lambda xi: parameters(xi)[0], (xi,), (jnp.broadcast_to(direction, xi.shape),))[1]

        _, slope, root = parameters(xi)
        return jax.vmap(along)(jnp.eye(xi.shape[-1], dtype=xi.dtype)), slope, root

    def mapping(self, e, xi, prior):
        return prior


class FromZero(AbstractAuxiliary):
    """`Linearised` after one step from ξ = 0: J and the precision are the same for every z, and known before it."""

    process: Process

    def prepared(self) -> "Following":
        process, meanfield = self.process, self.process.meanfield
        like, conditioner = process.local.loc, process.conditioner
        b, dtype = like.shape[0], like.dtype
        # One row of the kernel and its derivative serve all datapoints, unless each has inputs of its own.
        zero = jnp.zeros((1, 1 if isinstance(conditioner, Conditioner) else b, conditioner.latent_dim), dtype)
        at, along = conditioner.rows(zero), jax.vmap(lambda v: jax.jvp(conditioner.rows, (zero,), (v + zero,))[1])

        def conditional(weights, variance):
            return meanfield.integrated(*process.warped(weights, jnp.broadcast_to(variance, (1, b)), zero))

        def parameters(*rows):
            return meanfield.slopes(conditional(*rows), jnp.zeros_like(like))

        moved = jax.vmap(lambda *v: jax.jvp(lambda *rows: parameters(*rows)[0], at, v)[1])
        jacobian = moved(*along(jnp.eye(conditioner.latent_dim, dtype=dtype)))
        factor = _factor(jacobian * parameters(*at)[-1])
        return Following(meanfield, conditional(*at), jacobian, factor.lower, factor.inverse)

    def latent(self, e):
        return self.prepared().latent(e)

    def mapping(self, e, xi, prior):
        return prior

    def flips(self, e, xi):
        return self.prepared().flips(e, xi)


class Following(AbstractAuxiliary):
    """`FromZero` with all that does not depend on z computed."""

    meanfield: AbstractMeanField
    conditional: Any  # q(z | ξ = 0)
    jacobian: Float[Array, "c b d"]
    lower: Float[Array, "b c c"]
    inverse: Float[Array, "b c c"]

    def latent(self, e):
        b = len(self.lower)
        slope = self.meanfield.slopes(self.conditional, fold(e, b))[1]
        up = jnp.moveaxis(jnp.sum(self.jacobian[:, None] * slope, axis=-1), 0, -1)
        loc = unfold(_solved(self, up), b)
        copies = (len(e) // b, 1, 1)
        return Precise(loc, jnp.tile(self.lower, copies), jnp.tile(self.inverse, copies), jnp.ones_like(loc))

    def mapping(self, e, xi, prior):
        return prior

    def flips(self, e, xi):
        # The mean is linear in the slopes, and those of binary variables are z − p: a flip moves it along a row of the
        # inverse precision, by one.
        b, q = len(self.lower), self.latent(e)
        along = jnp.einsum("cbd,kbc->kbd", self.jacobian, fold(xi - q.loc, b))
        white = jnp.einsum("bic,cbd->bid", self.inverse, self.jacobian)
        return unfold(-fold(e, b) * along - 0.5 * jnp.sum(white**2, axis=1), b)


def _factor(scaled: Float[Array, "c n d"]):
    # Of the precision I + Jᵀ w J, from √w J.
    product = jnp.einsum("ind,jnd->nij", scaled, scaled, precision=HIGHEST)
    return jax.vmap(lambda matrix: cholesky(matrix, JITTER))(jnp.eye(len(scaled), dtype=scaled.dtype) + product)


def _solved(factor: Any, up: Float[Array, "*k n c"]) -> Float[Array, "*k n c"]:
    # (C Cᵀ)⁻¹ up.
    return each_times(each_times(up, factor.inverse.swapaxes(1, 2)), factor.inverse)


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
