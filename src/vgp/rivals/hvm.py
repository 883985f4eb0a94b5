"""The hierarchical variational model: the amortised VGP with a multilayer perceptron in place of the process.

The rest is the VGP's: latent inputs, mean-field, bounds, and an auxiliary model of (x, e). It has no local outputs
G(x), so the network of its r cannot see the residual through them; `AmortisedVGP(project=False)` has the same r.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.auxiliary import Informed
from ..amortised.base import AbstractEncoder, Given
from ..amortised.linearised import linearised
from ..amortised.networks import Dense, Trunk
from ..amortised.scale import positive
from ..families.process import Local, Process
from ..gp.conditioner import AbstractConditioner
from ..meanfield import AbstractMeanField, Normal


class Perceptron(AbstractConditioner):
    """Two layers of features of (x, ξ), without variance: what the conditioner's rows are to a GP."""

    from_xi: Dense
    second: Dense
    known: Float[Array, "b w"]  # what the first layer has from x

    @property
    def latent_dim(self) -> int:
        return self.from_xi.weight.shape[0]

    def rows(self, xi):
        hidden = jnp.tanh(self.second(jnp.tanh(self.from_xi(xi) + self.known)))
        return hidden, jnp.zeros(xi.shape[:-1], xi.dtype)


class HierarchicalEncoder(AbstractEncoder):
    """z = μ(x) + σ(x) ⊙ (network(x, ξ) + noise). Arguments as for `AmortisedVGP`; `width` is of the warp's layers."""

    dim: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    log_scale: Dense
    from_x: Dense
    from_xi: Dense
    second: Dense
    outputs: Float[Array, "w p"]
    meanfield: AbstractMeanField
    auxiliary: Informed
    linearised: int = eqx.field(static=True)

    def __init__(
        self,
        sizes: tuple[int, ...],
        dim: int,
        latent_dim: int | None = None,
        *,
        width: int = 200,
        scale: Literal["gp", "learned"] = "gp",
        auxiliary_width: int = 200,
        linearised: int = 0,
        key: PRNGKeyArray,
    ):
        c = dim if latent_dim is None else latent_dim
        keys = jr.split(key, 7)
        self.dim, self.latent_dim, self.linearised = dim, c, linearised
        self.trunk = Trunk(sizes, key=keys[0])
        features = self.trunk.width
        self.loc, self.log_scale = Dense(features, dim, key=keys[1]), Dense(features, dim, zero=True, key=keys[2])
        self.from_x, self.from_xi = Dense(features, width, key=keys[3]), Dense(c, width, key=keys[4])
        self.second = Dense(width, width, key=keys[5])
        self.meanfield = Normal(dim, scale)
        self.outputs = jnp.zeros((width, sum(self.meanfield.outputs(dim))))
        self.auxiliary = Informed(features, dim, c, auxiliary_width, key=keys[6])

    def at(self, x, model=None):
        h = self.trunk(x)
        warp = Perceptron(self.from_xi, self.second, self.from_x(h))
        local = Local(self.outputs, None, self.loc(h), positive(self.log_scale(h)))
        process = Process(warp, local, self.meanfield, self.auxiliary.at(h))
        return Given(dim=self.dim, process=linearised(process, self.linearised))
