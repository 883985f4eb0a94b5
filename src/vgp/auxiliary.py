"""The auxiliary model r(ξ, f | z): an approximate posterior over what generated z.

It sees the standardised residual e = (z − loc) / scale − offset, never z itself.
"""

import abc
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from .noise import initial_normal


class AbstractAuxiliary(eqx.Module):
    """r(ξ, f | z) = r(ξ | z) r(f | ξ, z). To add one, subclass and give:

    - `latent(e)`: the distribution r(ξ | z), a batch of n over c coordinates;
    - `mapping(e, xi, prior)`: the distribution r(f | ξ, z), where `prior` is q(f | ξ). Returning `prior`
      is always safe, and costs nothing when f is integrated out.
    """

    @abc.abstractmethod
    def latent(self, e: Float[Array, "n d"]) -> dist.Distribution: ...

    @abc.abstractmethod
    def mapping(
        self, e: Float[Array, "n d"], xi: Float[Array, "*k n c"], prior: dist.Distribution
    ) -> dist.Distribution: ...

    def prepared(self) -> "AbstractAuxiliary":
        """The same model with all that does not depend on z computed, for use at several z."""
        return self

    def flips(self, e: Float[Array, "n d"], xi: Float[Array, "n c"]) -> Float[Array, "n d"] | None:
        """What log r(ξ | z) gains where a binary variable is the other one, for each; None where it has to be tried."""
        return None


@jax.jit
def affine_posterior(linear: Float[Array, "d c"], noise: Float[Array, " d"]):
    """Slope and covariance of ξ | e when e = linear ξ + noise ε: the exact r of a linear warp."""
    c = linear.shape[1]
    scaled = linear / noise[:, None]
    factor = jax.scipy.linalg.cho_factor(jnp.eye(c) + scaled.T @ scaled)
    covariance = jax.scipy.linalg.cho_solve(factor, jnp.eye(c))
    return covariance @ (scaled / noise[:, None]).T, covariance


class Network(eqx.Module):
    """One or more tanh layers with a last layer of zeros, so that it starts as the zero function."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]

    def __init__(self, sizes: tuple[int, ...], *, key: PRNGKeyArray):
        hidden = list(itertools.pairwise(sizes[:-1]))
        keys = jr.split(key, len(hidden)) if len(hidden) > 1 else [key]
        drawn = [initial_normal(k, size) / size[0] ** 0.5 for k, size in zip(keys, hidden, strict=True)]
        self.weights = (*drawn, jnp.asarray(np.zeros(sizes[-2:]), float))
        self.biases = tuple(jnp.asarray(np.zeros(size), float) for size in sizes[1:])

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            x = jnp.tanh(x @ weight + bias)
        return x @ last[0] + last[1]


class Residual(AbstractAuxiliary):
    """r(ξ | z) = N(B e + b + network(e), diagonal), with r(f | ξ, z) = q(f | ξ).

    B and the network start at zero and the scale at one, so that r starts as the prior q(ξ); `started`
    moves B and the scale to the exact posterior of a linear warp.
    """

    slope: Float[Array, "c d"]
    offset: Float[Array, " c"]
    log_scale: Float[Array, " c"]
    network: Network

    def __init__(self, dim: int, latent_dim: int, *, width: int = 32, depth: int = 1, key: PRNGKeyArray):
        self.slope = jnp.asarray(np.zeros((latent_dim, dim)), float)
        self.offset = self.log_scale = jnp.asarray(np.zeros(latent_dim), float)
        self.network = Network((dim, *(width,) * depth, 2 * latent_dim), key=key)

    def started(self, linear: Float[Array, "d c"], noise: Float[Array, " d"]) -> "Residual":
        """The same model, beginning at the posterior of e = linear ξ + noise ε."""
        slope, covariance = affine_posterior(linear, noise)
        log_scale = 0.5 * jnp.log(jnp.diagonal(covariance))
        return eqx.tree_at(lambda r: (r.slope, r.log_scale), self, (slope, log_scale))

    def latent(self, e):
        shift, stretch = jnp.split(self.network(e), 2, axis=-1)
        mean = e @ self.slope.T + self.offset + shift
        return dist.Normal(mean, jnp.exp(self.log_scale + stretch)).to_event(1)

    def mapping(self, e, xi, prior):
        return prior


class Factorised(AbstractAuxiliary):
    """The paper's r: a fully factorised Gaussian over (ξ, f), its means linear in e plus a network.

    The mean of f_i sees e_i and the network; `width=0` leaves the network out. Starts at ξ ~ N(0, 1) and
    f_i ~ N(0, 1) in whitened units.
    """

    slope: Float[Array, "c d"]
    offset: Float[Array, " c"]
    log_scale: Float[Array, " c"]
    f_slope: Float[Array, " d"]
    f_offset: Float[Array, " d"]
    f_log_scale: Float[Array, " d"]
    network: Network | None

    def __init__(self, dim: int, latent_dim: int, *, width: int = 32, key: PRNGKeyArray):
        c = latent_dim
        self.slope, self.offset, self.log_scale = jnp.zeros((c, dim)), jnp.zeros(c), jnp.zeros(c)
        self.f_slope, self.f_offset, self.f_log_scale = jnp.zeros(dim), jnp.zeros(dim), jnp.zeros(dim)
        self.network = Network((dim, width, 2 * c + 2 * dim), key=key) if width else None

    def _corrections(self, e):
        c, d = self.slope.shape
        if self.network is None:
            return (0.0,) * 4
        return jnp.split(self.network(e), (c, 2 * c, 2 * c + d), axis=-1)

    def latent(self, e):
        shift, stretch, _, _ = self._corrections(e)
        mean = e @ self.slope.T + self.offset + shift
        return dist.Normal(mean, jnp.broadcast_to(jnp.exp(self.log_scale + stretch), mean.shape)).to_event(1)

    def mapping(self, e, xi, prior):
        _, _, shift, stretch = self._corrections(e)
        mean = jnp.broadcast_to(e * self.f_slope + self.f_offset + shift, xi.shape[:-1] + e.shape[-1:])
        return dist.Normal(mean, jnp.broadcast_to(jnp.exp(self.f_log_scale + stretch), mean.shape)).to_event(1)


class LinearGaussian(AbstractAuxiliary):
    """r(ξ, f | z) = N(W e + w, C Cᵀ) over (ξ, f) jointly, with full covariance.

    C is lower triangular with ξ first, so that its leading block is the factor of r(ξ | z). Exact for a
    linear warp. Starts at the standard normal.
    """

    slope: Float[Array, "cd d"]
    offset: Float[Array, " cd"]
    log_diagonal: Float[Array, " cd"]
    below: Float[Array, "cd cd"]
    latent_dim: int = eqx.field(static=True)

    def __init__(self, dim: int, latent_dim: int):
        total = latent_dim + dim
        self.slope, self.offset = jnp.zeros((total, dim)), jnp.zeros(total)
        self.log_diagonal, self.below = jnp.zeros(total), jnp.zeros((total, total))
        self.latent_dim = latent_dim

    def started(self, linear: Float[Array, "d c"], noise: Float[Array, " d"]) -> "LinearGaussian":
        """The same model, r(ξ | z) beginning at the posterior of e = linear ξ + noise ε."""
        c = self.latent_dim
        slope, covariance = affine_posterior(linear, noise)
        factor = jnp.linalg.cholesky(covariance)
        new = (
            self.slope.at[:c].set(slope),
            self.log_diagonal.at[:c].set(jnp.log(jnp.diagonal(factor))),
            self.below.at[:c, :c].set(factor),
        )
        return eqx.tree_at(lambda r: (r.slope, r.log_diagonal, r.below), self, new)

    @property
    def factor(self) -> Float[Array, "cd cd"]:
        """The lower triangular factor C of the covariance of (ξ, f) given z."""
        return jnp.tril(self.below, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def latent(self, e):
        c = self.latent_dim
        mean = e @ self.slope[:c].T + self.offset[:c]
        return dist.MultivariateNormal(mean, scale_tril=self.factor[:c, :c])

    def mapping(self, e, xi, prior):
        c, factor = self.latent_dim, self.factor
        mean = e @ self.slope.T + self.offset
        gain = jax.scipy.linalg.solve_triangular(factor[:c, :c].T, factor[c:, :c].T, lower=False)
        centre = mean[:, c:] + (xi - mean[:, :c]) @ gain
        return dist.MultivariateNormal(centre, scale_tril=factor[c:, c:])
