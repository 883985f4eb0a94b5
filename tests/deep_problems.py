"""Small models with an inference network, whose evidence and densities quadrature gives."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import logsumexp
from numpy.polynomial.hermite_e import hermegauss

from vgp.amortised import AmortisedVGP, Chain
from vgp.compiling import once
from vgp.models import DLGM

PIXELS, B = 4, 3
X = jnp.asarray([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
ALL_X = jnp.asarray(list(itertools.product((0.0, 1.0), repeat=PIXELS)))


def moved(module, seed, size=0.3):
    """The same module in general position: every parameter a little way off, at random."""
    rng = np.random.default_rng(seed)

    def step(leaf):
        return (
            leaf + jnp.asarray(size * rng.normal(size=leaf.shape), leaf.dtype) if eqx.is_inexact_array(leaf) else leaf
        )

    return jax.tree.map(step, module)


def one_layer(latents=1):
    """p(x | z) p(z) with one or two latent variables."""
    return moved(DLGM(PIXELS, (latents,), ((5,),), key=jr.key(1)), 1, 0.5)


def two_layers():
    """p(x | z₁) p(z₁ | z₂) p(z₂) with one variable per layer."""
    return moved(DLGM(PIXELS, (1, 1), ((5,), (4,)), key=jr.key(2)), 2, 0.4)


def amortised(dim=1, latent_dim=1, seed=3, inputs=PIXELS, size=0.2, **options):
    """An amortised VGP in general position, r not quite its posterior."""
    made = AmortisedVGP((inputs, 5), dim, 4, latent_dim, auxiliary_width=4, key=jr.key(seed), **options)
    return covering(moved(made, seed, size))


def covering(encoder):
    """The same encoder, its q(z | x) wide and near the origin: importance weights then have a small variance."""
    where = (0.3 * encoder.loc.weight, 0 * encoder.log_scale.weight, 0 * encoder.log_scale.bias + 0.25)
    encoder = eqx.tree_at(lambda q: (q.loc.weight, q.log_scale.weight, q.log_scale.bias), encoder, where)
    for name in ("auxiliary", "reverse"):
        if hasattr(encoder, name):  # r narrower than what it stands for
            c = getattr(encoder, name).slope.bias.shape[0]
            narrow = getattr(encoder, name).last.bias.at[c : 2 * c].add(-0.3)
            encoder = eqx.tree_at(lambda q, name=name: getattr(q, name).last.bias, encoder, narrow)
    if hasattr(encoder, "meanfield"):
        new = (jax.tree.map(lambda t: 0.5 * t, encoder.outputs), 0 * encoder.meanfield.log_scale)
        encoder = eqx.tree_at(lambda q: (q.outputs, q.meanfield.log_scale), encoder, new)
    return encoder


def chain():
    """q(z₁ | x) q(z₂ | z₁), one variable and one latent input each."""
    return Chain(amortised(seed=4), amortised(seed=5, inputs=1))


def grid(dims, nodes=400, reach=9.0):
    """Points of a regular grid, and the log volume of a cell: exact for what is smooth and falls to zero."""
    line, cell = np.linspace(-reach, reach, nodes, retstep=True)
    points = np.stack(np.meshgrid(*[line] * dims, indexing="ij"), -1).reshape(-1, dims)
    return jnp.asarray(points, jnp.float32), dims * np.log(cell)


@once
def log_evidence(model, x):
    """log p(x) of every datapoint, z integrated out on a grid."""
    points, cell = grid(model.dim, 400 if model.dim == 1 else 161)

    def one(row):
        rows = jnp.broadcast_to(row, (len(points), len(row)))
        return logsumexp(model.log_likelihood(rows, points) + model.log_prior(points)) + cell

    return jax.lax.map(one, x)


def normal_nodes(dims, nodes=64):
    """Points and log weights for the mean over a standard normal."""
    x, w = hermegauss(nodes)
    log_w = np.log(w / w.sum())
    points = np.stack(np.meshgrid(*[x] * dims, indexing="ij"), -1).reshape(-1, dims)
    weights = np.stack(np.meshgrid(*[log_w] * dims, indexing="ij"), -1).reshape(-1, dims).sum(1)
    return jnp.asarray(points, jnp.float32), jnp.asarray(weights, jnp.float32)


def exact_log_q(view, z, latent_dim):
    """log q(z | x) of every row: ξ integrated out."""
    points, weights = normal_nodes(latent_dim, 96 if latent_dim == 1 else 40)
    xi = jnp.broadcast_to(points[:, None], (len(points), len(z), latent_dim))
    return logsumexp(view.conditional(xi).log_prob(z) + weights[:, None], axis=0)


@once
def values(bound, model, encoder, key, n, x=X, gradient=None):
    """n values of a bound as a table with one column per datapoint."""
    given = () if gradient is None else (gradient,)
    return bound(model.at(x), encoder.at(x, model), key, n, *given).reshape(-1, len(x))


@once
def _numbers(bounds, model, encoder, key, rows):
    # One program: the same rows in every bound, so that what they share is compiled once.
    target, family = model.at(X), encoder.at(X, model)
    return [bound(target, family, key, rows // getattr(bound, "outer", 1)).reshape(-1, B) for bound in bounds]


def numbers(bounds, model, encoder, seed=0, rows=60_000):
    """Tables of values, one per bound, from the same draws of z; in double precision outside of JAX."""
    return [np.asarray(table, float) for table in _numbers(tuple(bounds), model, encoder, jr.key(seed), rows)]


def mean_and_error(table):
    """The mean of a table's columns and their standard errors."""
    return table.mean(0), table.std(0) / len(table) ** 0.5


def assert_unbiased(table, exact, precision=0.02):
    """That exp of the values has mean exp(exact): no constant, sign or factor can be wrong."""
    weights = np.exp(table - np.asarray(exact, float))
    mean, error = mean_and_error(weights)
    assert (error < precision).all(), error
    assert (np.abs(mean - 1) < 5 * error + 1e-4).all(), (mean, error)
