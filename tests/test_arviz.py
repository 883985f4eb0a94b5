"""A fit in ArviZ, before and since its version 1."""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import vgp
from vgp.families import MeanField
from vgp.interop.arviz import to_arviz
from vgp.result import Settings, Status
from vgp.targets import FunctionTarget

matplotlib.use("Agg")
az = pytest.importorskip("arviz")
pytest.importorskip("h5netcdf")
pytest.importorskip("h5py")

pytestmark = pytest.mark.newest

SCHOOLS = ["Choate", "Deerfield", "Andover"]
EFFECTS = jnp.array([28.0, 8.0, -3.0])


class Schools(FunctionTarget):
    """A target that knows its data and the names of its dimensions, and can draw new data."""

    def observed(self):
        return {"y": EFFECTS}

    def predict(self, key, values):
        return {"y": values["theta"] + 10 * jr.normal(key, values["theta"].shape)}

    def labels(self):
        return {"school": SCHOOLS}, {"theta": ["school"], "y": ["school"]}


def schools():
    def log_density(z):
        return dist.Normal(0.0, 5.0).log_prob(z["theta"]).sum() + dist.HalfNormal(5.0).log_prob(z["tau"])

    made = vgp.target(log_density, {"tau": 1.0, "theta": jnp.zeros(3)}, {"tau": constraints.positive, "theta": None})
    return Schools(made.dim, log_density, made.layout)


def unfitted(target, family=None):
    # A fit before its first step, as if measured: nothing here needs a better one, and training takes seconds.
    family = MeanField(target.dim, key=jr.key(1)) if family is None else family
    settings = Settings(vgp.bounds.Importance(), vgp.gradients.Pathwise(), "adam", 1, 1, None, 1, True)
    status = Status("max_steps", "Stopped before it began.")
    measured = {"elbo": [-2.0, -1.5, 0.1], "khat": 0.6}
    return vgp.Fit(target, family, settings, None, np.zeros((1, 1), np.float32), status, 0.0, measured)


@pytest.fixture(scope="module")
def fit():
    return unfitted(schools())


@pytest.fixture(scope="module")
def tree(fit):
    return to_arviz(fit, draws=50)


def groups(tree):
    found = tree.groups() if hasattr(tree, "extend") else tree.groups
    return {name.strip("/") for name in found} - {""}


def test_groups_and_their_shapes(tree):
    assert groups(tree) == {"posterior", "sample_stats", "observed_data", "posterior_predictive"}
    assert tree["posterior"]["tau"].shape == (1, 50)
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert list(tree["posterior"]["theta"].coords["school"].values) == SCHOOLS
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "school")
    assert tree["observed_data"]["y"].dims == ("school",)
    np.testing.assert_array_equal(tree["observed_data"]["y"], EFFECTS)


def test_the_draws_are_those_of_sample(fit):
    key = jr.key(7)
    for resample in (False, True):
        tree = to_arviz(fit, key, draws=50, resample=resample)
        for name, values in fit.sample(key, 50, resample=resample).items():
            np.testing.assert_array_equal(tree["posterior"][name].values[0], values)


def test_statistics_are_of_the_unconstrained_draws(fit, tree):
    values = {name: jnp.asarray(tree["posterior"][name].values[0]) for name in ("tau", "theta")}
    u = jax.vmap(fit.target.unconstrain)(values)
    stats = {name: tree["sample_stats"][name].values[0] for name in ("lp", "log_q", "log_weight")}
    np.testing.assert_allclose(stats["lp"], fit.target.log_probs(u), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(stats["log_q"], fit.family.log_prob(u), rtol=1e-3, atol=1e-3)
    assert np.exp(stats["log_weight"]).sum() == pytest.approx(1, abs=1e-4)
    order = np.argsort(stats["lp"] - stats["log_q"])
    assert np.all(np.diff(stats["log_weight"][order]) > -1e-4)


def test_resampled_draws_weigh_the_same(fit):
    weights = to_arviz(fit, draws=50, resample=True)["sample_stats"]["log_weight"].values
    np.testing.assert_allclose(weights, -np.log(50), rtol=1e-6)


def test_attributes(fit, tree):
    for attrs in (tree.attrs, tree["posterior"].attrs):
        assert attrs["inference_library"] == "vgp" and attrs["inference_library_version"] == vgp.__version__
        assert attrs["status"] == str(fit.status)
        assert (attrs["elbo_lower"], attrs["elbo_upper"], attrs["elbo_stderr"]) == tuple(fit.elbo)
        assert attrs["khat"] == fit.khat
    assert tree["sample_stats"].attrs["khat"] == fit.khat


def test_arviz_reads_it(tree):
    table = az.summary(tree)
    assert list(table.index) == ["tau", *(f"theta[{school}]" for school in SCHOOLS)]
    az.plot_pair(tree, var_names=["tau", "theta"])
    matplotlib.pyplot.close("all")


def test_netcdf_and_back(tree, tmp_path):
    tree.to_netcdf(tmp_path / "draws.nc")
    back = az.from_netcdf(tmp_path / "draws.nc")
    assert groups(back) == groups(tree)
    np.testing.assert_array_equal(back["posterior"]["theta"], tree["posterior"]["theta"])
    assert list(back["posterior"]["school"].values) == SCHOOLS
    assert back.attrs["khat"] == pytest.approx(tree.attrs["khat"])
    assert back["posterior"].attrs["status"] == tree.attrs["status"]


def test_a_vgp_and_a_tree_of_values(tmp_path):
    # No labels, no data: names by path as in the summary, a bare array is z, and no empty groups.
    def log_density(z):
        return -0.5 * (z[0]["a/b"] ** 2 + jnp.sum(z[1] ** 2))

    target = vgp.target(log_density, ({"a/b": 0.0}, jnp.zeros((2, 1))))
    tree = to_arviz(unfitted(target, vgp.VGP(3, num_data=4, key=jr.key(1))), draws=50)
    assert groups(tree) == {"posterior", "sample_stats"}
    assert {name: tree["posterior"][name].shape for name in tree["posterior"].data_vars} == {
        "0.a.b": (1, 50),
        "1": (1, 50, 2, 1),
    }
    tree.to_netcdf(tmp_path / "draws.nc")
    bare = to_arviz(unfitted(vgp.target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2))), draws=50)
    assert list(bare["posterior"].data_vars) == ["z"]


def test_a_numpyro_model():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.deterministic("twice", 2 * mu)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    tree = to_arviz(unfitted(vgp.from_numpyro(model, y=EFFECTS / 10)), draws=50)
    assert set(tree["posterior"].data_vars) == {"mu", "twice"}
    np.testing.assert_allclose(tree["posterior"]["twice"], 2 * tree["posterior"]["mu"], rtol=1e-6)
    assert tree["posterior_predictive"]["y"].shape == (1, 50, 3)
    assert tree["observed_data"]["y"].shape == (3,)


def test_bad_arguments(fit, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="draws must be a whole number, 1 or more, got 0"):
        to_arviz(fit, draws=0)
    fit.save(tmp_path / "fit.vgp")
    with pytest.raises(ValueError, match="without its target, which to_arviz needs"):
        to_arviz(vgp.load(tmp_path / "fit.vgp"))
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install arviz"):
        to_arviz(fit)
