"""`vgp bench gradients`: variances on a shifted target, exact answers by enumeration, the command at tiny sizes."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from numpyro.distributions import constraints
from typer.testing import CliRunner

import vgp
from vgp.bench import gradients
from vgp.bench.problems import Enumerable, factorised
from vgp.bench.variance import Gradients, draws, estimates
from vgp.cli import app
from vgp.gradients import DisARM, LocalExpectations, ScoreFunction
from vgp.targets.discrete import noisy_or


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch):
    # JAX reads it at import, so that here it only keeps the command from choosing a folder for the whole process.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")


def test_a_baseline_lowers_the_variance_on_a_shifted_target():
    target = vgp.target(lambda z: 20.0 + jnp.sum(z), jnp.zeros(2), constraints.boolean)
    family = factorised(2, jr.key(0))

    def variance(gradient):
        found = estimates(target, family, gradient, jr.key(1), evaluations=16, batches=100, inner=0)
        return found.variance

    assert variance(ScoreFunction("mean", False)) < 0.3 * variance(ScoreFunction("none", False))


def test_equal_cost():
    assert (draws(ScoreFunction(), 64), draws(DisARM(), 64), draws(ScoreFunction(), 64, 4)) == (64, 32, 16)
    assert draws(LocalExpectations(), 64, variables=7) == 4 and draws(LocalExpectations(), 8, variables=7) == 1


def test_how_means_agree():
    rng = np.random.default_rng(0)
    mean = np.asarray([3.0, -1.0, 0.0])
    exact, same, half = (Gradients(scale * mean + rng.normal(size=(4000, 3))) for scale in (1.0, 1.0, 0.5))
    for found, expected in ((same, 1.0), (half, 0.5)):
        share, stderr, off = found.along(exact)
        assert stderr < 0.02 and abs(share - expected) < 4 * stderr
        assert abs(off) < 4 if found is same else off < -20
    assert exact.variance == pytest.approx(3, rel=0.1)


def test_the_error_of_a_share_is_that_of_one():
    # A mean of nothing but noise is next to no share of the other, and the other's error counts all the same.
    rng = np.random.default_rng(0)
    noise, exact = Gradients(rng.normal(size=(10_000, 1))), Gradients(1.0 + rng.normal(size=(200, 1)))
    share, stderr, off = noise.along(exact)
    assert abs(share) < 0.1 and stderr == pytest.approx(0.1, rel=0.3) and off == pytest.approx(-1 / stderr, rel=0.2)


def test_there_is_no_share_of_nothing():
    rng = np.random.default_rng(0)
    some, nothing = (Gradients(scale + rng.normal(size=(400, 3))) for scale in (1.0, 0.0))
    share, stderr, off = some.along(nothing)
    assert np.isnan(share) and np.isnan(stderr) and np.isfinite(off)


def test_the_table_of_states_is_the_target():
    problem = noisy_or(4, 4)
    found = Enumerable.of(problem)
    z = jnp.asarray([1.0, 0.0, 1.0, 1.0])
    assert float(found.target.log_prob(z)) == pytest.approx(float(problem.log_density(z)), abs=1e-5)
    assert np.exp(found.log_p).sum() == pytest.approx(1)
    fair = eqx.tree_at(lambda f: f.f, factorised(4, jr.key(0)), jnp.zeros(4))
    expected = -4 * np.log(2) - found.log_p.mean()
    assert found.divergence(fair, jr.key(1), 10) == pytest.approx(expected, rel=1e-3)


def test_quick_prints_tables_and_draws_a_picture(tmp_path, monkeypatch):
    # Compiling is most of the time: estimators have a test above, and a product is the smallest family.
    def noise(*_, **__):
        return Gradients(np.random.default_rng(0).normal(size=(8, 5)))

    monkeypatch.setattr(gradients, "estimates", noise)
    monkeypatch.setattr(gradients, "summed_out", noise)
    monkeypatch.setattr(gradients, "QUICK", gradients.QUICK._replace(trained=(gradients.FACTORISED,)))
    done = CliRunner().invoke(app, ["bench", "gradients", "--quick", "--out", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "frustrated ring, mean-field q: KL" in done.output and "z summed out" in done.output
    assert (tmp_path / "new" / "gradients.png").stat().st_size > 1000
    assert not list((tmp_path / "new").glob("*.json"))


@pytest.mark.slow
def test_the_quick_command_measures(tmp_path):
    done = CliRunner().invoke(app, ["bench", "gradients", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "DisARM: KL" in done.output and "baseline" in done.output and "nan" not in done.output
    assert (tmp_path / "gradients.png").stat().st_size > 1000
