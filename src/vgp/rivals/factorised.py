"""The factorised q(z | x) of discrete variables: what a sigmoid belief network is usually trained with."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from ..amortised.auxiliary import NoLatent
from ..amortised.base import AbstractEncoder, Given
from ..amortised.networks import Dense, Trunk
from ..families.process import Local, Process
from ..meanfield import AbstractMeanField
from .vae import Nothing


class FactorisedEncoder(AbstractEncoder):
    """A network gives f(x) for the mean-field q(z | f(x)). `sizes` are its inputs and the units of each layer."""

    dim: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    meanfield: AbstractMeanField
    latent_dim: int = eqx.field(static=True, default=0)

    def __init__(self, sizes: tuple[int, ...], dim: int, meanfield: AbstractMeanField, *, key: PRNGKeyArray):
        keys = jr.split(key)
        drawn, driven = meanfield.outputs(dim)
        if driven:
            raise ValueError(f"A {type(meanfield).__name__} mean-field here has an extra that is learned, not driven.")
        self.dim, self.latent_dim, self.meanfield = dim, 0, meanfield
        self.trunk = Trunk(sizes, key=keys[0])
        self.loc = Dense(self.trunk.width, drawn, key=keys[1])

    def at(self, x, model=None):
        loc = self.loc(self.trunk(x))
        local = Local(jnp.zeros((0, loc.shape[-1]), loc.dtype), None, loc)
        return Given(dim=self.dim, process=Process(Nothing(), local, self.meanfield, NoLatent()))
