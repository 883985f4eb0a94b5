"""Targets from PyMC models: densities against PyMC's own, names, data, batches, and what is refused."""

import subprocess
import sys
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import integrate, stats

import vgp
from vgp.compiling import once
from vgp.targets.pymc import from_pymc

pm = pytest.importorskip("pymc")
pytensor = pytest.importorskip("pytensor")

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=12), RNG.normal(1.0, 2.0, 12)
GROUP = np.arange(12) % 3
TR = pm.distributions.transforms


def positive():
    pm.Gamma("rate", 2, 3, shape=2)
    pm.Normal("y", pm.Normal("mu", 0, 3), pm.HalfCauchy("scale", 2), observed=Y)


def unit_interval():
    pm.Binomial("k", 10, pm.Beta("p", 2, 5, shape=3), observed=[1, 2, 9])


def interval():
    low = pm.TruncatedNormal("above", 0, 1, lower=1.0) - pm.TruncatedNormal("below", 0, 1, upper=-1.0)
    both = pm.TruncatedNormal("both", 0, 1, lower=[-1.0, 0.0], upper=[1.0, 3.0], shape=2)
    pm.Normal("y", pm.Uniform("a", -1, 4) + both.sum() + low, 2, observed=Y)


def simplex():
    pm.Dirichlet("many", np.ones((2, 4)))
    pm.Multinomial("k", 20, pm.Dirichlet("weights", [1.0, 2.0, 3.0]), observed=[3, 5, 12])


def ordered():
    cuts = pm.Normal("cuts", [-1, 0, 1], 1.5, transform=TR.ordered, initval=[-1, 0, 1])
    pm.OrderedLogistic("k", eta=pm.Normal("eta"), cutpoints=cuts, observed=GROUP)


def cholesky():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=3))
    pm.MvNormal("y", pm.Normal("mu", shape=3), chol=chol, observed=np.reshape(Y, (4, 3)))


def hierarchical():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 2)
    theta = pm.Normal("theta", mu, tau, shape=3)
    pm.Deterministic("twice", 2 * theta)
    slope = pm.StudentT("slope", 4, mu=0, sigma=1)
    pm.StudentT("y", 4, mu=theta[GROUP] + slope * pm.Data("x", X), sigma=pm.math.exp(mu / 3), observed=Y)


def potential():
    x = pm.Normal("x", shape=3)
    pm.Potential("penalty", -2 * (x.sum() - 1) ** 2)


def mixture():
    pm.NormalMixture(
        "y", pm.Dirichlet("w", [1.0, 1.0]), pm.Normal("mu", [-1, 1], 1), pm.HalfNormal("s", 1, shape=2), observed=Y
    )


def censored():
    base = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("s", 2))
    pm.Censored("y", base, lower=-1, upper=2, observed=np.clip(Y, -1, 2))


def zero_sum_and_circular():
    pm.ZeroSumNormal("table", shape=(3, 4), n_zerosum_axes=2)
    effect = pm.ZeroSumNormal("effect", sigma=2, shape=3)
    pm.Normal("y", effect[GROUP] + pm.VonMises("angle", 0.3, 2.0), 1, observed=Y)


def transform_of_ones_own():
    p = pm.Beta("p", 2, 2, shape=3, default_transform=None, transform=TR.Chain([TR.logodds, TR.ordered]))
    pm.Normal("y", p[GROUP] * pm.HalfNormal("bare", default_transform=None), 1, observed=Y)


def imputed():
    pm.Normal("y", pm.Normal("mu"), 1, observed=np.where(GROUP == 1, np.nan, Y))


MODELS = [
    positive, unit_interval, interval, simplex, ordered, cholesky, hierarchical, potential, mixture, censored,
    zero_sum_and_circular, transform_of_ones_own, imputed,
]  # fmt: skip


def made(build, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pm.Model(**options) as model:
            build()
    return model


def reference(model, z):
    """PyMC's own log density of constrained values, through its own transforms and no Jacobian."""
    point = []
    for value in model.value_vars:
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        x = pytensor.tensor.constant(np.asarray(z[rv.name], float))
        point.append(x if transform is None else transform.forward(x, *rv.owner.inputs))
    logp = pytensor.graph.replace.clone_replace(
        [model.logp(jacobian=False)], dict(zip(model.value_vars, point, strict=True)), rebuild_strict=False
    )
    return float(pm.pytensorf.compile([], logp, mode="FAST_COMPILE")()[0])


@pytest.mark.parametrize("build", MODELS)
def test_agrees_with_pymc(build):
    model = made(build)
    target = from_pymc(model)
    u = 0.5 * jr.normal(jr.key(1), (target.dim,))

    @once  # compiled quickly
    def everything(target, u):
        z = target.constrain(u)
        return target.log_prob(u), target.log_jacobian(u), z, target.unconstrain(z), jax.grad(target.log_prob)(u)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_prob, log_jacobian, z, back, slope = everything(target, u)
    assert log_prob.dtype == jnp.float32
    assert float(log_prob - log_jacobian) == pytest.approx(reference(model, z), rel=1e-5)
    assert set(z) == {x.name for x in [*model.free_RVs, *model.deterministics]}
    np.testing.assert_allclose(back, u, atol=1e-5)
    assert bool(jnp.isfinite(slope).all())
    assert len(target.coordinates()) == target.dim
    # The Jacobian is of the map that constrain is. Simplices and sums of zero lie in fewer dimensions: see below.
    shapes = [z[name].size for name in target.layout.names]
    if sum(shapes) == target.dim:
        flat = jax.jacfwd(lambda u: jnp.concatenate([jnp.ravel(target.constrain(u)[n]) for n in target.layout.names]))
        assert float(log_jacobian) == pytest.approx(
            float(jnp.linalg.slogdet(once(lambda u: flat(u))(u))[1]), rel=1e-4, abs=1e-4
        )


def test_simplex_is_normalised():
    target = from_pymc(made(lambda: pm.Dirichlet("w", [2.0, 3.0])))
    log_prob = jax.jit(lambda u: target.log_prob(u))
    total, _ = integrate.quad(lambda u: float(jnp.exp(log_prob(jnp.array([u])))), -12, 12, epsrel=1e-4)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_supports_are_kept():
    def build():
        interval()
        simplex_, cuts = pm.Dirichlet("w", np.ones(3)), pm.Normal("cuts", shape=3, transform=TR.ordered)
        pm.Deterministic("both_", simplex_ + cuts)

    target = from_pymc(made(build))
    z = once(lambda u: jax.vmap(target.constrain)(u))(2 * jr.normal(jr.key(0), (200, target.dim)))
    assert float(z["a"].min()) > -1
    assert float(z["a"].max()) < 4
    assert float(z["above"].min()) > 1
    assert float(z["below"].max()) < -1
    assert bool(jnp.all((z["both"] > jnp.array([-1.0, 0.0])) & (z["both"] < jnp.array([1.0, 3.0]))))
    np.testing.assert_allclose(z["w"].sum(-1), 1.0, atol=1e-5)
    assert bool(jnp.all(jnp.diff(z["cuts"], axis=-1) > 0))
    np.testing.assert_allclose(z["both_"], z["w"] + z["cuts"], rtol=1e-6)


def test_covariances_come_out_by_name():
    target = from_pymc(made(cholesky))
    z = once(lambda u: target.constrain(u))(0.3 * jr.normal(jr.key(2), (target.dim,)))
    chol = np.zeros((3, 3))
    chol[np.tril_indices(3)] = z["chol"]
    assert np.all(np.diag(chol) > 0)
    cov = chol @ chol.T
    np.testing.assert_allclose(z["chol_stds"], np.sqrt(np.diag(cov)), rtol=1e-5)
    np.testing.assert_allclose(z["chol_corr"], cov / np.outer(z["chol_stds"], z["chol_stds"]), rtol=1e-4, atol=1e-6)


def test_slopes_stay_finite_in_far_tails():
    target = from_pymc(made(censored))
    u = jnp.array([[50.0, 0.1], [0.0, -4.0], [-50.0, 0.1]])
    assert bool(jnp.isfinite(once(lambda u: jax.vmap(jax.grad(target.log_prob))(u))(u)).all())


def test_float64_where_it_is_on():
    model = made(hierarchical)
    with jax.enable_x64(True):
        target = from_pymc(model)
        u = 0.5 * jr.normal(jr.key(1), (target.dim,))
        value, log_jacobian, z = once(lambda u: (target.log_prob(u), target.log_jacobian(u), target.constrain(u)))(u)
        assert value.dtype == jnp.float64
        assert float(value - log_jacobian) == pytest.approx(reference(model, z), rel=1e-12)


def regression():
    x = pm.Data("x", X, dims="row")
    slope = pm.Normal("slope")
    pm.Deterministic("line", slope * x, dims="row")
    pm.Normal("y", slope * x, 0.5, observed=pm.Data("seen", Y, dims="row"), dims="row")


def regression_log_prob(slope, x, y):
    return stats.norm(0, 1).logpdf(slope) + stats.norm(slope * x, 0.5).logpdf(y).sum()


def test_data_is_replaced_without_compiling_again():
    model = made(regression)
    target, count = from_pymc(model), 0

    @eqx.filter_jit
    def log_prob(target, u):
        nonlocal count
        count += 1
        return target.log_prob(u)

    u = jnp.array([0.7])
    assert float(log_prob(target, u)) == pytest.approx(regression_log_prob(0.7, X, Y), rel=1e-5)
    assert float(log_prob(target.with_data(x=2 * X), u)) == pytest.approx(regression_log_prob(0.7, 2 * X, Y), rel=1e-5)
    log_prob(target, u + 1)
    assert count == 1
    shorter = target.with_data(x=X[:5], seen=Y[:5])
    assert float(log_prob(shorter, u)) == pytest.approx(regression_log_prob(0.7, X[:5], Y[:5]), rel=1e-5)
    assert shorter.constrain(u)["line"].shape == (5,)
    with model:
        pm.set_data({"x": 3 * X})
    assert float(log_prob(from_pymc(model), u)) == pytest.approx(regression_log_prob(0.7, 3 * X, Y), rel=1e-5)
    assert float(log_prob(target, u)) == pytest.approx(regression_log_prob(0.7, X, Y), rel=1e-5)


def test_plain_observed_data_is_replaced_too():
    target = from_pymc(made(lambda: pm.Normal("y", pm.Normal("mu"), 1, observed=Y)))
    new = target.with_data(y=Y + 1)
    np.testing.assert_allclose(new.observed()["y"], Y + 1, rtol=1e-6)
    expected = stats.norm(0, 1).logpdf(0.2) + stats.norm(0.2, 1).logpdf(Y + 1).sum()
    assert float(new.log_prob(jnp.array([0.2]))) == pytest.approx(expected, rel=1e-5)


def test_bounds_from_data_follow_it():
    target = from_pymc(made(lambda: pm.Uniform("a", 0, pm.Data("top", 2.0))))
    u = jnp.array([20.0])
    assert float(target.constrain(u)["a"]) == pytest.approx(2.0)
    assert float(target.with_data(top=5.0).constrain(u)["a"]) == pytest.approx(5.0)


def batched(x=X, y=Y, **options):
    x, y = pm.Minibatch(x, y, batch_size=3)
    pm.Normal("y", pm.Normal("slope") * x, 0.5, observed=y, **options)


def test_batches_are_unbiased_and_all_data_is_the_default():
    target = from_pymc(made(lambda: batched(pm.Data("x", X), total_size=12)))
    u = jnp.array([0.7])
    full = regression_log_prob(0.7, X, Y)
    assert target.num_data == 12
    assert float(target.log_prob(u)) == pytest.approx(full, rel=1e-5)
    values = once(jax.vmap(lambda k: target.minibatch(k, 4).log_prob(u)))(jr.split(jr.key(0), 4000))
    error = float(values.std()) / 4000**0.5
    assert error > 0
    assert abs(float(values.mean()) - full) < 4 * error
    family = vgp.families.MeanField(1, key=jr.key(0))
    fit = vgp.fit(target, family, key=jr.key(0), batch_size=4, steps=50, start=None, progress=False)
    assert fit.sample(jr.key(1), 5)["slope"].shape == (5,)
    assert target.predict(jr.key(1), {"slope": np.zeros(2)})["y"].shape == (2, 12)


def test_total_size_scales_once():
    target = from_pymc(made(lambda: pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("d", Y), total_size=120)))
    expected = stats.norm(0, 1).logpdf(0.2) + 10 * stats.norm(0.2, 1).logpdf(Y).sum()
    assert float(target.log_prob(jnp.array([0.2]))) == pytest.approx(expected, rel=1e-5)
    half = stats.norm(0, 1).logpdf(0.2) + 20 * stats.norm(0.2, 1).logpdf(Y[:6]).sum()
    assert float(target.with_data(d=Y[:6]).log_prob(jnp.array([0.2]))) == pytest.approx(half, rel=1e-5)


def test_fit_samples_predictions_and_labels():
    def build():
        theta = pm.Normal("theta", 0, pm.HalfNormal("tau", 2), dims="group")
        pm.Deterministic("twice", 2 * theta, dims="group")
        pm.Normal("y", theta[GROUP] + 100 * pm.Data("x", X), 0.1, observed=Y)
        pm.Poisson("k", pm.math.exp(theta), observed=[1, 0, 2])

    target = from_pymc(made(build, coords={"group": ["a", "b", "c"]}))
    fit = vgp.fit(target, vgp.families.MeanField(4, key=jr.key(0)), steps=200, key=jr.key(0), progress=False)
    draws = fit.sample(jr.key(1), 7)
    assert {name: x.shape for name, x in draws.items()} == {"theta": (7, 3), "tau": (7,), "twice": (7, 3)}
    assert bool(jnp.isfinite(fit.log_prob(draws, jr.key(2)).value).all())
    observed = target.observed()
    np.testing.assert_allclose(observed["y"], Y, rtol=1e-6)
    assert observed["k"].tolist() == [1, 0, 2]
    theta = np.tile([[0.0, 5.0, -5.0]], (200, 1))
    new = target.with_data(x=np.ones(12)).predict(jr.key(3), {"theta": theta, "tau": np.ones(200), "twice": 2 * theta})
    assert new["k"].shape == (200, 3)
    np.testing.assert_allclose(new["y"].mean(0), theta[0][GROUP] + 100, atol=0.05)
    np.testing.assert_allclose(new["y"].std(0), 0.1, rtol=0.3)
    again = target.predict(jr.key(3), {"theta": theta, "tau": np.ones(200)})
    np.testing.assert_array_equal(again["k"], new["k"])
    coords, dims = target.labels()
    assert coords == {"group": ["a", "b", "c"]}
    assert dims["theta"] == dims["twice"] == ["group"]
    assert target.coordinates() == ["tau", "theta[0]", "theta[1]", "theta[2]"]


def with_nan_data():
    pm.Normal("y", pm.Normal("mu"), 1, observed=pm.Data("d", Y))
    pm.set_data({"d": np.where(GROUP == 2, np.nan, Y)})


def with_nan():
    pm.Normal("y", pm.Normal("b") * np.where(np.arange(12) == 7, np.nan, X), 1, observed=Y)


REFUSED = {
    "nothing free": (lambda: pm.Normal("y", 0, 1, observed=Y), r"no free random variables.*\['y'\]"),
    "discrete": (lambda: pm.Poisson("count", 3), "'count' is discrete.*sum it out"),
    "bounds that move": (lambda: pm.Uniform("x", 0, pm.HalfNormal("top")), "bounds of 'x' depend.*fraction"),
    "NaN in a covariate": (with_nan, "'y' has a log density of NaN at row 7"),
    "NaN in data": (with_nan_data, "'y' is NaN at row 2"),
    "no rows": (lambda: pm.Normal("y", pm.Normal("mu"), 1, observed=np.zeros((0,))), r"'y' is empty \(shape \(0,\)\)"),
    "batches without a size": (batched, "'y' depends on pm.Minibatch without being scaled.*total_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_one_sentence(case):
    build, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        from_pymc(made(build))
    assert "\n" not in str(caught.value)


def test_refuses_other_things():
    with pytest.raises(TypeError, match="needs a pymc.Model, got function"):
        from_pymc(positive)
    target = from_pymc(made(regression))
    with pytest.raises(ValueError, match=r"\['slope'\] are missing"):
        target.unconstrain({"line": X})
    with pytest.raises(ValueError, match=r"no data called 'z' in the model, only \['seen', 'x'\]"):
        target.with_data(z=X)
    with pytest.raises(ValueError, match=r"'x' must have 1 axes and be float32, got shape \(\)"):
        target.with_data(x=1.0)
    with pytest.raises(ValueError, match="'y' is NaN at row 0"):
        target.with_data(seen=np.full(12, np.nan))
    with pytest.raises(TypeError, match="no pm.Minibatch"):
        target.minibatch(jr.key(0), 2)


SETTINGS = """
import os, sys, jax, vgp
from vgp.targets.pymc import from_pymc
assert "pymc" not in sys.modules and "pytensor" not in sys.modules
before = dict(os.environ)
import warnings
import pymc as pm
with pm.Model() as model:
    pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("s"), observed=[1.0, 2.0])
warnings.simplefilter("error")
with jax.enable_x64(True):
    from_pymc(model)
assert not jax.config.jax_enable_x64
target = from_pymc(model)
assert not jax.config.jax_enable_x64
assert target.log_prob(jax.numpy.zeros(2)).dtype == "float32"
assert "pymc.sampling.jax" not in sys.modules
assert os.environ.get("XLA_FLAGS") == before.get("XLA_FLAGS")
"""


def test_settings_are_left_alone():
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_says_how_to_get_pymc():
    script = """
import sys
sys.modules["pymc"] = None
from vgp.targets.pymc import from_pymc
from_pymc(None)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "from_pymc needs PyMC, which is not installed; run `pip install pymc`." in done.stderr
