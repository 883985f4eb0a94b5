"""Estimators for draws that cannot be followed, against the derivative of the bound by enumeration and quadrature."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from numpy.polynomial.hermite_e import hermegauss
from numpyro.distributions import constraints

import vgp
from vgp.bounds import Importance
from vgp.families import Factorised
from vgp.gradients import ARM, VIMCO, DisARM, LocalExpectations, Pathwise, ScoreFunction
from vgp.kernels import ARD
from vgp.meanfield import Bernoulli, Categorical, Geometric, Mixed, NegativeBinomial, Normal, Poisson

NODES = 20


def moved(family, key):
    """A family in general position."""
    leaves, treedef = jax.tree.flatten(family)
    keys = jr.split(key, len(leaves))
    shifted = [
        x + 0.15 * jr.normal(k, x.shape) if eqx.is_inexact_array(x) else x for x, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, shifted)


def family_of(meanfield, dim):
    return moved(vgp.VGP(dim, 4, 1, kernel=ARD(0.3, 0.5), meanfield=meanfield, key=jr.key(0)), jr.key(1))


# Two binary variables; log p is a sum of terms, of which the last two have one variable each.
TOUCHES = np.array([[True, True], [True, False], [False, True]])
COINS = vgp.target(
    lambda z: jnp.stack([1.3 * z[0] * z[1] - 0.4, 0.8 * z[0], 2.0 - 1.1 * z[1]]),
    jnp.zeros(2),
    constraints.boolean,
    touches=TOUCHES,
)
MANY = {"a": jnp.zeros(2), "b": jnp.zeros(1), "c": jnp.zeros(1)}
KINDS = {"a": constraints.boolean, "b": constraints.integer_interval(0, 2), "c": constraints.real}


def mixed_density(z):
    a, b, c = z["a"], z["b"][0], z["c"][0]
    return a[0] * a[1] - 0.6 * a[1] * b + norm.logpdf(c, 0.5 * b - a[0], 0.8) + 0.2 * b


def quadrature(dims):
    x, w = hermegauss(NODES)
    points = np.stack(np.meshgrid(*[x] * dims, indexing="ij"), -1).reshape(-1, dims)
    weights = np.stack(np.meshgrid(*[w / w.sum()] * dims, indexing="ij"), -1).reshape(-1, dims).prod(1)
    keep = weights > 1e-10
    return jnp.asarray(points[keep], float), jnp.asarray(weights[keep], float)


def flat_gradient(value, family):
    params, static = eqx.partition(family, eqx.is_inexact_array)
    found = jax.jit(jax.grad(lambda p: value(eqx.combine(p, static))))(params)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])


def log_ratio(target, view, z, xi, others=()):
    """log p(z) − log q̂(z) at explicit latents: the one that generated z, and inner samples."""
    r = view.posterior(z)
    terms = [
        view.conditional(y).log_prob(z) + norm.logpdf(y[:, 0]) - norm.logpdf(y[:, 0], *_moments(r))
        for y in (xi, *others)
    ]
    return target.log_probs(z) - (logsumexp(jnp.stack(terms), axis=0) - jnp.log(len(terms)))


def _moments(r):
    return r.base_dist.loc[:, 0], r.base_dist.scale[:, 0]


def coins_exactly(inner, outer):
    """The derivative of the bound on `COINS`: all states, and the noise of ξ and of inner samples on a grid."""
    states = np.array(list(itertools.product([0.0, 1.0], repeat=2)))

    chosen = jnp.asarray(list(itertools.product(states, repeat=outer)), float)

    def value(family):
        view = family.view()
        noise, weights = quadrature((1 + inner) * outer)

        def one(chosen):
            ratios, chance = [], weights
            for m, state in enumerate(chosen):
                own = noise[:, m * (1 + inner) : (m + 1) * (1 + inner)]
                xi, z = own[:, :1], jnp.broadcast_to(state, (len(noise), 2))
                loc, scale = _moments(view.posterior(z))
                others = [(loc + scale * own[:, k])[:, None] for k in range(1, 1 + inner)]
                chance = chance * jnp.exp(view.conditional(xi).log_prob(z))
                ratios.append(log_ratio(COINS, view, z, xi, others))
            return jnp.sum(chance * (logsumexp(jnp.stack(ratios), axis=0) - jnp.log(outer)))

        return jnp.sum(jax.lax.map(one, chosen))

    return value


def mixed_exactly(target):
    """The same for two binary variables, one of three classes and a real one, K = 0."""
    states = np.array(list(itertools.product([0.0, 1.0], [0.0, 1.0], [0.0, 1.0, 2.0])))

    def value(family):
        view = family.view()
        noise, weights = quadrature(2)
        xi = noise[:, :1]
        q = view.conditional(xi)
        real = q.blocks[-1].loc + q.blocks[-1].scale * noise[:, 1:]

        def one(state):
            z = jnp.concatenate([jnp.broadcast_to(state, (len(noise), 3)), real], axis=1)
            return jnp.sum(weights * jnp.exp(q.each(z)[:, :3].sum(1)) * log_ratio(target, view, z, xi))

        return jnp.sum(jax.lax.map(one, jnp.asarray(states, float)))

    return value


def by_estimator(target, family, bound, gradient, batches, n, at_once=1):
    def one(key):
        return flat_gradient_traced(lambda f: bound(target, f, key, n, gradient).mean(), family)

    values = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=at_once))(jr.split(jr.key(2), batches)))
    return values.mean(0), values.std(0) / np.sqrt(batches)


def flat_gradient_traced(value, family):
    params, static = eqx.partition(family, eqx.is_inexact_array)
    found = jax.grad(lambda p: value(eqx.combine(p, static)))(params)
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(found)])


def assert_same(found, exact):
    mean, error = found
    scale = np.abs(exact).max()
    assert error.max() < 0.03 * scale, (error.max(), scale)  # precise enough to see a term that is missing
    assert (np.abs(mean - exact) < 5 * error + 1e-4 * scale).all(), np.c_[mean, exact, error]


CASES = [
    (ScoreFunction("none", False), 0, 1),
    pytest.param(ScoreFunction("mean", False), 0, 1, marks=pytest.mark.slow),
    pytest.param(ScoreFunction("optimal", False), 0, 1, marks=pytest.mark.slow),
    (ScoreFunction("optimal", True), 0, 1),
    pytest.param(ScoreFunction("none", True), 0, 1, marks=pytest.mark.slow),
    (ARM(), 0, 1),
    (DisARM(), 0, 1),
    pytest.param(ScoreFunction(), 1, 1, marks=pytest.mark.slow),
    (DisARM(), 1, 1),
    (LocalExpectations(), 0, 1),
    (LocalExpectations(), 1, 1),
    (VIMCO(), 0, 2),
    pytest.param(ScoreFunction("none", False), 0, 2, marks=pytest.mark.slow),
]


PRODUCT = [ScoreFunction(baseline, rb) for baseline in ("none", "mean", "optimal") for rb in (False, True)]
PRODUCT += [ARM(), DisARM(), LocalExpectations()]


def named(value):
    if isinstance(value, ScoreFunction):
        return f"{value.baseline}{'-blackwell' if value.rao_blackwell else ''}"
    return type(value).__name__ if not isinstance(value, int) else str(value)


@pytest.fixture(scope="module")
def coins():
    return family_of(Bernoulli(), 2)


@pytest.mark.parametrize(("gradient", "inner", "outer"), CASES, ids=named)
def test_unbiased(coins, gradient, inner, outer):
    exact = flat_gradient(coins_exactly(inner, outer), coins)
    found = by_estimator(COINS, coins, Importance(inner=inner, outer=outer), gradient, 200, 512)
    assert_same(found, exact)


def product_of(meanfield, dim):
    """A family without ξ, for which all estimators cost little."""
    return moved(Factorised(dim, meanfield, key=jr.key(0)), jr.key(1))


def product_exactly(target, states, outer=1):
    """The derivative of its bound: a sum over the states, or over all choices of several."""
    chosen = jnp.asarray(list(itertools.product(states, repeat=outer)), float)

    def value(family):
        log_q = jax.vmap(family.log_prob)(chosen)
        ratios = jax.vmap(target.log_probs)(chosen) - log_q
        return jnp.sum(jnp.exp(log_q.sum(1)) * (logsumexp(ratios, axis=1) - jnp.log(outer)))

    return value


PAIRS = list(itertools.product([0.0, 1.0], repeat=2))


@pytest.mark.parametrize("outer", [1, 2, 3])
def test_unbiased_for_a_product(outer):
    family = product_of(Bernoulli(), 2)
    exact = flat_gradient(product_exactly(COINS, PAIRS, outer), family)
    estimators = {1: PRODUCT, 2: [ScoreFunction("none", False), VIMCO()], 3: [VIMCO()]}[outer]
    for gradient in estimators:
        found = by_estimator(COINS, family, Importance(inner=3, outer=outer), gradient, 200, 1024 // outer * outer)
        assert_same(found, exact)


@pytest.mark.parametrize("n", [2, 3])
def test_a_baseline_of_few_other_draws_is_unbiased(n):
    # Where a draw had a part in its own baseline, the gradient would be shorter by 1 / n.
    family = product_of(Bernoulli(), 2)
    exact = flat_gradient(product_exactly(COINS, PAIRS), family)
    for gradient in (ScoreFunction("mean", False), ScoreFunction("optimal", False)):
        assert_same(by_estimator(COINS, family, Importance(), gradient, 80_000, n, 1000), exact)


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


KINDS_OF = {
    "classes": (Categorical(3), constraints.integer_interval(0, 2), 3),
    "poisson": (Poisson(), constraints.nonnegative_integer, 40),
    "geometric": (Geometric(), constraints.nonnegative_integer, 150),
    "negative binomial": (NegativeBinomial(1, initial=2.0), constraints.nonnegative_integer, 100),
}


@pytest.mark.parametrize("name", ["classes", "poisson", *(slow(n) for n in ("geometric", "negative binomial"))])
def test_unbiased_for_counts_and_classes(name):
    meanfield, support, values = KINDS_OF[name]
    target = vgp.target(lambda z: -0.3 * (z[0] - 2.0) ** 2, jnp.zeros(1), support)
    family = product_of(meanfield, 1)
    exact = flat_gradient(product_exactly(target, np.arange(values)[:, None] + 0.0), family)
    assert_same(by_estimator(target, family, Importance(), ScoreFunction(), 400, 1024), exact)


def test_without_terms_nothing_is_left_out(coins):
    plain = vgp.target(lambda z: 1.3 * z[0] * z[1] - z[0], jnp.zeros(2), constraints.boolean)
    found = [
        flat_gradient(lambda f, g=ScoreFunction("mean", rb): Importance()(plain, f, jr.key(3), 8, g).mean(), coins)
        for rb in (False, True)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "gradient", [pytest.param(ScoreFunction(), marks=pytest.mark.slow), DisARM(), LocalExpectations()], ids=named
)
def test_mixed_blocks_in_one_step(gradient):
    meanfield = Mixed((Bernoulli(), 2), (Categorical(3), 1), (Normal(1, "gp", 0.7), 1))
    target, family = vgp.target(mixed_density, MANY, KINDS), family_of(meanfield, 4)
    exact = flat_gradient(mixed_exactly(target), family)
    assert_same(by_estimator(target, family, Importance(inner=0), gradient, 200, 512), exact)


# Far from zero, so that a baseline matters, with a large term of one variable that the other has no part in.
LOUD = vgp.target(
    lambda z: jnp.stack([1.3 * z[0] * z[1] + 5.0, 0.8 * z[0], 4.0 * z[1]]),
    jnp.zeros(2),
    constraints.boolean,
    touches=TOUCHES,
)


def variance(family, gradient, n=64):
    def one(key):
        def value(offset):
            moved = eqx.tree_at(lambda f: f.offset, family, offset)
            return Importance(inner=0)(LOUD, moved, key, n, gradient).mean()

        return jax.grad(value)(family.offset)

    return float(np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(3), 400))).var(0).sum())


def test_each_device_lowers_the_variance(coins):
    plain = variance(coins, ScoreFunction("none", False))
    mean = variance(coins, ScoreFunction("mean", False))
    assert mean < 0.3 * plain
    assert variance(coins, ScoreFunction("optimal", False)) < 0.3 * plain
    assert variance(coins, ScoreFunction("mean", True)) < 0.8 * mean
    assert variance(coins, DisARM()) < variance(coins, ARM()) < 0.3 * plain
    assert variance(coins, LocalExpectations()) < 0.5 * variance(coins, DisARM())


def test_what_does_not_apply_is_refused(coins):
    def refused(error, match, bound, gradient, n=4, target=COINS, family=coins):
        with pytest.raises(error, match=match):
            eqx.filter_eval_shape(lambda f: bound(target, f, jr.key(0), n, gradient), family)

    refused(TypeError, "cannot be followed; use vgp.gradients.ScoreFunction", Importance(), Pathwise())
    refused(TypeError, "VIMCO needs outer > 1", Importance(), VIMCO())
    refused(TypeError, "DisARM needs outer=1", Importance(outer=2), DisARM())
    refused(TypeError, "baseline and its Rao-Blackwellisation for outer=1", Importance(outer=2), ScoreFunction())
    refused(TypeError, "split=True needs", Importance(split=True), ScoreFunction())
    refused(ValueError, "only one; take 2 draws or more", Importance(), ScoreFunction(), n=1)
    classes = vgp.target(lambda z: -jnp.sum(z), jnp.zeros(2), constraints.integer_interval(0, 2))
    three = family_of(Categorical(3), 2)
    refused(TypeError, "ARM is for Bernoulli variables", Importance(), ARM(), target=classes, family=three)


def test_draws_that_can_be_followed_need_no_score():
    target, family = vgp.target(lambda z: -jnp.sum(z**2), jnp.zeros(2)), family_of(Normal(2), 2)
    key = jr.key(0)
    values = [Importance(inner=2)(target, family, key, 4, gradient) for gradient in (ScoreFunction(), Pathwise())]
    np.testing.assert_array_equal(*values)
