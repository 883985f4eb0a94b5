"""Enumeration, and the small discrete posteriors: against transfer matrices, products written out and quadrature."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from vgp.compiling import once
from vgp.montecarlo import enumerate_states, enumerated, kl
from vgp.targets.discrete import ising_ring, mixture_assignments, noisy_or, two_mode_ring

FIELD = np.asarray([0.3, -0.2, 0.1, 0.4, -0.5])
OBSERVED = np.asarray([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
PROBLEMS = {
    "frustrated ring": lambda: ising_ring(5, 0.8, FIELD),
    "two-mode ring": lambda: two_mode_ring(6),
    "noisy or": lambda: noisy_or(5, 6, 3, observed=OBSERVED),
    "mixture": lambda: mixture_assignments(5, 3, weights=np.asarray([0.5, 0.3, 0.2])),
}


def sizes_of(problem):
    return [2] * len(problem.example)


def densities(problem):
    """log p at all states."""
    states = jnp.asarray(enumerate_states(sizes_of(problem)), float)
    return np.asarray(once(jax.vmap(problem.log_density))(states), float)


def test_all_states():
    states = enumerate_states([2, 3])
    assert states.tolist() == [list(map(float, pair)) for pair in itertools.product(range(2), range(3))]
    assert enumerate_states([2] * 12).shape == (4096, 12)


def test_enumerated_by_hand():
    p = np.asarray([[0.1, 0.2, 0.05], [0.3, 0.05, 0.3]])
    exact = enumerated(np.log(p).ravel() + 3.0, [2, 3])
    assert exact.log_normaliser == pytest.approx(3.0)
    np.testing.assert_allclose(exact.probabilities, p.ravel())
    np.testing.assert_allclose(exact.log_probabilities, np.log(p).ravel())
    np.testing.assert_allclose(exact.marginals, [[0.35, 0.65, 0.0], [0.4, 0.25, 0.35]])
    np.testing.assert_allclose(exact.means, [0.65, 0.95])
    covariance = (0.05 + 2 * 0.3) - 0.65 * 0.95
    sds = np.sqrt(0.65 * 0.35), np.sqrt(0.25 + 4 * 0.35 - 0.95**2)
    r = covariance / np.prod(sds)
    np.testing.assert_allclose(exact.correlations, [[1, r], [r, 1]])


def test_states_of_no_probability():
    exact = enumerated(np.asarray([0.0, -np.inf, 0.0, -np.inf]), [2, 2])  # the second variable is 0 throughout
    assert exact.log_normaliser == pytest.approx(np.log(2))
    np.testing.assert_allclose(exact.means, [0.5, 0.0])
    np.testing.assert_allclose(exact.correlations, np.eye(2))


def test_divergences_by_hand():
    q, p = np.asarray([0.5, 0.5, 0.0]), np.asarray([0.2, 0.3, 0.5])
    with np.errstate(divide="ignore"):
        log_q, log_p = np.log(q), np.log(p)
    expected = 0.5 * np.log(0.5 / 0.2) + 0.5 * np.log(0.5 / 0.3)
    assert kl(log_q, log_p) == pytest.approx(expected)
    assert kl(log_p, log_q) == np.inf
    assert kl(jnp.asarray(log_p), jnp.asarray(log_p)) == pytest.approx(0.0, abs=1e-7)


BAD = {
    "at least one value": lambda: enumerate_states([2, 0]),
    "more than the": lambda: enumerate_states([2] * 23),
    "There are 4 states, got 3": lambda: enumerated(np.zeros(3), [2, 2]),
    "not all of them": lambda: enumerated(np.full(2, -np.inf), [2]),
    "must be numbers": lambda: enumerated(np.asarray([0.0, np.nan]), [2]),
    "log_q sum to 2": lambda: kl(np.zeros(2), np.log([0.5, 0.5])),
    "log_p sum to nan": lambda: kl(np.log([0.5, 0.5]), np.full(2, np.nan)),
    "at least 3 spins": lambda: ising_ring(2),
    "between 1 and 4 causes": lambda: noisy_or(4, parents=5),
    "strictly between 0 and 1, got leak=0": lambda: noisy_or(leak=0.0),
    "observed holds a 0 or 1": lambda: noisy_or(effects=3, observed=np.ones(2)),
    "y must hold 4 numbers": lambda: mixture_assignments(4, y=np.zeros(3)),
    "positive numbers that sum to 1": lambda: mixture_assignments(4, weights=np.asarray([0.5, 0.6])),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


@pytest.mark.parametrize("name", PROBLEMS)
def test_terms_touch_what_they_say(name):
    # Each variable takes other values at several states: the terms that change are those that touch it, all of them.
    problem = PROBLEMS[name]()
    flat, shaped = ravel_pytree(problem.example)
    terms = once(jax.vmap(lambda u: problem.terms(shaped(u))))
    assert problem.touches.shape == (*jax.eval_shape(problem.terms, problem.example).shape, len(flat))
    rng = np.random.default_rng(0)
    discrete = 5 if name == "mixture" else len(flat)  # the assignments come first
    z = rng.integers(0, 3 if name == "mixture" else 2, (50, len(flat))) + 0.0
    z[:, discrete:] = rng.normal(size=(50, len(flat) - discrete))
    changed, before = np.zeros(problem.touches.shape, bool), np.asarray(terms(jnp.asarray(z, float)))
    for i in range(len(flat)):
        other = z.copy()
        other[:, i] = (z[:, i] + 1) % (3 if name == "mixture" else 2) if i < discrete else z[:, i] + 0.5
        changed[:, i] = np.abs(np.asarray(terms(jnp.asarray(other, float))) - before).max(0) > 1e-4
    np.testing.assert_array_equal(problem.touches, changed)
    each = once(jax.vmap(lambda u: problem.log_density(shaped(u))))(jnp.asarray(z, float))
    np.testing.assert_allclose(each, before.sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_examples_follow_their_constraints(name):
    problem = PROBLEMS[name]()
    inside = jax.tree.map(
        lambda c, x: bool(jnp.all(c(x))), problem.constraints, problem.example, is_leaf=lambda c: callable(c)
    )
    assert jax.tree.all(inside)


def transfer(bonds, fields):
    """log Z of a ring, as the trace of a product of 2 × 2 matrices."""
    spins, product = np.asarray([-1.0, 1.0]), np.eye(2)
    for j, h in zip(bonds, fields, strict=True):
        product = product @ np.exp(h * spins[:, None] + j * np.outer(spins, spins))
    return np.log(np.trace(product))


@pytest.mark.parametrize("frustrated", [True, False])
def test_ring(frustrated):
    bonds = np.full(5, 0.8) * np.asarray([1, 1, 1, 1, -1 if frustrated else 1])
    exact = enumerated(densities(ising_ring(5, 0.8, FIELD, frustrated)), [2] * 5)
    assert exact.log_normaliser == pytest.approx(transfer(bonds, FIELD), abs=1e-5)
    # E s_i is the derivative of log Z in h_i.
    for i, step in enumerate(1e-4 * np.eye(5)):
        slope = (transfer(bonds, FIELD + step) - transfer(bonds, FIELD - step)) / 2e-4
        assert 2 * exact.means[i] - 1 == pytest.approx(slope, abs=1e-5)
    # E s_i s_{i+1} is that in J_i.
    for i, step in enumerate(1e-4 * np.eye(5)):
        slope = (transfer(bonds + step, FIELD) - transfer(bonds - step, FIELD)) / 2e-4
        spins = 2 * enumerate_states([2] * 5) - 1
        assert exact.probabilities @ (spins[:, i] * spins[:, (i + 1) % 5]) == pytest.approx(slope, abs=1e-5)


def test_twelve_variables_in_single_precision():
    problem, rng = ising_ring(12, 1.5, 0.1), np.random.default_rng(0)
    log_p = densities(problem)
    exact = enumerated(log_p, [2] * 12)
    bonds = np.asarray([1.5] * 11 + [-1.5])
    assert exact.log_normaliser == pytest.approx(transfer(bonds, np.full(12, 0.1)), abs=1e-5)
    spins = 2 * enumerate_states([2] * 12) - 1
    double = (spins * np.roll(spins, -1, axis=1)) @ bonds + spins.sum(1) * 0.1
    reference = enumerated(double, [2] * 12)
    np.testing.assert_allclose(exact.marginals, reference.marginals, atol=1e-6)
    np.testing.assert_allclose(exact.correlations, reference.correlations, atol=1e-5)
    log_q = enumerated(rng.normal(size=4096), [2] * 12).log_probabilities
    assert kl(log_q, exact.log_probabilities) == pytest.approx(kl(log_q, reference.log_probabilities), abs=1e-5)


def test_frustrated_ring_has_many_modes():
    # No state satisfies all bonds: 2n of them break one.
    log_p = densities(ising_ring(6, 1.0, 0.0))
    best = np.isclose(log_p, log_p.max(), atol=1e-5)
    assert best.sum() == 12 and log_p.max() == pytest.approx(4.0)
    exact = enumerated(log_p, [2] * 6)
    np.testing.assert_allclose(exact.means, 0.5, atol=1e-6)
    assert exact.correlations[0, 1] > 0.4 and exact.correlations[0, 5] < -0.4


def test_two_modes():
    exact = enumerated(densities(two_mode_ring(8, 1.5, 0.05)), [2] * 8)
    zeros, ones = exact.log_probabilities[[0, -1]]
    assert ones - zeros == pytest.approx(2 * 8 * 0.05, abs=1e-5)
    assert np.exp(zeros) + np.exp(ones) > 0.9
    assert exact.correlations.min() > 0.8


def noisy_or_written_out(z, effects, parents, prior=0.2, strength=0.8, leak=0.02):
    p = np.prod(np.where(z, prior, 1 - prior))
    for j, effect in enumerate(effects):
        absent = 1 - leak
        for i in range(j, j + parents):
            absent *= 1 - strength * z[i % len(z)]
        p *= 1 - absent if effect else absent
    return p


def test_noisy_or():
    states = enumerate_states([2] * 5)
    expected = np.log([noisy_or_written_out(z, OBSERVED, 3) for z in states])
    np.testing.assert_allclose(densities(noisy_or(5, 6, 3, observed=OBSERVED)), expected, rtol=1e-5, atol=1e-5)
    options = dict(prior=0.4, strength=0.6, leak=0.1)
    expected = np.log([noisy_or_written_out(z, np.ones(4), 2, **options) for z in enumerate_states([2] * 4)])
    np.testing.assert_allclose(densities(noisy_or(4, 4, 2, **options)), expected, rtol=1e-5, atol=1e-5)


def test_noisy_or_sums_to_one():
    total = sum(np.exp(densities(noisy_or(3, 3, 2, observed=x))).sum() for x in enumerate_states([2] * 3))
    assert total == pytest.approx(1.0, abs=1e-5)


def test_causes_explain_each_other_away():
    exact = enumerated(densities(noisy_or()), [2] * 8)
    assert exact.means.min() > 0.3 and exact.means.max() < 0.7
    off = exact.correlations - np.eye(8)
    assert off.min() < -0.15
    # Three causes cover everything, and there is more than one way.
    likely = enumerate_states([2] * 8)[np.argsort(-exact.probabilities)[:4]]
    assert len({tuple(row) for row in likely}) == 4 and exact.probabilities.max() < 0.2


N, K, SCALE, WIDE = 5, 2, 0.8, 2.0
WEIGHTS = np.asarray([0.7, 0.3])


def mixture():
    return mixture_assignments(N, K, separation=2.0, scale=SCALE, prior_scale=WIDE, weights=WEIGHTS)


def mixture_points():
    where = (np.arange(N) // 2 + 0.5) / 3
    return np.where(np.arange(N) % 2, 1.0, -1.0) + SCALE * norm.ppf(where)


def test_mixture_written_out():
    log_density, y, rng = once(mixture().log_density), mixture_points(), np.random.default_rng(0)
    for _ in range(5):
        c, mu = rng.integers(0, K, N), rng.normal(size=K)
        expected = norm.logpdf(mu, 0, WIDE).sum() + np.log(WEIGHTS[c]).sum() + norm.logpdf(y, mu[c], SCALE).sum()
        own = log_density({"assignments": jnp.asarray(c, float), "means": jnp.asarray(mu, float)})
        assert float(own) == pytest.approx(expected, abs=1e-4)


def test_mixture_marginals():
    problem, y = mixture(), mixture_points()
    states = jnp.asarray(enumerate_states([K] * N), float)
    line, cell = np.linspace(-12, 12, 121, retstep=True)
    means = jnp.asarray(np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, K), float)

    @once
    def tables(states, means):
        def joint(c, mu):
            return problem.log_density({"assignments": c, "means": mu})

        both = jax.vmap(lambda c: jax.vmap(lambda mu: joint(c, mu))(means))(states)
        return both, jax.vmap(problem.marginals["means"])(means), jax.vmap(problem.marginals["assignments"])(states)

    both, left, kept = (np.asarray(a, float) for a in tables(states, means))
    np.testing.assert_allclose(left, logsumexp(both, axis=0), rtol=1e-5, atol=1e-4)
    integral = logsumexp(both, axis=1) + 2 * np.log(cell)
    np.testing.assert_allclose(kept, integral, rtol=1e-5, atol=1e-4)
    assert logsumexp(kept) == pytest.approx(logsumexp(left) + 2 * np.log(cell), abs=1e-4)
    # A component's points, their mean integrated out, are jointly normal.
    c = np.asarray([0, 1, 1, 0, 0])  # the state 01100 in binary
    expected = np.log(WEIGHTS[c]).sum()
    for k in range(K):
        own = y[c == k]
        cov = SCALE**2 * np.eye(len(own)) + WIDE**2
        expected += multivariate_normal(np.zeros(len(own)), cov).logpdf(own)
    assert kept[0b01100] == pytest.approx(expected, abs=1e-4)


def test_mixture_of_given_points():
    y = np.asarray([0.5, -1.0, 2.0])
    problem = mixture_assignments(3, 3, y=y)
    z = {"assignments": jnp.asarray([2.0, 0.0, 1.0]), "means": jnp.asarray([-1.0, 2.0, 0.5])}
    expected = norm.logpdf([-1.0, 2.0, 0.5], 0, 5).sum() + 3 * np.log(1 / 3) + 3 * norm.logpdf(0)
    assert float(once(problem.log_density)(z)) == pytest.approx(expected, abs=1e-4)
