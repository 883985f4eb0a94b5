"""Small problems whose answers are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpy.polynomial.hermite_e import hermegauss

import vgp
from vgp.auxiliary import Residual
from vgp.kernels import ARD
from vgp.meanfield import Normal

A, V, S2 = 1.0, 0.1, 0.1  # f = Aξ + √V ε, z = f + √S2 ε': the example of the errata
TOTAL = A**2 + V + S2


def _nothing(z):
    return 0.0 * jnp.sum(z)


def gaussian_target():
    """p = N(0, A² + V + S2), the very q of `linear_vgp`, so that its exact ELBO is zero."""
    return vgp.target(_nothing, jnp.zeros(1), prior=dist.Normal(0.0, TOTAL**0.5))


def linear_vgp(auxiliary):
    """The one-dimensional example: no variational data, an affine mean and a Gaussian process of variance V."""
    return vgp.VGP(
        1,
        0,
        kernel=ARD(V, 1.0),
        meanfield=Normal(1, initial=S2**0.5),
        auxiliary=auxiliary,
        key=jr.key(0),
    )


@eqx.filter_jit
def random_vgp(dim, latent_dim, key, num_data=6, scale="gp", noise=0.4):
    """A VGP in general position: every parameter at random, r not quite its posterior."""
    made = vgp.VGP(dim, num_data, latent_dim, kernel=ARD(0.3, 0.5), meanfield=Normal(dim, scale, noise), key=key)
    leaves, treedef = jax.tree.flatten(made)
    keys = jr.split(jr.fold_in(key, 1), len(leaves))
    moved = [
        leaf + 0.3 * jr.normal(k, leaf.shape) if eqx.is_inexact_array(leaf) else leaf
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, moved)


def covering(family):
    """The same family with r = q(ξ), the prior: wide enough for importance sampling to converge."""
    prior = Residual(family.dim, family.latent_dim, key=jr.key(0))
    return eqx.tree_at(lambda f: f.auxiliary, family, prior)


@eqx.filter_jit
def draws_of(family, key, n):
    """n draws, compiled: eagerly, every small operation would be a compilation of its own."""
    return family.sample(key, n)


@eqx.filter_jit
def exact_log_q(family, z, nodes=96):
    """log q(z) by Gauss–Hermite quadrature over ξ, in one or two latent dimensions."""
    x, w = hermegauss(nodes)
    x, log_w = jnp.asarray(x, jnp.float32), jnp.log(jnp.asarray(w, jnp.float32)) - 0.5 * jnp.log(2 * jnp.pi)
    if family.latent_dim == 1:
        grid, weights = x[:, None], log_w
    else:
        grid = jnp.stack(jnp.meshgrid(x, x), -1).reshape(-1, 2)
        weights = (log_w[:, None] + log_w[None, :]).reshape(-1)
    conditional = family.view().conditional(grid)

    def one(point):
        return logsumexp(conditional.log_prob(point) + weights)

    return jax.lax.map(one, z, batch_size=256)


def mean_and_error(values):
    """The mean of a sample along its first axis, and the standard error of that mean."""
    return values.mean(0), values.std(0) / len(values) ** 0.5
