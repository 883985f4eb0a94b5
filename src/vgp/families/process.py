"""The Gaussian process conditioned on variational data, as bounds see it: with f integrated out, or kept.

A VGP has two parts. The *conditioner* (kernel, variational inputs and their factor) is built once per step and shared
by all draws and datapoints; the *local* part may belong to the family, or come from an inference network with one row
per datapoint. Row i of n draws then belongs to datapoint i modulo their number.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ..auxiliary import AbstractAuxiliary
from ..gp import AbstractConditioner
from ..meanfield import AbstractMeanField
from ..noise import sample, standard_normal
from .base import AbstractView

FEW = 8  # rows


class Local(eqx.Module):
    """The local part of a VGP: z = loc + scale ⊙ (linear ξ + A(ξ) t + noise), t = L u.

    `outputs` are the whitened outputs u, (m, p), or (b, m, p) for b datapoints; with a `basis` U of shape (m, R) they
    are (b, R, p) and u = U G. `linear` is (p, c) or (b, p, c), `loc` and `scale` are (d,) or (b, d); no scale is one
    of ones. For a mean-field that is not located there is none, and `loc` is added to f. `beside` is how many ξ of a
    datapoint there are for each that is seen here, under a `vmap`.
    """

    outputs: Float[Array, "*a r p"]
    linear: Float[Array, "*e p c"] | None
    loc: Float[Array, "*b d"]
    scale: Float[Array, "*b d"] | None = None
    basis: Float[Array, "m r"] | None = None
    beside: int = eqx.field(static=True, default=1)

    @property
    def datapoints(self) -> int | None:
        """How many datapoints have a part of their own; None where the part is shared."""
        return self.loc.shape[0] if self.loc.ndim == 2 else None

    def mean(self, weights: Any, xi: Float[Array, "*e c"]) -> Float[Array, "*k p"]:
        """The mean function and A(ξ) t, from the whitened rows of the conditioner."""
        if self.basis is not None:
            weights = weights @ self.basis
        shared = self.outputs.ndim == 2
        mean = weights @ self.outputs if shared else each_times(weights, self.outputs, self.beside)
        if self.linear is None:
            return mean
        if self.linear.ndim == 2:
            return mean + xi @ self.linear.T
        return mean + each_times(xi, self.linear.swapaxes(1, 2), self.beside)


def each_times(
    rows: Float[Array, "*k e m"], matrices: Float[Array, "n m p"], beside: int = 1
) -> Float[Array, "*k n p"]:
    """Rows times the matrix of their datapoint; `beside` as in `Local`. One row serves all datapoints.

    With few rows for each a GPU reads the matrices where they lie, in a sum: its libraries have many products of a row
    each for a special case, slow or unknown, and for a few rows each XLA turns the matrices first, which moves more.
    """
    if beside * math.prod(rows.shape[:-2]) > FEW or jax.default_backend() == "cpu":
        rows = jnp.broadcast_to(rows, (*rows.shape[:-2], *matrices.shape[:-1]))
        return jnp.einsum("...nm,nmp->...np", rows, matrices)
    return jnp.sum(rows[..., None] * matrices, axis=-2)


def fold(rows: Float[Array, "*k n q"], datapoints: int | None) -> Float[Array, "..."]:
    """Rows (…, n, q) as (…, n / b, b, q), so that what belongs to b datapoints broadcasts."""
    if datapoints is None:
        return rows
    if rows.shape[-2] % datapoints:
        raise ValueError(f"The draws must be a multiple of the {datapoints} datapoints, got {rows.shape[-2]}.")
    return rows.reshape(*rows.shape[:-2], rows.shape[-2] // datapoints, datapoints, rows.shape[-1])


def unfold(rows: Float[Array, "..."], datapoints: int | None) -> Float[Array, "*k n q"]:
    """The inverse of `fold`."""
    return rows if datapoints is None else rows.reshape(*rows.shape[:-3], math.prod(rows.shape[-3:-1]), rows.shape[-1])


class Process(eqx.Module):
    """A VGP with its variational data conditioned on: one Cholesky factor for all that follows."""

    conditioner: AbstractConditioner
    local: Local
    meanfield: AbstractMeanField
    auxiliary: AbstractAuxiliary

    def warp(self, xi: Float[Array, "*k c"]):
        """Mean (…, p) and variance (…, 1) of f(ξ), and the means of the outputs that drive the mean-field otherwise."""
        xi = fold(xi, self.local.datapoints)
        return self.warped(*self.conditioner.rows(xi), xi)

    def warped(self, weights: Any, variance: Float[Array, "*k"], xi: Float[Array, "*e c"]):
        """`warp` from the conditioner's rows at ξ, which are folded by datapoint."""
        mean, drive = jnp.split(self.local.mean(weights, xi), [self.local.loc.shape[-1]], axis=-1)
        if self.local.scale is None:  # units are those of z, and `placed` has nothing to do
            mean = mean + self.local.loc
        mean, variance, drive = (unfold(x, self.local.datapoints) for x in (mean, variance[..., None], drive))
        return mean, variance, drive if drive.shape[-1] else None

    def placed(self, q: Any) -> Any:
        """The distribution of z = loc + scale w for w ~ q, where the local part has a scale."""
        if self.local.scale is None:
            return q
        normal: Any = q.base_dist
        b = self.local.datapoints
        loc = self.local.loc + self.local.scale * fold(normal.loc, b)
        return dist.Normal(unfold(loc, b), unfold(self.local.scale * fold(normal.scale, b), b)).to_event(1)

    def residual(self, z: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """e = (z − loc) / scale, what the auxiliary model sees; or what the mean-field shows of z."""
        if not self.meanfield.located:
            return self.meanfield.seen(z)
        b = self.local.datapoints
        e = fold(z, b) - self.local.loc
        return unfold(e if self.local.scale is None else e / self.local.scale, b)

    def mapping(self, mean: Float[Array, "*k d"], variance: Float[Array, "*k 1"]) -> dist.Distribution:
        """q(f | ξ). A variance of exactly zero becomes a sliver, whose gradient is zero and not infinite."""
        some = variance > 0
        scale = jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1.0)), 1e-6)
        return dist.Normal(mean, jnp.broadcast_to(scale, mean.shape)).to_event(1)

    def latent(self, key, n) -> Float[Array, "n c"]:
        """ξ ~ N(0, I)."""
        return standard_normal(key, (n, self.conditioner.latent_dim), self.local.loc.dtype)


def log_standard_normal(xi: Float[Array, "*n c"]) -> Float[Array, "*n"]:
    """log q(ξ)."""
    return dist.Normal(jnp.zeros((), xi.dtype), 1.0).log_prob(xi).sum(-1)


class Collapsed(AbstractView):
    """f integrated out: q(z | ξ) = N(m(ξ) + A(ξ)t, v(ξ) + s²) for a Normal mean-field. The latent is ξ."""

    process: Process

    def sample_latent(self, key, n):
        return self.process.latent(key, n)

    def log_latent(self, y):
        return log_standard_normal(y)

    def conditional(self, y):
        mean, variance, drive = self.process.warp(y)
        return self.process.placed(self.process.meanfield.integrated(mean, variance, drive))

    def posterior(self, z):
        return self.process.auxiliary.latent(self.process.residual(z))

    def prepared(self):
        return Collapsed(dataclasses.replace(self.process, auxiliary=self.process.auxiliary.prepared()))

    def flips(self, z, y):
        found = self.process.auxiliary.flips(self.process.residual(z), y)
        return None if found is None else -found


class Extended(AbstractView):
    """f kept: the latent is the pair (ξ, f), f in whitened units. For mean-fields that do not integrate."""

    process: Process

    def sample_latent(self, key, n):
        xi_key, f_key = jr.split(key)
        xi = self.process.latent(xi_key, n)
        return xi, sample(self.mapping(xi), f_key)

    def mapping(self, xi: Float[Array, "*k c"]) -> dist.Distribution:
        """q(f | ξ)."""
        mean, variance, _ = self.process.warp(xi)
        return self.process.mapping(mean, variance)

    def log_latent(self, y):
        xi, f = y
        return log_standard_normal(xi) + self.mapping(xi).log_prob(f)

    def conditional(self, y):
        xi, f = y
        _, _, drive = self.process.warp(xi)
        return self.process.placed(self.process.meanfield.given(f, drive))

    def posterior(self, z):
        e = self.process.residual(z)
        return ExtendedPosterior(self, e, self.process.auxiliary.latent(e))


class ExtendedPosterior(eqx.Module):
    """r(ξ | z) r(f | ξ, z)."""

    view: Extended
    e: Float[Array, "n d"]
    latent: dist.Distribution

    def mapping(self, xi: Float[Array, "*k n c"]) -> dist.Distribution:
        """r(f | ξ, z)."""
        return self.view.process.auxiliary.mapping(self.e, xi, self.view.mapping(xi))

    def sample(self, key, shape=()):
        xi_key, f_key = jr.split(key)
        xi = sample(self.latent, xi_key, shape)
        return xi, sample(self.mapping(xi), f_key)

    def log_prob(self, y):
        xi, f = y
        return self.latent.log_prob(xi) + self.mapping(xi).log_prob(f)
