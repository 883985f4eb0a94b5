"""Structured algebra on a grid against a dense double-precision reference with the same jitter."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import vgp
from vgp.compiling import once
from vgp.gp import Conditioner, Grid, conditioned, told
from vgp.gp.axis import JITTER, DenseAxis
from vgp.gp.kronecker import KroneckerConditioner
from vgp.gp.toeplitz import ToeplitzAxis
from vgp.kernels import ARD, Linear, Matern52, Separable

AXES = {"dense": DenseAxis, "toeplitz": ToeplitzAxis}


def structured(kernel, grid, kind):
    return KroneckerConditioner(kernel, grid, tuple(map(AXES[kind], grid.low, grid.high, grid.points)))


def profile(name, r2):
    r = np.sqrt(5 * r2)
    return np.exp(-0.5 * r2) if name == "ARD" else (1 + r + r**2 / 3) * np.exp(-r)


def reference(name, weights, grid, xi, t, slopes):
    """Mean and variance over σ², and the gradients of Σ (mean · a + variance · b) by t and by each √ω, by hand."""

    def value(weights, t):
        rows, explained = np.ones((len(xi), 1)), 1.0
        for i, points in enumerate(grid.axes):
            gram = profile(name, weights[i] * (points[:, None] - points) ** 2) + JITTER * np.eye(len(points))
            cross = profile(name, weights[i] * (points[:, None] - xi[:, i]) ** 2)
            solved = np.linalg.solve(gram, cross)
            rows = (rows[:, :, None] * solved.T[:, None]).reshape(len(xi), -1)
            explained = explained * (cross * solved).sum(0)
        return rows @ t, 1 - explained, rows

    mean, variance, rows = value(weights, t)
    by_t = rows.T @ slopes[0]
    by_root = []
    for i in range(len(weights)):
        ends = []
        for sign in (1, -1):
            moved = np.array(weights)
            moved[i] = (np.sqrt(weights[i]) * (1 + sign * 1e-4)) ** 2
            m, v, _ = value(moved, t)
            ends.append((m * slopes[0]).sum() + (v * slopes[1]).sum())
        by_root.append((ends[0] - ends[1]) / (2e-4 * np.sqrt(weights[i])))
    return mean, variance, by_t, np.array(by_root)


@once
def found(make, kernel, u, xi, slopes):
    def total(kernel, t):
        mean, variance = make(kernel).interpolate(xi, t)
        left = variance / kernel.variance
        return jnp.sum(mean * slopes[0]) + jnp.sum(left * slopes[1]), (mean, left)

    t = make(kernel).colour(u)
    (_, (mean, left)), (by_kernel, by_t) = jax.value_and_grad(total, (0, 1), has_aux=True)(kernel, t)
    return t, mean, left, by_t, by_kernel.root_weights


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize("lengthscale", [0.02, 0.4, pytest.param(2.0, marks=pytest.mark.slow), 20.0])
@pytest.mark.parametrize("name", ["ARD", pytest.param("Matern52", marks=pytest.mark.slow)])
def test_agrees_with_a_dense_reference(kind, lengthscale, name):
    # From far shorter than the spacing to longer than the grid; outputs as the process itself would have them.
    grid = Grid((12, 15)) if name == "ARD" else Grid(60)
    c = grid.latent_dim
    weights = np.array([1.0, 1.7][:c]) / lengthscale**2
    kernel = {"ARD": ARD, "Matern52": Matern52}[name](0.3, weights if c > 1 else float(weights[0]))
    rng = np.random.default_rng(0)
    xi, u = (rng.normal(size=s).astype(np.float32) for s in ((20, c), (grid.size, 2)))
    slopes = rng.normal(size=(20, 2)), rng.normal(size=20)
    t, mean, left, by_t, by_root = found(
        lambda kernel: structured(kernel, grid, kind),
        kernel,
        jnp.asarray(u),
        jnp.asarray(xi),
        jax.tree.map(jnp.asarray, slopes),
    )
    roots = np.asarray(kernel.root_weights, float).reshape(-1)
    expected = reference(name, roots**2, grid, xi.astype(float), np.asarray(t, float), slopes)
    largest = np.abs(t).max()
    np.testing.assert_allclose(mean, expected[0], atol=1e-4 * largest)
    np.testing.assert_allclose(left, expected[1], atol=1e-4)
    np.testing.assert_allclose(by_t, expected[2], atol=1e-3 * np.abs(expected[2]).max())
    np.testing.assert_allclose(np.reshape(by_root, -1), expected[3], rtol=1e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("kind", AXES)
def test_single_precision_is_not_enough(kind):
    # What the docs say of free inputs, whose factor is in single precision, and that a grid's is not.
    grid, lengthscale = Grid(64), 8.0  # as long as the grid
    kernel, points = ARD(1.0, lengthscale**-2), grid.axes[0]
    xi = np.random.default_rng(0).normal(size=50).astype(np.float32)

    def exact(jitter):
        gram = np.exp(-0.5 * ((points[:, None] - points) / lengthscale) ** 2) + jitter * np.eye(64)
        cross = np.exp(-0.5 * ((points[:, None] - xi.astype(float)) / lengthscale) ** 2)
        return 1 - np.sum(cross * np.linalg.solve(gram, cross), axis=0)

    free = Conditioner(kernel, jnp.asarray(points[:, None], jnp.float32))
    _, single = free.rows(jnp.asarray(xi[:, None]))
    jitter = float(free.jitter)
    assert np.median(np.abs(single / exact(jitter) - 1)) > 0.03 and (single >= 0.999 * jitter).all()
    _, double = structured(kernel, grid, kind).rows(jnp.asarray(xi[:, None]))
    np.testing.assert_allclose(double, exact(JITTER), rtol=3e-3)


def test_a_solve_that_is_given_up_is_no_number():
    grid, kernel = Grid(50), ARD(1.0, 1.0)
    axis = ToeplitzAxis(*grid.low, *grid.high, 50, steps=2)
    rows, variance = once(lambda: KroneckerConditioner(kernel, grid, (axis,)).rows(jnp.asarray([[0.3]])))()
    assert np.isnan(rows.each[0]).all() and np.isnan(variance).all()


def test_points_out_of_reach_have_no_weights():
    # Their right-hand side is zero, beside others that are not and alone.
    grid, kernel = Grid(50), ARD(1.0, 1e4)
    rows = once(lambda xi: structured(kernel, grid, "toeplitz").rows(xi))
    for points in ([[100.0], [0.3]], [[100.0]]):
        weights, variance = rows(jnp.asarray(points))
        assert np.isfinite(weights.each[0]).all()
        np.testing.assert_allclose(weights.each[0][0], 0.0, atol=1e-15)
        assert variance[0] == 1.0


def test_the_algebra_is_chosen_and_told():
    small, line, cube = Grid((3, 4)), Grid(2000), Grid(100, latent_dim=3)
    assert told(conditioned(ARD(), small)) == "Kronecker, 3 dense × 4 dense, 12 inputs"
    assert told(conditioned(ARD(), line)) == "2000 Toeplitz, 2000 inputs"
    assert (
        vgp.VGP(1, inputs=cube, key=jr.key(0)).solver == "Kronecker, 100 dense × 100 dense × 100 dense, 1000000 inputs"
    )
    assert isinstance(conditioned(Matern52(), line), KroneckerConditioner)
    assert isinstance(conditioned(Matern52() + ARD(), line), KroneckerConditioner)
    assert isinstance(conditioned(Separable(Matern52(), ARD()), Grid((80, 90))), KroneckerConditioner)
    assert isinstance(conditioned(ARD() * ARD(), Grid((80, 90))), KroneckerConditioner)
    assert isinstance(conditioned(Matern52(), small), Conditioner)  # no product, but few
    for kernel in (Matern52(), Linear(), ARD() + Linear()):
        with pytest.raises(ValueError, match="Grid of 7200 points needs a kernel that is a product"):
            conditioned(kernel, Grid((80, 90)))


def test_separable_is_a_product():
    kernel = Separable(Matern52(0.5, 2.0), ARD(0.4, 3.0))
    x, y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 2)), jnp.float32)
    expected = Matern52(0.5, 2.0)(x[:, :1], y[:, :1]) * ARD(0.4, 3.0)(x[:, 1:], y[:, 1:])
    np.testing.assert_allclose(kernel(x, y), expected, rtol=1e-5)
    np.testing.assert_allclose(kernel.relevance(2), [2.0, 3.0], rtol=1e-5)
    with pytest.raises(ValueError, match="each of 2 coordinates, got points of 3"):
        kernel.along(3)


def test_a_vgp_on_a_grid_is_the_vgp_at_its_points():
    grid, kernel = Grid((5, 6), low=-2.0, high=2.0), ARD(0.3, 1.5)
    outputs = jnp.asarray(np.random.default_rng(0).normal(size=(30, 2)), jnp.float32)
    same = {"outputs": outputs, "kernel": kernel, "key": jr.key(0)}
    ours, free = vgp.VGP(2, inputs=grid, **same), vgp.VGP(2, inputs=grid.inputs(), **same)
    xi = jr.normal(jr.key(1), (3, 7, 2))

    @once
    def given(family):
        q = family.view().conditional(xi).base_dist
        return q.loc, q.scale

    for one, other in zip(given(ours), given(free), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)  # the free one has another jitter
    np.testing.assert_allclose(ours.outputs, outputs, atol=1e-3)
    assert not jax.tree.leaves(ours.inputs)  # nothing to learn


@pytest.mark.slow
def test_fit_save_and_load(tmp_path):
    target = vgp.target(lambda z: -0.5 * jnp.sum(z**2) - jnp.log(2 * jnp.pi), jnp.zeros(2))
    family = vgp.VGP(2, inputs=Grid((6, 6)), key=jr.key(0))
    fit = vgp.fit(target, family, key=jr.key(1), steps=200, restarts=2, progress=False)
    assert fit.elbo.upper == pytest.approx(0.0, abs=0.1)
    assert "Kronecker, 6 dense × 6 dense" in str(fit.summary())
    fit.save(tmp_path / "fit.vgp")
    again = vgp.load(tmp_path / "fit.vgp", target)
    np.testing.assert_array_equal(fit.sample(jr.key(2), 5), again.sample(jr.key(2), 5))


@pytest.mark.parametrize(
    "arguments, told",
    [
        (((3, 1),), "two points or more along every dimension, got \\(3, 1\\)"),
        (((3, 4), 3), "3 latent dimensions needs 3 numbers of points, got 2"),
    ],
)
def test_grids_that_are_none(arguments, told):
    with pytest.raises(ValueError, match=told):
        Grid(*arguments)


def test_bounds_and_dimensions_must_fit():
    with pytest.raises(ValueError, match="finite and rising, got 1.0 to 1.0"):
        Grid(3, low=1.0, high=1.0)
    with pytest.raises(ValueError, match="The Grid has 1 dimensions, got latent_dim = 2"):
        vgp.VGP(2, inputs=Grid(10), latent_dim=2, key=jr.key(0))
