"""Where fits begin: a Gaussian that already lies on the posterior, whatever its scales, or the user's own values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro.distributions import constraints

import vgp
from vgp.compiling import once
from vgp.families import FullRank, MeanField, Place
from vgp.start import find_start, start_point

SDS = np.array([1e-3, 1e-1, 1.0, 30.0, 1e3])
MEAN = SDS * np.array([3.0, -2.0, 1.0, 0.5, -1.0])
COVARIANCE = np.outer(SDS, SDS) * (0.999 + 0.001 * np.eye(5))
UNITS = np.linalg.inv(np.linalg.cholesky(COVARIANCE))  # z to standard units


def skewed(z):
    """A normalised Gaussian of all scales, and strongly correlated."""
    white = jnp.asarray(UNITS, jnp.float32) @ (z["z"] - jnp.asarray(MEAN, jnp.float32))
    return -0.5 * jnp.sum(white**2) + float(np.log(np.diag(UNITS)).sum()) - 2.5 * np.log(2 * np.pi)


SKEWED = vgp.target(skewed, {"z": jnp.zeros(5)})

RNG = np.random.default_rng(0)
DESIGN = np.stack([np.ones(30), 1000 + RNG.normal(size=30), RNG.normal(size=30)], 1).astype(np.float32)
OUTCOME = (DESIGN @ np.array([1.0, 0.5, -2.0]) + 0.3 * RNG.normal(size=30)).astype(np.float32)


def regression(z):
    """Flat priors, a covariate far from its centre, and a σ of its own."""
    off = OUTCOME - OUTCOME.mean() - DESIGN @ z["slopes"]
    return jnp.sum(-0.5 * (off / z["sd"]) ** 2 - jnp.log(z["sd"])) - jnp.log(z["sd"])


REGRESSION = vgp.target(regression, {"sd": 1.0, "slopes": jnp.zeros(3)}, {"sd": constraints.positive, "slopes": None})


@pytest.fixture(scope="module")
def found():
    return find_start(SKEWED, jr.key(0))


def standardised(place, mean, covariance):
    """Location and covariance of a place, in units in which the true ones are zero and the identity."""
    units = np.linalg.inv(np.linalg.cholesky(covariance))
    factor = units @ np.asarray(place.factor, np.float64)
    return units @ (np.asarray(place.loc, np.float64) - mean), factor @ factor.T


def test_a_gaussian_of_any_scale_and_correlation_is_found(found):
    loc, covariance = standardised(found.places[0], MEAN, COVARIANCE)
    assert found.places[0].factor.dtype == jnp.zeros(()).dtype
    np.testing.assert_allclose(loc, 0.0, atol=0.02)
    np.testing.assert_allclose(covariance, np.eye(5), atol=0.02)
    assert found.elbos[0] == pytest.approx(0.0, abs=0.4)  # normalised; 128 pairs of draws
    np.testing.assert_array_equal(found.elbos, np.sort(found.elbos)[::-1])
    assert len(found.places) == len(found.elbos) == 8


def test_the_same_key_finds_the_same_place(found):
    again, other = find_start(SKEWED, jr.key(0)), find_start(SKEWED, jr.key(1))
    for a, b in zip(jax.tree.leaves(found.places), jax.tree.leaves(again.places), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(found.places[0].loc, other.places[0].loc)


def test_a_regression_is_found_with_its_noise():
    place = find_start(REGRESSION, jr.key(0)).places[0]
    design, outcome = DESIGN.astype(np.float64), OUTCOME.astype(np.float64) - OUTCOME.astype(np.float64).mean()
    slopes, residual = np.linalg.lstsq(design, outcome, rcond=None)[:2]
    # Flat priors: 1/σ² is Gamma((30 − 3) / 2, residual / 2), so that log σ has nearly the standard deviation 1/√(2·27).
    log_sd = 0.5 * np.log(residual[0] / 27)
    covariance = np.zeros((4, 4))
    covariance[0, 0] = 1 / 54
    covariance[1:, 1:] = residual[0] / 27 * np.linalg.inv(design.T @ design)
    loc, spread = standardised(place, np.concatenate([[log_sd], slopes]), covariance)
    np.testing.assert_allclose(loc, 0.0, atol=0.3)
    np.testing.assert_allclose(spread, np.eye(4), atol=0.2)


@pytest.fixture(scope="module")
def wide():
    """What Pathfinder finds in 120 dimensions: how far it is off, and how wide, in true standard deviations."""
    sds = np.geomspace(0.1, 10.0, 120).astype(np.float32)
    mean = sds * np.linspace(-1, 1, 120).astype(np.float32)
    target = vgp.target(lambda z: -0.5 * jnp.sum(((z - mean) / sds) ** 2), jnp.zeros(120))
    place = find_start(target, jr.key(0), paths=2).places[0]
    assert place.factor.shape == (120,)
    return (np.asarray(place.loc) - mean) / sds, np.asarray(place.factor) / sds


def test_more_dimensions_than_a_matrix_serves_are_found_by_pathfinder(wide):
    off, ratio = wide
    assert np.sqrt(np.mean(off**2)) < 0.5
    assert 0.3 < np.exp(np.log(ratio).mean()) < 2.0


def test_pathfinder_is_right_in_every_coordinate(wide):
    off, ratio = wide
    assert np.abs(off).max() < 0.5
    assert 0.5 < ratio.min() < ratio.max() < 2.0


# ---------------------------------------------------------------- how a fit uses it


def quick(target=SKEWED, family=None, key=jr.key(0), **options):
    family = FullRank(5, key=jr.key(3)) if family is None else family
    return vgp.fit(target, family, key=key, **{"steps": 20, "draws": 64, "progress": False, **options})


@pytest.fixture(scope="module")
def gaussian():
    return quick()


@pytest.mark.parametrize("kind", ["gaussian", "vgp"])
def test_the_first_bound_is_that_of_the_gaussian_that_was_found(kind, found):
    family = FullRank(5, key=jr.key(3)) if kind == "gaussian" else vgp.VGP(5, 8, key=jr.key(3))
    begun = family.placed(found.places[0]).started()
    bound = vgp.bounds.Importance(inner=16)
    values = np.asarray(once(lambda f, k: bound(SKEWED, f, k, 4000))(begun, jr.key(2)))
    assert abs(values.mean() - found.elbos[0]) < 0.1 + 3 * values.std() / 4000**0.5


def test_a_fit_begins_where_the_search_ended(gaussian):
    loc, covariance = standardised(gaussian.family.place, MEAN, COVARIANCE)
    np.testing.assert_allclose(loc, 0.0, atol=0.02)
    np.testing.assert_allclose(covariance, np.eye(5), atol=0.02)
    error = gaussian.history[:5].std() / 5**0.5
    assert abs(gaussian.history[:5].mean()) < 0.1 + 3 * error


def test_a_family_that_has_a_place_keeps_it(gaussian):
    warm = quick(family=gaussian.family, key=jr.key(5))
    np.testing.assert_array_equal(warm.family.place.loc, gaussian.family.place.loc)
    np.testing.assert_array_equal(warm.family.place.factor, gaussian.family.place.factor)
    assert not np.array_equal(warm.family.loc, gaussian.family.loc)  # and goes on from what was learned
    np.testing.assert_allclose(warm.family.loc, gaussian.family.loc, atol=0.2)


def test_without_a_start_the_family_stays_where_it_is():
    away = eqx.tree_at(lambda f: f.loc, MeanField(5, key=jr.key(3)), jnp.full(5, 7.0))
    fit = quick(vgp.target(lambda z: -0.5 * jnp.sum((z - 7.0) ** 2), jnp.zeros(5)), away, start=None)
    assert fit.family.place is None
    np.testing.assert_allclose(fit.family.loc, 7.0, atol=0.5)


def test_a_place_of_ones_own_is_a_start():
    place = Place(jnp.asarray(MEAN, jnp.float32), jnp.asarray(np.linalg.cholesky(COVARIANCE), jnp.float32))
    fit = quick(start=place)
    np.testing.assert_array_equal(fit.family.place.factor, place.factor)


def far(z):
    """Two modes, one of them where nobody looks."""
    near = -0.5 * jnp.sum(z["x"] ** 2) - 0.5 * z["y"] ** 2
    return jnp.logaddexp(near, near - 0.5 * jnp.sum((z["x"] - 40.0) ** 2) + 0.5 * jnp.sum(z["x"] ** 2)) - z["rate"]


FAR = vgp.target(far, {"rate": 1.0, "x": jnp.zeros(2), "y": 0.0}, {"rate": constraints.positive, "x": None, "y": None})


def test_values_of_some_names_are_enough_to_start_at():
    point = start_point(FAR, {"x": [40.0, 41.0]})
    np.testing.assert_allclose(point, [0.0, 40.0, 41.0, 0.0], atol=1e-5)
    np.testing.assert_allclose(start_point(FAR, {"rate": 3.0, "y": 2}), [np.log(3.0), 0.0, 0.0, 2.0], rtol=1e-5)
    fit = quick(FAR, MeanField(4, key=jr.key(0)), start={"x": jnp.array([38.0, 42.0])})
    np.testing.assert_allclose(fit.family.place.loc[1:3], 40.0, atol=0.1)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"z": 0.0}, r"The start names \['z'\], and the values to start are \['rate', 'x', 'y'\]"),
        ({"rate": -1.0}, "outside of the values' supports; move it inside"),
        ({"rate": 0.0}, "outside of the values' supports"),
        ({"y": np.nan}, "outside of the values' supports"),
        ({"x": jnp.zeros(3)}, r"must have the shapes .*'x': \(2,\).*, and it has .*'x': \(3,\)"),
        (jnp.zeros(4), r"must have the shapes .*, and it has \(4,\)"),
    ],
)
def test_starts_that_do_not_fit_are_refused(values, says):
    with pytest.raises(ValueError, match=says):
        start_point(FAR, values)
    with pytest.raises(ValueError, match=says):
        quick(FAR, MeanField(4, key=jr.key(0)), start=values)


def test_shapes_that_add_up_are_refused_too():
    with pytest.raises(ValueError, match="must have the shapes"):
        start_point(FAR, {"x": jnp.zeros(1), "y": jnp.zeros(2)})


@pytest.mark.parametrize(
    ("support", "value"), [(constraints.simplex, [2.0, 3.0, 4.0]), (constraints.corr_cholesky, 2.0 * np.eye(2))]
)
def test_starts_beside_a_simplex_are_refused(support, value):
    value = jnp.asarray(value)
    target = vgp.target(lambda z: -jnp.sum(z["a"] ** 2), {"a": value}, {"a": support})
    with pytest.raises(ValueError, match="outside of the values' supports"):
        start_point(target, {"a": value})


def corner(z, edge):
    """A Gaussian beyond an edge, and nothing before it."""
    return jnp.where(jnp.all(z > edge), -0.5 * jnp.sum(((z - 6.0) / 0.3) ** 2), -jnp.inf)


def test_a_log_density_that_is_finite_in_a_corner_is_found():
    found = find_start(vgp.target(corner, jnp.zeros(2), data=jnp.array([0.5])), jr.key(0))
    np.testing.assert_allclose(found.places[0].loc, 6.0, atol=0.03)
    spread = np.asarray(found.places[0].factor @ found.places[0].factor.T)
    np.testing.assert_allclose(spread, 0.09 * np.eye(2), atol=0.01)


def test_a_log_density_that_is_nowhere_finite_is_refused():
    with pytest.raises(ValueError, match="The log density is not finite at any of 64 starting points"):
        quick(vgp.target(corner, jnp.zeros(2), data=jnp.array([jnp.inf])), FullRank(2, key=jr.key(0)))


def test_a_word_that_is_no_start_is_refused():
    with pytest.raises(ValueError, match="start must be 'auto', None, a vgp.families.Place or values"):
        quick(start="pathfinder")
