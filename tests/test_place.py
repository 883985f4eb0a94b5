"""Places: a family in whitened coordinates has every bound, density and draw that it has in the target's own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
from jaxtyping import Array
from numpyro.distributions import constraints
from problems import TOTAL, covering, linear_vgp, random_vgp
from scipy import stats

import vgp
from vgp import diagnostics
from vgp.auxiliary import Residual
from vgp.bounds import Analytic, Collapsed, General, Importance
from vgp.compiling import once
from vgp.families import FullRank, MeanField, Place
from vgp.families.place import Whitened
from vgp.target import Target

LOC = np.array([0.7, -1.3])
FACTORS = {"diagonal": np.array([0.3, 2.5]), "full": np.array([[0.3, 0.0], [1.7, 2.5]])}
MEAN, SDS = np.array([0.3, -0.6]), np.array([1.5, 0.8])  # of a prior


def matrix(factor):
    return np.diag(factor) if factor.ndim == 1 else factor


def place_of(factor):
    return Place(jnp.asarray(LOC, jnp.float32), jnp.asarray(factor, jnp.float32))


def ridge(z):
    return -0.5 * (z[0] - 1.0) ** 2 - 0.3 * (z[1] - z[0] ** 2) ** 2


@pytest.fixture(params=FACTORS)
def factor(request):
    return FACTORS[request.param]


# ---------------------------------------------------------------- the map


def test_the_way_there_and_back(factor):
    place, w = place_of(factor), jr.normal(jr.key(0), (3, 4, 2))
    z = place(w)
    np.testing.assert_allclose(z, LOC + np.asarray(w) @ matrix(factor).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(place.inverse(z), w, atol=1e-5)
    np.testing.assert_allclose(place.inverse(z[0, 0]), w[0, 0], atol=1e-5)
    assert float(place.log_volume) == pytest.approx(np.linalg.slogdet(matrix(factor))[1], rel=1e-5)
    spread = np.sqrt(np.diag(matrix(factor) @ matrix(factor).T))
    np.testing.assert_allclose(place.diagonal.factor, spread, rtol=1e-5)


def test_a_whitened_target_has_the_values_and_volume_of_both_maps(factor):
    def log_density(z):
        return -z["rate"] - z["x"] ** 2

    target = vgp.target(log_density, {"rate": 1.0, "x": 0.0}, {"rate": constraints.positive, "x": None})
    moved, w = Whitened(target, place_of(factor)), jnp.array([0.3, -0.2])
    z = LOC + matrix(factor) @ np.asarray(w)
    values = moved.constrain(w)
    assert float(values["rate"]) == pytest.approx(np.exp(z[0]), rel=1e-5)
    assert float(values["x"]) == pytest.approx(z[1], rel=1e-5)
    np.testing.assert_allclose(moved.unconstrain(values), w, atol=1e-5)
    volume = np.linalg.slogdet(matrix(factor))[1]
    assert float(moved.log_jacobian(w)) == pytest.approx(z[0] + volume, rel=1e-4)
    assert float(moved.log_prob(w)) == pytest.approx(-np.exp(z[0]) - z[1] ** 2 + z[0] + volume, rel=1e-4)


# ---------------------------------------------------------------- bounds

BOUNDS = {  # and whether the target has a prior of its own
    "Importance(8)": (Importance(8, split=False), False),
    "Importance(8, split)": (Importance(8, split=True), False),
    "Collapsed": (Collapsed(), False),
    "General": (General(), False),
    "Importance(8), prior": (Importance(8, split=False), True),
    "Importance(8, split), prior": (Importance(8, split=True), True),
    "Analytic, prior": (Analytic(), True),
}


class ByHand(Target):
    """`ridge` in other coordinates, and perhaps a prior there; written out on its own."""

    matrix: Array
    constant: Array
    prior: dist.Distribution | None
    dim: int = eqx.field(static=True, default=2)

    def log_likelihood(self, u):
        return ridge(jnp.asarray(LOC, jnp.float32) + self.matrix @ u) + self.constant

    def constrain(self, u):
        return u

    def unconstrain(self, z):
        return z

    def log_jacobian(self, u):
        return jnp.zeros(())


@once
def all_bounds(plain, prior, family, key):
    return {name: bound(prior if has else plain, family, key, 32) for name, (bound, has) in BOUNDS.items()}


OWN = dist.Normal(jnp.asarray(MEAN), jnp.asarray(SDS))
TARGETS = vgp.target(ridge, jnp.zeros(2)), vgp.target(ridge, jnp.zeros(2), prior=OWN)


@pytest.fixture(scope="module", params=FACTORS)
def sides(request):
    """Every bound of a placed family, and of the same family without a place on a target transformed by hand."""
    scale = FACTORS[request.param]
    full, inverse = matrix(scale), np.linalg.inv(matrix(scale))
    covariance = inverse @ np.diag(SDS**2) @ inverse.T
    pulled = dist.MultivariateNormal(jnp.asarray(inverse @ (MEAN - LOC)), jnp.asarray(covariance))
    family = covering(random_vgp(2, 2, jr.key(2)))
    volume = jnp.asarray(np.linalg.slogdet(full)[1], float)
    by_hand = ByHand(jnp.asarray(full, float), volume, None), ByHand(jnp.asarray(full, float), 0.0 * volume, pulled)
    placed = all_bounds(*TARGETS, family.placed(place_of(scale)), jr.key(5))
    return placed, all_bounds(*by_hand, family, jr.key(5))


@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_is_that_of_the_transformed_target(sides, name):
    placed, by_hand = sides
    assert np.ptp(placed[name]) > 0.1
    np.testing.assert_allclose(placed[name], by_hand[name], rtol=2e-4, atol=2e-4)


def test_a_place_is_not_learned(factor):
    target = vgp.target(ridge, jnp.zeros(2), prior=dist.Normal(0.0, 1.0))
    family = FullRank(2, key=jr.key(0)).placed(place_of(factor))
    gradient = once(eqx.filter_grad(lambda f: Importance()(target, f, jr.key(1), 16).mean()))(family)
    for leaf in jax.tree.leaves(gradient.place):
        np.testing.assert_array_equal(leaf, 0.0)
    assert np.abs(gradient.loc).min() > 0


# ---------------------------------------------------------------- densities


def gaussian(kind):
    """A family in general position, its mean and its covariance."""
    loc = np.array([0.5, -0.4])
    family = eqx.tree_at(lambda f: f.loc, kind(2, key=jr.key(0)), jnp.asarray(loc, jnp.float32))
    if kind is MeanField:
        family = eqx.tree_at(lambda f: f.log_scale, family, jnp.log(jnp.array([0.5, 1.5])))
        return family, loc, np.diag([0.25, 2.25])
    below = jnp.array([[0.0, 0.0], [0.6, 0.0]])
    family = eqx.tree_at(lambda f: (f.log_diagonal, f.below), family, (jnp.log(jnp.array([0.5, 1.5])), below))
    lower = np.array([[0.5, 0.0], [0.6, 1.5]])
    return family, loc, lower @ lower.T


@pytest.mark.parametrize("kind", [MeanField, FullRank])
def test_gaussians_in_a_place_are_gaussians(kind, factor):
    family, loc, covariance = gaussian(kind)
    family, full = family.placed(place_of(factor)), matrix(factor)
    if kind is MeanField:  # has independent coordinates, wherever it is put
        full = np.diag(np.sqrt(np.diag(full @ full.T)))
        assert family.place.factor.ndim == 1
    loc, covariance = LOC + full @ loc, full @ covariance @ full.T
    n = 4000
    drawn = once(lambda f, k: f.draw(k, n))(family, jr.key(1))
    z = np.asarray(drawn.z, np.float64)
    exact = stats.multivariate_normal(loc, covariance)
    np.testing.assert_allclose(drawn.log_q, exact.logpdf(z), atol=2e-4)
    np.testing.assert_allclose(family.log_prob(drawn.z), exact.logpdf(z), atol=2e-4)
    whitener = np.linalg.inv(np.linalg.cholesky(covariance))
    np.testing.assert_allclose(whitener @ (z.mean(0) - loc), 0.0, atol=4 / n**0.5)
    np.testing.assert_allclose(whitener @ np.cov(z.T) @ whitener.T, np.eye(2), atol=4 * (2 / n) ** 0.5)
    np.testing.assert_allclose(once(lambda f, k: f.sample(k, n))(family, jr.key(1)), drawn.z, rtol=1e-5, atol=1e-5)


def test_densities_of_a_hierarchical_family_move_with_it():
    place = Place(jnp.array([3.0]), jnp.array([[0.2]]))
    family = linear_vgp(Residual(1, 1, key=jr.key(0))).placed(place)
    exact = stats.norm(3.0, 0.2 * TOTAL**0.5)
    z = np.linspace(3 - 1.2, 3 + 1.2, 61)
    value, stderr = diagnostics.log_prob(family, jnp.asarray(z, jnp.float32)[:, None], jr.key(1), inner=4000)
    assert np.trapezoid(np.exp(np.asarray(value, np.float64)), z) == pytest.approx(1.0, abs=0.02)
    near = np.abs(z - 3) < 0.5
    off = np.abs(np.asarray(value) - exact.logpdf(z))
    assert (off < 5 * np.asarray(stderr) + 1e-3)[near].all()
    assert off[near].max() < 0.2
    target = vgp.target(lambda x: jnp.sum(dist.Normal(3.0, 0.2 * TOTAL**0.5).log_prob(x)), jnp.zeros(1))  # the very q
    elbo = diagnostics.log_ratios(target, family, jr.key(2), 2000, 100).elbo
    assert -0.1 < elbo.lower < 3 * elbo.stderr
    assert -3 * elbo.stderr < elbo.upper < 0.1


# ---------------------------------------------------------------- fits

WAITING = vgp.target(lambda x: 4.0 * jnp.log(x) - 200.0 * x, 1.0, constraints.positive)  # Gamma(5, 200)


def quick(**options):
    family = FullRank(1, key=jr.key(1))
    options = {"steps": 30, "draws": 8, "progress": False, **options}
    return vgp.fit(WAITING, family, key=jr.key(0), **options)


@pytest.fixture(scope="module")
def fit():
    return quick()


def test_log_prob_of_a_placed_fit_integrates_to_one(fit):
    assert fit.family.place is not None
    x = np.geomspace(1e-4, 1.0, 400).astype(np.float32)
    log_q = np.asarray(fit.log_prob(jnp.asarray(x), jr.key(0)).value, np.float64)
    assert np.trapezoid(np.exp(log_q), x) == pytest.approx(1.0, abs=0.01)
    draws = np.asarray(fit.sample(jr.key(1), 4000))
    assert draws.mean() == pytest.approx(np.trapezoid(x * np.exp(log_q), x), rel=0.05)
    assert draws.mean() == pytest.approx(5 / 200, rel=0.2)


def test_a_placed_fit_is_saved_and_resumed_bit_for_bit(fit, tmp_path):
    fit.save(tmp_path / "fit.vgp")
    loaded = vgp.load(tmp_path / "fit.vgp", WAITING)
    for a, b in zip(jax.tree.leaves(fit.family), jax.tree.leaves(loaded.family), strict=True):
        np.testing.assert_array_equal(a, b)
    one, two = fit.resume(steps=20, progress=False), loaded.resume(steps=20, progress=False)
    assert len(one.history) == 50
    np.testing.assert_array_equal(one.history, two.history)
    np.testing.assert_array_equal(one.history[:30], fit.history)
    for a, b in zip(jax.tree.leaves(one.family), jax.tree.leaves(two.family), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.family.place.factor, fit.family.place.factor)


@pytest.mark.parametrize(
    "start",
    [
        "auto",
        None,
        Place(jnp.array([-3.5]), jnp.array([0.5])),
    ],
    ids=["found", "none", "vector"],
)
def test_a_fit_goes_on_from_its_checkpoint_wherever_it_started(start, tmp_path):
    path = tmp_path / "fit.vgp"
    first = quick(start=start, checkpoint=path)
    again = quick(start=start, checkpoint=path)
    np.testing.assert_array_equal(first.history, again.history)
    for a, b in zip(jax.tree.leaves(first.family), jax.tree.leaves(again.family), strict=True):
        np.testing.assert_array_equal(a, b)
