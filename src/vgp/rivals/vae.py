"""The variational autoencoder's mean-field q(z | x) = N(μ(x), σ(x)²): a VGP with no latent input at all.

With `vgp.bounds.Importance(inner=0, outer=k)` it is the importance-weighted autoencoder.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from ..amortised.auxiliary import NoLatent
from ..amortised.base import AbstractEncoder, Given
from ..amortised.networks import Dense, Joined, Trunk
from ..amortised.scale import positive
from ..families.process import Local, Process
from ..gp.conditioner import AbstractConditioner
from ..meanfield import Normal


class Nothing(AbstractConditioner):
    """No variational data: every warp is zero, without variance."""

    @property
    def latent_dim(self) -> int:
        return 0

    def rows(self, xi):
        return xi, jnp.zeros(xi.shape[:-1], xi.dtype)


class GaussianEncoder(AbstractEncoder):
    """μ(x) and σ(x) from one network. `sizes` are its inputs and the units of each layer."""

    dim: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    log_scale: Dense
    heads: Joined | None = None  # both, once prepared
    latent_dim: int = eqx.field(static=True, default=0)

    def __init__(self, sizes: tuple[int, ...], dim: int, *, key: PRNGKeyArray):
        keys = jr.split(key, 3)
        self.dim, self.latent_dim, self.heads = dim, 0, None
        self.trunk = Trunk(sizes, key=keys[0])
        self.loc = Dense(self.trunk.width, dim, key=keys[1])
        self.log_scale = Dense(self.trunk.width, dim, zero=True, key=keys[2])

    def prepared(self):
        heads = Joined(self.loc, self.log_scale) if self.heads is None else self.heads
        return eqx.tree_at(lambda q: q.heads, self, heads, is_leaf=lambda leaf: leaf is None)

    def at(self, x, model=None):
        h = self.trunk(x)
        loc, log_scale = (self.loc(h), self.log_scale(h)) if self.heads is None else self.heads(h)
        local = Local(jnp.zeros((0, self.dim), loc.dtype), None, loc, positive(log_scale))
        meanfield = Normal(self.dim)  # of scale one: σ(x) is all there is
        return Given(dim=self.dim, process=Process(Nothing(), local, meanfield, NoLatent()))
