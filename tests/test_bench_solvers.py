"""`vgp bench solvers`: the fit of exponents, the crossing, the command at tiny sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from vgp.bench import growth, solvers
from vgp.bench.growth import crossing
from vgp.bench.measure import exponent, held, peak, seconds
from vgp.bench.rival import reference
from vgp.cli import app
from vgp.gp import ARD, Grid, conditioned


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch):
    # JAX reads it at import, so that here it only keeps the command from choosing a folder for the whole process.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", "solvers", *map(str, arguments)])


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_the_exponent_of_a_power(power):
    sizes = np.array([10.0, 50.0, 1000.0])
    assert exponent(sizes, 7 * sizes**power) == pytest.approx(power)
    assert np.isnan(exponent(sizes[:1], sizes[:1]))


def test_the_crossing_of_two_lines():
    rows = [{"size": m, "dense": m**3 / 1e6, "Toeplitz": float(m)} for m in (100, 500, 2000)]
    assert crossing(rows) == pytest.approx(1000)
    assert np.isnan(crossing(rows[:2]))


def test_time_and_memory():
    program = jax.jit(lambda x: x @ x).lower(jnp.ones((50, 50))).compile()
    assert held(program) >= 2 * 50 * 50 * 4 / 1e6
    assert peak() > 1 and seconds(lambda: program(jnp.ones((50, 50))), 2) > 0


def test_quick_prints_a_table_and_draws_a_picture(tmp_path, monkeypatch):
    # One algebra: compiling the three takes longer than all other tests here.
    for module in (growth, solvers):
        monkeypatch.setattr(module, "ALGEBRAS", {"Kronecker": growth.ALGEBRAS["Kronecker"]})
    done = invoke("--quick", "--only", "growth", "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert "Kronecker" in done.output and "exponent" in done.output
    assert (tmp_path / "new" / "solvers.png").stat().st_size > 1000
    assert not list((tmp_path / "new").glob("*.json"))


def test_a_part_has_a_record_of_its_own(tmp_path, monkeypatch):
    step = {"size": 8, "ms": 1.0, "peak_megabytes": 2.0, "first_seconds": 3.0}
    monkeypatch.setattr(solvers, "measure_step", lambda *_: step)
    assert invoke("--only", "step", "--out", tmp_path).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["solvers-step.json"]


def test_without_gpytorch_there_is_no_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(solvers.rival, "installed", lambda: None)
    done = invoke("--quick", "--only", "gpytorch", "--out", tmp_path)
    assert done.exit_code == 0 and "not installed" in done.output


def test_the_reference_is_the_one_that_solvers_meet():
    points = Grid(40).axes[0]
    xi, outputs = np.array([0.1, 1.3]), np.sin(points)
    mean, variance = reference(points, 0.5, outputs, xi)
    ours = conditioned(ARD(1.0, 4.0), Grid(40)).interpolate(jnp.asarray(xi)[:, None], jnp.asarray(outputs)[:, None])
    np.testing.assert_allclose(ours[0][:, 0], mean, atol=1e-4)
    np.testing.assert_allclose(ours[1], variance, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--only", "stepp"), "There is no part 'stepp' of this benchmark; take one of step, growth"),
        (("--only", "step", "--out", "{file}/below"), "Not a directory"),
    ],
)
def test_wrong_arguments_give_one_sentence(arguments, told, tmp_path):
    (tmp_path / "file").write_text("")
    done = invoke(*(argument.format(file=tmp_path / "file") for argument in arguments))
    assert done.exit_code == 1 and told in done.output and "Traceback" not in done.output
