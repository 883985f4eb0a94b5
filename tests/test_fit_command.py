"""`vgp fit`: models from files, data from files, and what is written."""

import importlib.util
import signal
import sys

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from typer.testing import CliRunner

import vgp
from vgp import fit_command
from vgp.cli import app
from vgp.families import MeanField
from vgp.model_file import load_target
from vgp.progress import Bar
from vgp.targets import NumpyroTarget

MODELS = """
import jax.numpy as jnp, numpyro, numpyro.distributions as dist, vgp
from numpyro.distributions import constraints  # the module, which is not the constraints of `example`

def model(y, n=3):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    assert isinstance(n, int) and hasattr(y, "at")
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)

def wrapped(y):
    return vgp.from_numpyro(model, y=y)

def made(scale=1.0):
    return vgp.target(lambda z: -0.5 * jnp.sum((z / scale) ** 2), jnp.zeros(2))

ready = made()
number = 3

def broken(y):
    raise ValueError("an error of the user's own")

def nothing():
    pass
"""

DENSITY = """
from numpyro.distributions import constraints
example = {"mu": 0.0, "tau": 1.0}
constraints = {"mu": None, "tau": constraints.positive}

def log_density(z, y, scale=1.0):
    return -0.5 * ((y - z["mu"]) ** 2).sum() / scale - z["tau"]
"""

PYMC = """
import pymc as pm

def build(y, schools):
    with pm.Model(coords={"school": schools}) as made:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu + 0 * y, 1, observed=y, dims="school")
    return made

with pm.Model() as ready:
    pm.Normal("a", 0, 2)
"""


def simple_fit(target, **settings):
    # The command fits a VGP, whose compilation and measurement are most of a test's time.
    return vgp.fit(target, MeanField(target.dim, key=jr.key(1)), **settings)


def prepare(patch):
    patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr(fit_command, "fit", simple_fit)


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    prepare(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, text in {"models": MODELS, "density": DENSITY, "pymodels": PYMC}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "y.json").write_text('{"y": [1, 2.5, 3]}')
    (folder / "pymc.json").write_text('{"y": [1, 2.5, 3], "schools": ["a", "b", "c"]}')
    (folder / "sized.json").write_text('{"y": [1, 2.5], "n": 2}')
    np.savez(folder / "sized.npz", y=np.array([1.0, 2.5]), n=2)
    return folder


def invoke(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def at_zero(target):
    return float(target.log_prob(jnp.zeros(target.dim)))


# ---------------------------------------------------------------- models


def test_numpyro_models(folder):
    target = load_target(f"{folder}/models.py:model", folder / "y.json")
    assert isinstance(target, NumpyroTarget) and target.coordinates() == ["mu"]
    assert target.observed()["y"].shape == (3,)
    for name in ("sized.json", "sized.npz"):
        assert load_target(f"{folder}/models.py:model", folder / name).observed()["y"].shape == (2,)
    assert load_target(f"{folder}/models.py:improper", folder / "y.json").dim == 1


def test_targets_and_functions_that_return_them(folder, tmp_path):
    assert load_target(f"{folder}/models.py:ready").dim == 2
    wrapped = load_target(f"{folder}/models.py:wrapped", folder / "y.json")
    assert isinstance(wrapped, NumpyroTarget) and wrapped.observed()["y"].shape == (3,)
    (tmp_path / "scale.json").write_text('{"scale": 2.0}')
    made = load_target(f"{folder}/models.py:made", tmp_path / "scale.json")
    assert float(made.log_prob(jnp.ones(2))) == pytest.approx(-0.25)


def test_log_densities(folder):
    target = load_target(f"{folder}/density.py:log_density", folder / "y.json")
    assert target.coordinates() == ["mu", "tau"]
    assert at_zero(target) == pytest.approx(-0.5 * (1 + 2.5**2 + 9) - 1)
    assert target.constrain(jnp.zeros(2))["tau"] == 1


def test_pymc_models(folder):
    pytest.importorskip("pymc")
    target = load_target(f"{folder}/pymodels.py:build", folder / "pymc.json")
    assert target.labels() == ({"school": ["a", "b", "c"]}, {"y": ["school"]})
    assert at_zero(target) == pytest.approx(-4 * 0.9189385 - 0.5 * (1 + 2.5**2 + 9))
    assert load_target(f"{folder}/pymodels.py:ready").coordinates() == ["a"]


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def fitted(folder):
    out = folder / "new" / "out"
    arguments = (f"{folder}/models.py:model", "--data", folder / "y.json", "-o", out, "--steps", 40, "--draws", 60)
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        return invoke(*arguments), out, arguments


def test_a_run_writes_its_results(fitted):
    result, out, _ = fitted
    assert result.exit_code == 0, result.output
    assert (out / "summary.txt").read_text().strip() in result.output
    assert "k-hat" in result.output and "(60 draws)" in result.output
    assert (out / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert len(vgp.load(out / "fit.vgp").history) == 40
    assert "ELBO" in vgp.load(out / "fit.vgp").summary()
    assert not list(out.glob(".*"))
    az = pytest.importorskip("arviz")
    pytest.importorskip("h5py")
    draws = az.from_netcdf(out / "draws.nc")
    assert draws["posterior"]["mu"].shape == (1, 60) and draws["observed_data"]["y"].shape == (3,)


def test_a_finished_fit_ends_quickly_and_another_is_refused(fitted, folder, monkeypatch):
    _, _, arguments = fitted
    steps = []
    monkeypatch.setattr(fit_command, "_write_all", lambda made, *_: steps.append(len(made.history)))
    result = invoke(*arguments)
    assert result.exit_code == 0 and steps == [40] and "holds this fit, finished." in result.output
    (folder / "other.json").write_text('{"y": [1, 2.5, 3.0001]}')
    for changes, sentence in (
        (("--seed", 1), "holds a fit with --seed 0; pass another folder with -o, or --fresh"),
        (("--steps", 41), "holds a fit with --steps 40;"),
        (("--batch-size", 2), "holds a fit without --batch-size;"),
        (("--data", folder / "other.json"), "holds a fit of another model or other data;"),
    ):
        result = invoke(*arguments, *changes)
        assert result.exit_code == 1 and sentence in result.output and result.output.count("\n") == 1
    result = invoke(f"{folder}/models.py:improper", *arguments[1:])
    assert "another model or other data" in result.output
    assert steps == [40]


def test_without_a_netcdf_engine_there_is_an_npz(fitted, folder, monkeypatch, capsys, tmp_path):
    _, out, _ = fitted
    fit = vgp.load(out / "fit.vgp", load_target(f"{folder}/models.py:model", folder / "y.json"))
    for missing, sentence in (("arviz", "Without ArviZ"), ("h5py", "Without a NetCDF engine")):
        hidden = {missing, "netCDF4"}
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, hidden=hidden: None if name in hidden else name)
        assert fit_command._write_draws(fit, jr.key(1), 10, False, tmp_path) == "draws.npz"
        assert sentence in capsys.readouterr().out
    with np.load(tmp_path / "draws.npz") as draws:
        np.testing.assert_array_equal(draws["mu"], fit.sample(jr.key(1), 10)["mu"])


def test_ctrl_c_and_then_the_same_command(folder, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(fit_command, "_write_all", lambda fit, *_: made.append(fit))
    arguments = (f"{folder}/models.py:ready", "-o", tmp_path, "--steps", 60)
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "update", lambda *_: signal.raise_signal(signal.SIGINT))
        result = invoke(*arguments)
    assert result.exit_code == 130 and "the same command goes on from" in result.output
    done = len(made[0].history)
    assert 0 < done < 60 and made[0].status.name == "interrupted"
    result = invoke(*arguments)
    assert result.exit_code == 0 and f"Going on from step {done} of" in result.output
    assert len(made[1].history) == 60
    np.testing.assert_array_equal(made[1].history[:done], made[0].history)
    assert invoke(*arguments, "--seed", 1, "--fresh").exit_code == 0
    assert made[2].history[0] != made[1].history[0]


def test_ctrl_c_before_the_first_step(folder, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_command, "fit", interrupt)
    result = invoke(f"{folder}/models.py:ready", "-o", tmp_path)
    assert result.exit_code == 130 and "nothing was learned yet" in result.output


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone.py:model"], "There is no Python file"),
        (["models.py:modell"], "has no 'modell'; the file has model, improper, wrapped, made, ready, broken, nothing."),
        (["models.py"], "The model's name is missing, as in FILE.py:NAME; the file has model,"),
        (["models.py:number"], "'number' must be a model, a target or a function, got int."),
        (["models.py:nothing"], "'nothing' has no numpyro.sample sites and returned NoneType"),
        (["models.py:model"], "'model' needs 'y', which --data does not have; its data is y, n; a log density needs"),
        (["density.py:log_density"], "'log_density' needs 'y', which --data does not have; its data is y, scale."),
        (["models.py:made", "--data", "y.json"], "'made' does not take 'y', which --data has; its data is scale."),
        (["models.py:nothing", "--data", "y.json"], "which --data has; it takes no data."),
        (["models.py:ready", "--data", "y.json"], "'ready' is a model with its data"),
        (["models.py:model", "--data", "gone.json"], "There is no data file"),
        (["models.py:model", "--data", "models.py"], "must be a .json or .npz file"),
        (["models.py:model", "--data", "bad.json"], "is not JSON: Expecting value in line 2, column 7."),
        (["models.py:model", "--data", "list.json"], "must hold an object of data by name, got a list."),
        (["models.py:model", "--data", "ragged.json"], "The data 'y' must be a number or rows of numbers"),
        (["models.py:model", "--data", "bad.npz"], "no .npz file of plain arrays"),
        (["models.py:ready", "-o", "y.json"], "cannot be made (File exists); pass another with -o."),
        (["models.py:ready", "--draws", 0], "--draws must be a whole number, 1 or more, got 0."),
        (["models.py:ready", "--steps", 0, "-o", "unused"], "steps must be a whole number, 1 or more, got 0."),
    ],
)
def test_bad_input_gets_one_sentence(folder, monkeypatch, arguments, sentence):
    monkeypatch.chdir(folder)
    (folder / "bad.json").write_text('{\n "y": oops}')
    (folder / "list.json").write_text("[1]")
    (folder / "ragged.json").write_text('{"y": [[1, 2], [3]]}')
    (folder / "bad.npz").write_text("nothing")
    result = invoke(*arguments)
    assert result.exit_code == 1 and sentence in result.output, result.output
    assert result.output.startswith("vgp: ") and result.output.count("\n") == 1


def test_errors_in_the_users_file_keep_their_traceback(folder, tmp_path):
    result = invoke(f"{folder}/models.py:broken", "--data", folder / "y.json")
    assert str(result.exception) == "an error of the user's own"
    for text, kind in (("x = 1 +\n", SyntaxError), ("open('gone.csv')\n", FileNotFoundError)):
        (tmp_path / "bad.py").write_text(text)
        assert isinstance(invoke(f"{tmp_path}/bad.py:model").exception, kind)
    (tmp_path / "bad.py").write_text("import vgp\nvgp.target(lambda z: z, example=1)\n")
    result = invoke(f"{tmp_path}/bad.py:model")
    assert isinstance(result.exception, TypeError) and "floating-point" in str(result.exception)


def test_help_has_an_example():
    output = invoke("--help").output
    assert "vgp fit coin.py:model --data coin.json -o coin" in output and "`example`" in output
