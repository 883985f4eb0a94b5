"""Bounds and gradients of the amortised VGP: against quadrature, and against one another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import (
    B,
    X,
    amortised,
    assert_unbiased,
    chain,
    exact_log_q,
    log_evidence,
    mean_and_error,
    normal_nodes,
    numbers,
    one_layer,
    two_layers,
)
from scipy.stats import multivariate_normal

import vgp
from vgp.amortised import Chain
from vgp.bounds import Importance, draw, log_q_sandwich
from vgp.compiling import once
from vgp.gradients import DoublyReparameterised, Pathwise, StickingTheLanding
from vgp.kernels import ARD, Linear

# ---------------------------------------------------------------- bounds against quadrature

CASES = {
    "one": (one_layer, amortised),
    "joint": (two_layers, lambda: amortised(2, 2, 6)),
    "chain": (two_layers, chain),
}


@pytest.fixture(scope="module", params=[pytest.param("one", marks=pytest.mark.slow), "joint", "chain"])
def case(request):
    """The evidence, and tables of values: K = 0, K = 4, K = 4 with the closed-form part, K = M = 4."""
    model, encoder = (make() for make in CASES[request.param])
    bounds = Importance(0, split=False), Importance(4, split=False), Importance(4), Importance(4, outer=4)
    tables = numbers(bounds, model, encoder)
    return np.asarray(log_evidence(model, X), float), *tables


def test_bounds_and_their_order(case):
    exact, single, inner, _, outer = case
    for table in (single, inner, outer):  # the mean of the weights is p(x) itself
        assert_unbiased(table, exact)
    means, errors = zip(*map(mean_and_error, (single, inner, outer)), strict=True)
    margins = [3 * np.hypot(errors[0], errors[1]), 3 * np.hypot(errors[1], errors[2]), 3 * errors[2]]
    for low, high, margin in zip(means, (*means[1:], exact), margins, strict=True):
        assert (low < high - margin).all()  # each is tighter, and none exact


def test_split_has_the_same_mean(case):
    _, _, plain, split, _ = case
    mean, error = mean_and_error(plain - split)  # of the same draws
    assert (plain - split).std() > 0.1  # not one and the same
    assert (error < 0.02).all()
    assert (np.abs(mean) < 4.5 * error).all()


@pytest.mark.slow
def test_single_sample_bound_by_quadrature():
    # K = 0, with ξ and the noise integrated on a grid and every term written out.
    model, encoder = one_layer(), amortised()
    [table] = numbers([Importance(inner=0)], model, encoder)
    mean, error = mean_and_error(table)
    points, weights = normal_nodes(2, 48)
    view = encoder.at(X).view()

    @once
    def bound():
        xi = jnp.repeat(points[:, :1], B, axis=0)  # row j of datapoint j modulo b
        q = view.conditional(xi).base_dist
        z = q.loc + q.scale * jnp.repeat(points[:, 1:], B, axis=0)
        r = view.posterior(z).base_dist

        def log_normal(value, loc, scale):
            return -0.5 * ((value - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

        log_q = log_normal(z, q.loc, q.scale) + log_normal(xi, 0.0, 1.0) - log_normal(xi, r.loc, r.scale)
        log_p = model.log_likelihood(jnp.tile(X, (len(points), 1)), z) + log_normal(z, 0.0, 1.0)[:, 0]
        return jnp.sum((log_p - log_q[:, 0]).reshape(-1, B) * jnp.exp(weights)[:, None], axis=0)

    assert (error < 0.02).all()
    assert (np.abs(mean - np.asarray(bound())) < 4.5 * error + 1e-3).all()


def prior_like(factorised):
    """Variational inputs far from all ξ: q(f | ξ) is then the same everywhere, and r(f | x, ξ, z) can be inside it."""
    encoder = amortised(kernel=ARD(0.5), factorised=factorised)
    encoder = eqx.tree_at(lambda q: q.inputs, encoder, jnp.asarray([[-9.0], [-7.0], [7.0], [9.0]]))
    if not factorised:
        return encoder
    narrow = encoder.auxiliary.last.bias.at[3].add(-1.0)
    return eqx.tree_at(lambda q: q.auxiliary.last.bias, encoder, narrow)


@pytest.mark.slow
@pytest.mark.parametrize("factorised", [False, True])
def test_bounds_that_keep_f(factorised):
    model, encoder = one_layer(), prior_like(factorised)
    exact = np.asarray(log_evidence(model, X))
    bounds = (
        Importance(inner=2, split=False, collapse=False),
        Importance(inner=0, split=False, collapse=False),
        vgp.bounds.General(),
        Importance(inner=0, split=False),
    )
    tight, kept, printed, collapsed = numbers(bounds, model, encoder)
    assert_unbiased(tight, exact)
    if not factorised:  # where r(f | ξ, z) is q(f | ξ), all that has to do with f cancels
        np.testing.assert_allclose(kept, printed, atol=1e-4)
        return
    (mean, error), (best, best_error) = mean_and_error(kept), mean_and_error(collapsed)
    assert (mean < best - 3 * np.hypot(error, best_error)).all()
    assert (printed.mean(0) < exact).all()


@pytest.mark.slow
def test_warm_up_weighs_the_likelihood(key):
    model, encoder = one_layer(), amortised()

    @once
    def at(weight):
        z = draw(encoder.at(X).view(), key, 4 * B)[0]
        bound = Importance(inner=2)(model.at(X, weight), encoder.at(X), key, 4 * B)
        return bound, model.log_likelihood(jnp.tile(X, (4, 1)), z)

    (none, likelihood), (half, _), (whole, _) = (at(jnp.asarray(w)) for w in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(half, (none + whole) / 2, atol=1e-4)
    np.testing.assert_allclose(whole - none, likelihood, atol=1e-4)


# ---------------------------------------------------------------- log q(z | x), from both sides


@once
def sandwich(encoder, key, n, inner):
    view = encoder.at(X).view()
    z, y, _, inner_key = draw(view, key, n)
    if isinstance(encoder, Chain):
        first, second = view.parts(z, y)
        exact = exact_log_q(first[0], first[1], 1) + exact_log_q(second[0], second[1], 1)
    else:
        exact = exact_log_q(view, z, encoder.latent_dim)
    return exact, log_q_sandwich(view, z, y, inner_key, inner)


ENCODERS = {
    "c = 1": amortised,
    "c = 2": lambda: amortised(2, 2),
    "linearised": lambda: amortised(2, 1, linearised=1),
    "chain": chain,
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ("c = 1", "c = 2") else ()) for n in ENCODERS]
)
def test_sandwich_holds_the_exact_density(name):
    encoder = ENCODERS[name]()
    n = 12_000 if name == "c = 2" else 30_000
    exact, sides = sandwich(encoder, jr.key(0), n, 4)
    upper, lower, single = (np.asarray(side - exact, float) for side in sides)
    error = {side: v.std() / n**0.5 for side, v in (("upper", upper), ("lower", lower), ("single", single))}
    assert upper.mean() > 3 * error["upper"]
    assert lower.mean() < -3 * error["lower"]
    assert single.mean() > upper.mean() + 3 * np.hypot(error["upper"], error["single"])  # K = 0 is the loosest
    # Each is exact in the mean of its weights: q̂ from r alone, 1/q̂ with the ξ that generated z.
    for weights in (np.exp(lower), np.exp(-upper), np.exp(-single)):
        deviation = weights.std() / n**0.5
        assert deviation < 0.02
        assert abs(weights.mean() - 1) < 5 * deviation


@pytest.mark.parametrize("steps", [1, 2])
def test_linearised_auxiliary_is_exact_for_a_linear_warp(steps):
    # Any guess will do: log q(z) is then the same number for every ξ, and the one of linear algebra.
    encoder = amortised(3, 2, kernel=Linear(0.4, np.full(2, 0.5)), scale="learned", linearised=steps)
    encoder = eqx.tree_at(lambda q: q.auxiliary.last, encoder, jax.tree.map(jnp.zeros_like, encoder.auxiliary.last))

    @once
    def both(encoder):
        view = encoder.at(X).view()
        z, y, _, _ = draw(view, jr.key(0), 4 * B)
        found = view.log_joint(z, y) - view.posterior(z).log_prob(y)
        points = jnp.concatenate([jnp.zeros((1, 2)), jnp.eye(2)])[:, None]
        q = view.conditional(jnp.broadcast_to(points, (3, 4 * B, 2))).base_dist
        return z, found, q.loc, q.scale

    z, found, loc, scale = (np.asarray(a, float) for a in both(encoder))
    for i in range(4 * B):
        slope = (loc[1:, i] - loc[0, i]).T
        covariance = slope @ slope.T + np.diag(scale[0, i] ** 2)
        expected = multivariate_normal(loc[0, i], covariance).logpdf(z[i])
        assert found[i] == pytest.approx(expected, abs=2e-3)
    assert np.abs(slope).max() > 0.05


# ---------------------------------------------------------------- gradients, the model's own among them


def estimates(bound, gradients, pair, batches=40, n=300 * B):
    """Gradients of batches with respect to every weight of model and encoder, by each estimator from the same keys."""
    params, static = eqx.partition(pair, eqx.is_inexact_array)

    @once
    def tables(params, keys):
        def one(key):
            def mean(params, gradient):
                model, encoder = eqx.combine(params, static)
                return jnp.mean(bound(model.at(X), encoder.at(X, model), key, n, gradient))

            return [jax.grad(mean)(params, gradient) for gradient in gradients]

        return jax.lax.map(one, keys)

    made = []
    for model, encoder in tables(params, jr.split(jr.key(0), batches)):
        layers = getattr(encoder, "layers", (encoder,))
        groups = {"decoder": model, "auxiliary": [q.auxiliary for q in layers], "encoder": encoder}
        leaves = {name: [np.asarray(a, float) for a in jax.tree.leaves(group)] for name, group in groups.items()}
        made.append({k: np.concatenate([a.reshape(batches, -1) for a in v], 1) for k, v in leaves.items()})
    return made


BOUNDS = {
    "inner": (Importance(inner=2), one_layer, amortised),
    "unsplit": (Importance(inner=2, split=False), one_layer, amortised),
    "outer": (Importance(inner=1, outer=3), one_layer, amortised),
    "linearised": (Importance(inner=1, split=False), one_layer, lambda: amortised(linearised=1)),
    "chain": (Importance(inner=1), two_layers, chain),
    "chain, outer": (Importance(inner=1, outer=3), two_layers, chain),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "outer" else pytest.mark.slow) for name in BOUNDS]
)
def test_estimators_agree_with_the_model_learned(name):
    bound, model, encoder = BOUNDS[name]
    others = [DoublyReparameterised()] + ([StickingTheLanding()] if bound.outer == 1 else [])
    plain, *rest = estimates(bound, [Pathwise(), *others], (model(), encoder()))
    for group in ("decoder", "auxiliary"):
        mean, error = mean_and_error(plain[group])
        assert np.median(np.abs(mean) / np.maximum(error, 1e-12)) > 10, group  # a wrong factor would show
    for other, gradient in zip(rest, others, strict=True):
        for group in plain:
            mean, error = mean_and_error(plain[group] - other[group])
            assert (np.abs(mean) < 5 * error + 1e-5).all(), (group, type(gradient).__name__)
