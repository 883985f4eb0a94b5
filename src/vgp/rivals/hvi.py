"""Hamiltonian variational inference (Salimans, Kingma & Welling 2015): leapfrog steps on the posterior itself."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.auxiliary import Informed, InformedAt
from ..amortised.base import AbstractEncoder
from ..amortised.networks import Dense, Trunk
from ..amortised.scale import positive
from ..families.base import AbstractExact, Draw
from ..families.process import fold, unfold
from ..noise import standard_normal


class HamiltonianEncoder(AbstractEncoder):
    """z₀ ~ N(μ(x), σ(x)²) and a momentum v₀ ~ N(0, I), then `leapfrogs` steps on log p(x, z), in units of σ(x).

    The step sizes are learned, one per variable. The reverse model r(v | x, z) is a network.
    """

    dim: int = eqx.field(static=True)
    leapfrogs: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    log_scale: Dense
    log_step: Float[Array, " d"]
    reverse: Informed
    latent_dim: int = eqx.field(static=True, default=0)

    def __init__(self, sizes: tuple[int, ...], dim: int, leapfrogs: int = 8, *, width: int = 200, key: PRNGKeyArray):
        keys = jr.split(key, 4)
        self.dim, self.leapfrogs, self.latent_dim = dim, leapfrogs, 0
        self.trunk = Trunk(sizes, key=keys[0])
        features = self.trunk.width
        self.loc, self.log_scale = Dense(features, dim, key=keys[1]), Dense(features, dim, zero=True, key=keys[2])
        self.log_step = jnp.full(dim, jnp.log(0.1))
        self.reverse = Informed(features, dim, dim, width, key=keys[3])

    def at(self, x, model: Any = None):
        if model is None:
            raise TypeError(
                "Hamiltonian variational inference follows the model's own gradient; pass it: at(x, model)."
            )
        h = self.trunk(x)
        step = jnp.exp(self.log_step)
        scale = positive(self.log_scale(h))
        return Hamiltonian(
            dim=self.dim,
            leapfrogs=self.leapfrogs,
            loc=self.loc(h),
            scale=scale,
            step=step,
            target=model.at(x),
            reverse=self.reverse.at(h),
        )


class Hamiltonian(AbstractExact):
    """The dynamics at b datapoints. `log_q` of a draw is log q(z₀) + log q(v₀) − log r(v | x, z): a bound on log q(z)
    in the mean, as the VGP's with K = 0.
    """

    dim: int = eqx.field(static=True)
    leapfrogs: int = eqx.field(static=True)
    loc: Float[Array, "b d"]
    scale: Float[Array, "b d"]
    step: Float[Array, " d"]
    target: Any
    reverse: InformedAt
    place: None = None

    def _draw(self, key: PRNGKeyArray, n: int):
        rows, z_key, v_key = self.loc.shape[0], *jr.split(key)
        noise = standard_normal(z_key, (n, self.dim), self.loc.dtype)
        v = standard_normal(v_key, (n, self.dim), self.loc.dtype)
        z = unfold(self.loc + self.scale * fold(noise, rows), rows)
        volume = jnp.sum(jnp.log(self.scale), axis=-1)
        normal = dist.Normal(0.0, 1.0)
        log_q = normal.log_prob(noise).sum(-1) - jnp.tile(volume, n // rows) + normal.log_prob(v).sum(-1)
        size = unfold(jnp.broadcast_to(self.step * self.scale, fold(noise, rows).shape), rows)
        slope = jax.grad(lambda z: jnp.sum(self.target.log_probs(z)))

        def leap(carry, _):
            z, v = carry
            z = z + size * v
            return (z, v + size * slope(z)), None

        # Half steps of the momentum at both ends; between them whole ones.
        v = v + 0.5 * size * slope(z)
        (z, v), _ = jax.lax.scan(leap, (z, v), length=self.leapfrogs - 1)
        z = z + size * v
        v = v + 0.5 * size * slope(z)
        e = unfold((fold(z, rows) - self.loc) / self.scale, rows)
        return Draw(z, log_q - self.reverse.latent(e).log_prob(v))

    def _log_prob(self, w):
        raise TypeError("Hamiltonian dynamics have no density at a given z; use vgp.gradients.Pathwise().")
