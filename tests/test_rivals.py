"""The rivals: are the figures that they are compared by right?"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import vgp
from vgp.rivals import GUIDES, fit_guide
from vgp.rivals.guides import _log_ratios

COVARIANCE = jnp.array([[2.0, 1.2], [1.2, 1.0]])


@pytest.fixture(scope="module")
def target():
    # Normalised over constrained values, and a correlated Gaussian over unconstrained ones.
    def log_density(z):
        joint = dist.MultivariateNormal(jnp.array([1.0, -2.0]), COVARIANCE)
        return dist.LogNormal(0.5, 0.3).log_prob(z["a"]) + joint.log_prob(z["b"])

    return vgp.target(log_density, {"a": 1.0, "b": jnp.zeros(2)}, {"a": constraints.positive, "b": None})


@pytest.fixture(scope="module", params=list(GUIDES))
def guide(request, target):
    return fit_guide(target, request.param, key=jr.key(0), steps=3000)


def test_the_elbo_has_its_constants(guide):
    # A Gaussian is inside every one of these families up to their networks' error, and 0 is exact.
    tolerance = 2e-3 if guide.name == "AutoMultivariateNormal" else 0.03
    assert -tolerance - 4 * guide.elbo.stderr < guide.elbo.lower < 4 * guide.elbo.stderr + 1e-5
    assert guide.elbo.lower == guide.elbo.upper
    assert guide.seconds > 0 and guide.steps == 3000


def test_the_density_of_draws_is_exact(guide, target):
    # E_q[p / q] = 1 for a normalised p, however good q is.
    ratios = np.asarray(_log_ratios(target, guide.name, guide.params, jr.key(1)))
    weights = np.exp(ratios)
    assert weights.mean() == pytest.approx(1.0, abs=5 * weights.std() / np.sqrt(len(weights)) + 1e-4)


def test_draws_are_of_the_posterior(guide):
    draws = np.asarray(guide.sample(jr.key(2), 4000))
    np.testing.assert_allclose(draws.mean(0), [0.5, 1.0, -2.0], atol=0.15)
    np.testing.assert_allclose(np.cov(draws[:, 1:].T), COVARIANCE, atol=0.3)


def test_bad_arguments():
    line = vgp.target(lambda z: -0.5 * z**2, 0.0)
    with pytest.raises(ValueError, match="no guide 'AutoFlow'"):
        fit_guide(line, "AutoFlow", key=jr.key(0))
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        fit_guide(line, "AutoIAFNormal", key=jr.key(0))
