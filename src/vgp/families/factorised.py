"""Independent variables of any support. Exact."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..meanfield import AbstractMeanField, Factors
from ..meanfield.base import outputs_of
from ..noise import initial_normal, sample
from .base import AbstractExact, AbstractView, Draw
from .place import Place


class Factorised(AbstractExact):
    """q(z) = Π_i q(z_i), each of the kind that `meanfield` says: `Factorised(8, Bernoulli(), key=key)`.

    What a VGP of the same mean-field is held against: the numbers that its process draws are learned here as they are.
    """

    dim: int = eqx.field(static=True)
    meanfield: AbstractMeanField
    f: Float[Array, " p"]
    drive: Float[Array, " q"]
    place: Place | None

    def __init__(self, dim: int, meanfield: AbstractMeanField, *, key: PRNGKeyArray):
        drawn, driven = outputs_of(meanfield, dim)
        self.dim, self.meanfield, self.place = dim, meanfield, None
        self.f, self.drive = 0.1 * initial_normal(key, (drawn,)), jnp.zeros(driven)

    def distribution(self, shape: tuple[int, ...] = ()) -> Any:
        """q, once for each row of a batch of that shape."""
        f, drive = (jnp.broadcast_to(x, (*shape, *x.shape)) for x in (self.f, self.drive))
        return self.meanfield.given(f, drive if drive.shape[-1] else None)

    @property
    def placeable(self) -> bool:
        return self.meanfield.located

    def view(self) -> "AbstractView | None":
        return Alone(self) if len(Factors.of(self.distribution()).scored) else None

    def _draw(self, key, n):
        q = self.distribution()
        z, factors = sample(q, key, (n,)), Factors.of(q)
        score = factors.each(z)[:, factors.scored].sum(-1) if len(factors.scored) else None
        return Draw(z, q.log_prob(z), score)

    def _log_prob(self, z):
        return self.distribution().log_prob(z)


class Alone(AbstractView):
    """The family as if it were drawn by way of a latent variable, of no dimensions."""

    family: Factorised

    def sample_latent(self, key, n):
        return jnp.zeros((n, 0))

    def log_latent(self, y):
        return jnp.zeros(y.shape[:-1])

    def conditional(self, y):
        return self.family.distribution(y.shape[:-1])

    def posterior(self, z):
        return dist.Normal(jnp.zeros((len(z), 0)), 1.0).to_event(1)

    def flips(self, z, y):
        return jnp.zeros_like(z)
