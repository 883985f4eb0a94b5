"""Planar normalizing flows (Rezende & Mohamed 2015), their parameters from the inference network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.base import AbstractEncoder
from ..amortised.networks import Dense, Trunk
from ..amortised.scale import positive
from ..families.base import AbstractExact, Draw
from ..families.process import fold, unfold
from ..noise import standard_normal

SMALL = 0.1  # the weights of the flow's head start this much smaller, so that its steps hardly depend on x at first
LEAST = 1e-6  # of 1 + wᵀû


class PlanarEncoder(AbstractEncoder):
    """z₀ ~ N(μ(x), σ(x)²), then `length` steps z + û tanh(wᵀz + b), with û, w, b of every step from the network."""

    dim: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    log_scale: Dense
    steps: Dense
    latent_dim: int = eqx.field(static=True, default=0)

    def __init__(self, sizes: tuple[int, ...], dim: int, length: int, *, key: PRNGKeyArray):
        keys = jr.split(key, 4)
        self.dim, self.length, self.latent_dim = dim, length, 0
        self.trunk = Trunk(sizes, key=keys[0])
        width = self.trunk.width
        self.loc, self.log_scale = Dense(width, dim, key=keys[1]), Dense(width, dim, zero=True, key=keys[2])
        steps = Dense(width, length * (2 * dim + 1), key=keys[3])
        start = 0.01 * jr.normal(keys[3], steps.bias.shape)  # w must not be zero
        self.steps = eqx.tree_at(lambda s: (s.weight, s.bias), steps, (SMALL * steps.weight, start))

    def at(self, x, model=None):
        h = self.trunk(x)
        steps = self.steps(h).reshape(x.shape[0], self.length, -1).swapaxes(0, 1)
        u, w, b = jnp.split(steps, (self.dim, 2 * self.dim), axis=-1)
        product = jnp.sum(u * w, axis=-1, keepdims=True)
        # wᵀû > −1, so that every step can be inverted (their appendix A.1). What is left, 1 + wᵀû, is kept apart: as
        # a difference it would be lost to rounding.
        length = jnp.sum(w**2, axis=-1, keepdims=True)
        room = jax.nn.softplus(product) + LEAST
        u = u + (room - 1 - product) * w / (length + 1e-12)
        room = (room * length + (1 + product) * 1e-12) / (length + 1e-12)
        scale = positive(self.log_scale(h))
        return Planar(dim=self.dim, loc=self.loc(h), scale=scale, u=u, w=w, b=b, room=room)


class Planar(AbstractExact):
    """The flow at b datapoints. Its density is known at its own draws only."""

    dim: int = eqx.field(static=True)
    loc: Float[Array, "b d"]
    scale: Float[Array, "b d"]
    u: Float[Array, "k b d"]
    w: Float[Array, "k b d"]
    b: Float[Array, "k b 1"]
    room: Float[Array, "k b 1"]  # 1 + wᵀû
    place: None = None

    def _draw(self, key: PRNGKeyArray, n: int):
        rows = self.loc.shape[0]
        noise = fold(standard_normal(key, (n, self.dim), self.loc.dtype), rows)
        log_q = jnp.sum(-0.5 * noise**2 - 0.5 * jnp.log(2 * jnp.pi) - jnp.log(self.scale), axis=-1)

        def step(carry, flow):
            z, log_q = carry
            u, w, b, room = flow
            bend = jnp.tanh(jnp.sum(z * w, axis=-1, keepdims=True) + b)
            volume = (bend**2 + (1 - bend**2) * room)[..., 0]
            return (z + u * bend, log_q - jnp.log(volume)), None

        flows = (self.u, self.w, self.b, self.room)
        (z, log_q), _ = jax.lax.scan(step, (self.loc + self.scale * noise, log_q), flows, unroll=8)
        return Draw(unfold(z, rows), log_q.reshape(-1))

    def _log_prob(self, w):
        raise TypeError("A planar flow has no inverse in closed form; use vgp.gradients.Pathwise().")
