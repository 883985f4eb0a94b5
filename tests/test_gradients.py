"""Every estimator against the derivative of the bound by quadrature, and that dropping a term would show."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from numpy.polynomial.hermite_e import hermegauss
from problems import random_vgp

import vgp
from vgp.bounds import Importance
from vgp.gradients import DoublyReparameterised, Pathwise, StickingTheLanding


def log_density(z):
    return jnp.sum(norm.logpdf(z, 0.7, 1.3)) - 0.1 * jnp.sum(z**4)


TARGET = vgp.target(log_density, jnp.zeros(1))
FAMILY = random_vgp(1, 1, jr.key(5), num_data=3, noise=0.7)
PARAMS, STATIC = eqx.partition(FAMILY, eqx.is_inexact_array)
NAMES = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(PARAMS)[0]]


def flat(tree):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def log_q_hat(family, xi, eps, inner):
    """log q̂ at explicit noise, written out: an independent account of `log_q_upper` in one dimension."""
    view = family.view()
    q = view.conditional(xi).base_dist
    z = q.loc + q.scale * eps
    r = view.posterior(z).base_dist
    latents = [xi] + [r.loc + r.scale * e for e in inner]
    weights = []
    for y in latents:
        q_y = view.conditional(y).base_dist
        log_joint = norm.logpdf(z, q_y.loc, q_y.scale) + norm.logpdf(y)
        weights.append((log_joint - norm.logpdf(y, r.loc, r.scale))[:, 0])
    return z, logsumexp(jnp.stack(weights), axis=0) - jnp.log(len(latents))


def grid(dims, nodes):
    x, w = hermegauss(nodes)
    w = w / w.sum()
    points = np.stack(np.meshgrid(*[x] * dims, indexing="ij"), -1).reshape(-1, dims)
    weights = np.stack(np.meshgrid(*[w] * dims, indexing="ij"), -1).reshape(-1, dims).prod(1)
    keep = weights > 1e-12
    return jnp.asarray(points[keep], jnp.float32), jnp.asarray(weights[keep], jnp.float32)


def by_quadrature(inner, outer, nodes):
    """The derivative of the bound with respect to every parameter, noise integrated on a grid."""
    per_draw = 2 + inner
    points, weights = grid(per_draw * outer, nodes)

    def value(params):
        family = eqx.combine(params, STATIC)
        ratios = []
        for m in range(outer):
            noise = points[:, per_draw * m : per_draw * (m + 1)]
            rest = [noise[:, 2 + k : 3 + k] for k in range(inner)]
            z, log_q = log_q_hat(family, noise[:, :1], noise[:, 1:2], rest)
            ratios.append(TARGET.log_probs(z) - log_q)
        bound = logsumexp(jnp.stack(ratios), axis=0) - jnp.log(outer)
        return jnp.sum(weights * bound) / jnp.sum(weights)

    return flat(jax.jit(jax.grad(value))(PARAMS))


def by_estimator(bound, gradient, batches=300, n=1000):
    def one(key):
        return flat(jax.grad(lambda p: bound(TARGET, eqx.combine(p, STATIC), key, n, gradient).mean())(PARAMS))

    values = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(1), batches)))
    return values.mean(0), values.std(0) / batches**0.5


EXPECTED = {(0, 1): 64, (1, 1): 48, (0, 2): 28}


@pytest.fixture(scope="module")
def expected():
    return {case: np.asarray(by_quadrature(*case, nodes)) for case, nodes in EXPECTED.items()}


CASES = [
    (Importance(inner=0, split=False), Pathwise()),
    (Importance(inner=0, split=True), Pathwise()),
    (Importance(inner=0, split=False), StickingTheLanding()),
    (Importance(inner=0, split=True), StickingTheLanding()),
    (Importance(inner=1), Pathwise()),
    (Importance(inner=1), StickingTheLanding()),
    (Importance(inner=1, split=True), StickingTheLanding()),
    (Importance(inner=1), DoublyReparameterised()),
    (Importance(inner=1, split=True), DoublyReparameterised()),
    (Importance(inner=0, outer=2), Pathwise()),
    (Importance(inner=0, outer=2), DoublyReparameterised()),
]


def named(case):
    bound, gradient = case
    return f"{type(gradient).__name__}-{bound.inner}-{bound.outer}-{bound.split}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_agrees_with_quadrature(case, expected):
    bound, gradient = case
    mean, error = by_estimator(bound, gradient)
    truth = expected[bound.inner, bound.outer]
    scale = np.abs(truth).max()
    assert error.max() < 0.05 * scale  # precise enough to see a missing term
    assert (np.abs(mean - truth) < 5 * error + 2e-3 * scale).all(), dict(zip(NAMES, mean - truth, strict=False))


@pytest.mark.slow
def test_inner_and_outer_together(key):
    # Too many dimensions for a grid: the two estimators, one of them checked above, against each other.
    bound = Importance(inner=2, outer=3)
    pathwise, first = by_estimator(bound, Pathwise(), batches=400)
    double, second = by_estimator(bound, DoublyReparameterised(), batches=400)
    error = np.hypot(first, second)
    assert (np.abs(pathwise - double) < 5 * error + 1e-3 * np.abs(pathwise).max()).all()


@pytest.mark.slow
def test_extended_latent(key):
    # With f kept in the latent, r(f | ξ, z) = q(f | ξ) carries parameters of q: they must not be left out.
    bound = Importance(inner=2, collapse=False)
    pathwise, first = by_estimator(bound, Pathwise())
    for gradient in (StickingTheLanding(), DoublyReparameterised()):
        other, second = by_estimator(bound, gradient)
        assert (np.abs(pathwise - other) < 5 * np.hypot(first, second) + 1e-3 * np.abs(pathwise).max()).all()


def test_the_printed_gradient_lacks_a_term(expected):
    # Appendix D leaves out the path from θ through z into log r: the test above must be able to see that.
    def printed(key):
        def value(params):
            family = eqx.combine(params, STATIC)
            view = family.view()
            z, y, _, _ = vgp.bounds.draw(view, key, 1000)
            held = view.posterior(jax.lax.stop_gradient(z)).log_prob(y)
            return (TARGET.log_probs(z) - view.log_joint(z, y) + held).mean()

        return flat(jax.grad(value)(PARAMS))

    wrong = np.asarray(jax.lax.map(printed, jr.split(jr.key(1), 200))).mean(0)
    _, error = by_estimator(Importance(inner=0, split=False), Pathwise(), batches=200)
    assert (np.abs(wrong - expected[0, 1]) > 10 * error).any()


def test_sticking_the_landing_is_silent_at_the_optimum(key):
    # At q = p the gradient without the score is exactly zero for every draw; with it, only on average.
    from problems import gaussian_target, linear_vgp

    from vgp.auxiliary import Residual

    r = Residual(1, 1, key=key).started(jnp.ones((1, 1)), jnp.full(1, 0.2**0.5))
    params, static = eqx.partition(linear_vgp(r), eqx.is_inexact_array)

    def size(gradient):
        bound = Importance(inner=0, split=False)
        grad = jax.grad(lambda p: bound(gaussian_target(), eqx.combine(p, static), key, 5, gradient).mean())(params)
        return float(jnp.abs(grad.linear).max())

    assert size(StickingTheLanding()) < 1e-5
    assert size(Pathwise()) > 1e-2
