"""A mixture of mean-fields: the VGP with nearest-neighbour interpolation in place of a kernel. Exact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractExact, Draw
from .place import Place


class Mixture(AbstractExact):
    """f(ξ) = t_j with s_j the variational input nearest to ξ ~ N(0, 1), then z ~ N(t_j, scale_j²).

    The output is t_j with the probability that ξ falls into the cell of s_j; with one latent dimension the
    cells are intervals and that probability is closed, so that q is a mixture of mean-fields with a
    density. Which cell ξ falls into cannot be reparameterised: its score is passed on with the draws.
    """

    dim: int = eqx.field(static=True)
    inputs: Float[Array, " m"]
    outputs: Float[Array, "m d"]
    log_scale: Float[Array, "m d"]
    place: Place | None

    def __init__(self, dim: int, num_data: int = 2, *, key: PRNGKeyArray):
        if num_data < 1:
            raise ValueError(f"A mixture needs num_data >= 1 components, got {num_data}.")
        self.dim = dim
        self.inputs = norm.ppf((jnp.arange(num_data) + 0.5) / num_data)
        self.outputs = jr.normal(key, (num_data, dim))
        self.log_scale = jnp.zeros((num_data, dim))
        self.place = None

    @property
    def log_weights(self) -> Float[Array, " m"]:
        """The log-probabilities of the cells, Φ at their ends."""
        order = jnp.argsort(self.inputs)
        ordered = self.inputs[order]
        ends = norm.cdf((ordered[1:] + ordered[:-1]) / 2)
        ends = jnp.concatenate([jnp.zeros(1), ends, jnp.ones(1)])
        areas = jnp.diff(ends)[jnp.argsort(order)]
        return jnp.log(jnp.maximum(areas, jnp.finfo(areas.dtype).tiny))

    def nearest(self, xi: Float[Array, " n"]) -> Array:
        """The index of the variational input nearest to each ξ."""
        return jnp.argmin(jnp.abs(xi[:, None] - self.inputs), axis=1)

    def _draw(self, key, n):
        xi_key, key = jr.split(key)
        cell = jax.lax.stop_gradient(self.nearest(jr.normal(xi_key, (n,), self.inputs.dtype)))
        noise = jr.normal(key, (n, self.dim), self.outputs.dtype)
        z = self.outputs[cell] + jnp.exp(self.log_scale[cell]) * noise
        return Draw(z, self._log_prob(z), self.log_weights[cell])

    def _log_prob(self, z):
        components = dist.Normal(self.outputs, jnp.exp(self.log_scale)).to_event(1)
        return logsumexp(components.log_prob(z[:, None]) + self.log_weights, axis=1)
