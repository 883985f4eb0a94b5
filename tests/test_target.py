"""Targets: names, constraints, log-Jacobians, priors and batches."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate

import vgp
from vgp.targets import shapes

pytestmark = pytest.mark.newest

EXAMPLE = {"rate": 1.0, "weights": jnp.ones(3) / 3, "shift": jnp.zeros((2, 2)), "share": 0.5}
CONSTRAINTS = {
    "rate": constraints.positive,
    "weights": constraints.simplex,
    "shift": None,
    "share": constraints.unit_interval,
}


def log_density(z):
    value = dist.Gamma(2.0, 3.0).log_prob(z["rate"]) + dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])).log_prob(z["weights"])
    return value + dist.Normal(0, 1).log_prob(z["shift"]).sum() + dist.Beta(2.0, 2.0).log_prob(z["share"])


def test_dimensions_and_round_trip(key):
    target = vgp.target(log_density, EXAMPLE, CONSTRAINTS)
    assert target.dim == 1 + 2 + 4 + 1
    u = jr.normal(key, (target.dim,))
    z = target.constrain(u)
    assert set(z) == set(EXAMPLE)
    assert float(z["rate"]) > 0
    assert float(z["weights"].sum()) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(target.unconstrain(z), u, atol=1e-3)


@pytest.mark.parametrize(
    ("constraint", "density", "low", "high"),
    [
        (constraints.positive, dist.Gamma(2.0, 3.0), -9, 4),
        (constraints.unit_interval, dist.Beta(2.0, 5.0), -9, 9),
        (constraints.interval(-1.0, 3.0), dist.Uniform(-1.0, 3.0), -12, 12),
        (None, dist.Normal(1.0, 2.0), -15, 15),
    ],
)
def test_log_jacobian_keeps_densities_normalised(constraint, density, low, high):
    target = vgp.target(lambda z: density.log_prob(z), 0.5, constraint)
    total, _ = integrate.quad(
        lambda u: float(jnp.exp(target.log_prob(jnp.array([u])))), low, high, limit=80, epsrel=1e-4
    )
    assert total == pytest.approx(1.0, abs=2e-3)


def test_one_constraint_serves_a_whole_branch():
    target = vgp.target(lambda z: -jnp.sum(z["a"]) - z["b"], {"a": jnp.ones(2), "b": 1.0}, constraints.positive)
    z = target.constrain(jnp.full(3, -2.0))
    assert float(z["a"].min()) > 0
    assert float(z["b"]) > 0


def test_prior_is_added_once():
    target = vgp.target(lambda z: -jnp.sum(z**2), jnp.zeros(2), prior=dist.Normal(1.0, 2.0))
    u = jnp.array([0.3, -0.4])
    expected = -np.sum(np.square([0.3, -0.4])) + dist.Normal(1.0, 2.0).log_prob(u).sum()
    assert float(target.log_prob(u)) == pytest.approx(float(expected), rel=1e-5)


def test_batches_are_scaled_in_one_place_and_unbiased():
    data = jr.normal(jr.key(3), (50,))
    target = vgp.target(lambda z, x: dist.Normal(z, 1.0).log_prob(x).sum(), 0.0, prior=dist.Normal(0.0, 3.0), data=data)
    u = jnp.array([0.2])
    values = jax.vmap(lambda k: target.minibatch(k, 10).log_prob(u))(jr.split(jr.key(0), 4000))
    error = float(values.std()) / 4000**0.5
    assert abs(float(values.mean()) - float(target.log_prob(u))) < 4 * error
    assert error > 0


def test_fit_on_batches_finds_the_posterior(key):
    data = 1.5 + jr.normal(jr.key(3), (400,))
    target = vgp.target(lambda z, x: dist.Normal(z, 1.0).log_prob(x).sum(), 0.0, prior=dist.Normal(0.0, 3.0), data=data)
    fit = vgp.fit(target, vgp.families.FullRank(1, key=key), key=key, batch_size=100, steps=1500, progress=False)
    precision = 400 + 1 / 9
    draws = np.asarray(fit.sample(key, 4000))
    assert abs(draws.mean() - float(data.sum()) / precision) < 0.3 / precision**0.5
    assert draws.std() == pytest.approx(precision**-0.5, rel=0.2)


@pytest.mark.parametrize("name", ["banana", "x-shape", "two-modes"])
def test_shapes_are_normalised(name):
    log_prob = shapes.SHAPES[name]().log_probs
    x = np.linspace(-12, 12, 601)
    y = np.linspace(-12, 25, 801)
    mesh = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2), jnp.float32)
    mass = np.exp(np.asarray(log_prob(mesh), np.float64)).sum() * (x[1] - x[0]) * (y[1] - y[0])
    assert mass == pytest.approx(1.0, abs=2e-3)


def test_funnel_is_normalised_given_its_neck():
    target = shapes.funnel()
    z = dist.Normal(0.0, 3.0).sample(jr.key(0), (2000,))
    rest = jnp.exp(z / 2)[:, None] * jr.normal(jr.key(1), (2000, 9))
    ratio = target.log_probs(jnp.concatenate([z[:, None], rest], 1)) - dist.Normal(0.0, 3.0).log_prob(z)
    ratio -= dist.Normal(0.0, jnp.exp(z / 2)[:, None]).log_prob(rest).sum(1)
    np.testing.assert_allclose(ratio, 0.0, atol=1e-3)


def test_a_prior_is_one_of_the_unconstrained_values(key):
    target = vgp.target(lambda z: jnp.log(z["a"]), {"a": 1.0}, {"a": constraints.positive}, prior=dist.Normal(0.0, 1.0))
    u = jnp.array([0.7])  # a = e^0.7, so that the log likelihood is 0.7
    expected = 0.7 + dist.Normal(0.0, 1.0).log_prob(0.7)
    assert np.isclose(target.log_prob(u), expected, rtol=1e-5)
