"""The code on the pages runs, and the tables are those of the records."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from scipy.stats import poisson

import vgp
from vgp.families import MeanField
from vgp.gradients import DisARM
from vgp.interop import numpyro as interop
from vgp.meanfield import Bernoulli, Beta, Categorical, Gamma, Mixed
from vgp.model_file import load_target

ROOT = Path(__file__).parent.parent


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs some blocks of a page one after another, and returns the names they leave behind."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)

    def blocks_of(page, *which):
        space = {}
        for i in which:
            exec(blocks(page)[i].replace("steps = 3000", "steps = 3"), space)
        return space

    return blocks_of


@pytest.fixture
def quick(monkeypatch):
    # A VGP's compilation and measurement, and the search for a start, are most of a short fit's time; the README's
    # block has them.
    fit = functools.partial(vgp.fit, steps=20, progress=False, start=None)

    def simple_fit(target, *, example=None, **settings):
        target = target if example is None else vgp.target(target, example)
        return fit(target, MeanField(target.dim, key=jr.key(1)), **settings)

    guide = functools.partial(interop.AutoVGP, family=lambda dim, key: MeanField(dim, key=key))
    monkeypatch.setattr(vgp, "fit", simple_fit)
    monkeypatch.setattr(interop, "AutoVGP", guide)


def test_the_first_example(run, tmp_path, monkeypatch):
    monkeypatch.setattr(vgp, "fit", functools.partial(vgp.fit, steps=30, progress=False))
    assert run("README.md", 0)["draws"]["x"].shape == (1000,)
    assert (tmp_path / "posterior.vgp").exists()


def test_a_model_as_it_is(run, quick):
    pytest.importorskip("arviz")
    assert set(run("README.md", 1)["draws"]) == {"top", "half", "noise"}


def test_extending(run):
    kernel = run("docs/extending.md", 0)["Cosine"](2.0)
    assert vgp.VGP(1, 4, 1, kernel=kernel, key=jr.key(0)).sample(jr.key(1), 3).shape == (3, 1)


@pytest.mark.parametrize(
    ("block", "names"), [(0, {"mu", "tau", "raw", "theta"}), (1, {"a", "b", "ld50"}), (2, {"size", "rate", "noise"})]
)
def test_quickstarts(run, quick, block, names):
    if block == 1:
        pytest.importorskip("pymc")
    draws = run("docs/quickstart.md", block)["draws"]
    assert set(draws) == names and all(len(draw) == 4000 for draw in draws.values())


def test_numpyro(run, quick):
    space = run("docs/numpyro.md", 0, 1)
    assert set(space["draws"]) == {"level", "noise", "range", "slope", "spread"}
    assert space["predicted"]["y"].shape == (1000, 40)
    assert space["fit"].settings.batch_size == 100


@pytest.mark.slow
def test_a_guide(run, quick):
    space = run("docs/numpyro.md", 3)
    assert space["draws"]["theta"].shape == (1000, 8) and space["middle"]["theta"].shape == (8,)
    assert space["low"] < space["high"] and space["new"]["effect"].shape == (500, 8)


def test_grids(run):
    assert run("docs/grids.md", 0)["family"].num_data == 10**6


@pytest.fixture
def fits(monkeypatch):
    """The fits that a page makes, of a few steps, whatever it says; the family is the one that it has or gets."""
    made, fit = [], vgp.fit

    def short_fit(*args, **settings):
        made.append(fit(*args, **settings | {"steps": 3, "progress": False}))
        return made[-1]

    monkeypatch.setattr(vgp, "fit", short_fit)
    return made


def test_discrete_values(run, fits):
    draws = run("docs/discrete.md", 0)["draws"]
    assert draws.shape == (1000, 8) and set(np.unique(draws)) == {0.0, 1.0}
    assert type(fits[0].settings.gradient) is DisARM


@pytest.mark.slow
def test_other_latents(run, fits):
    space = run("docs/discrete.md", *range(7))
    assert space["draws"].shape == (1000, 3)
    assert [type(fit.family.meanfield) for fit in fits] == [Bernoulli, Mixed, Bernoulli, Mixed, Mixed, Gamma, Mixed]
    assert [type(part) for part in fits[4].family.meanfield.parts] == [Gamma, Beta]
    assert [type(part) for part in fits[6].family.meanfield.parts] == [Categorical, Gamma]
    assert all(np.isfinite(fit.history).all() for fit in fits)


def test_a_deep_exponential_family_learns(run):
    space = run("docs/discrete.md", 7)
    x, learned = space["x"], space["learned"]
    loss = eqx.filter_jit(space["loss"])
    found = np.mean([loss(learned, jnp.asarray(x), jr.key(seed)) for seed in range(10)])
    # Under the bound of independent Poissons at the data's means by far, and a bound all the same.
    assert found < 0.6 * -poisson.logpmf(x, x.mean(0)).sum(1).mean()
    model = learned[0]
    z = model.sample_prior(jr.key(0), 20_000)

    def log_evidence(own):
        return logsumexp(model.log_likelihood(jnp.broadcast_to(own, (len(z), 6)), z)) - jnp.log(len(z))

    assert found > -float(jax.jit(lambda x: jax.lax.map(log_evidence, x))(jnp.asarray(x)).mean()) - 0.1


@pytest.mark.slow
def test_draw(run):
    assert run("docs/draw.md", 0)["values"].shape == (5,)


def test_pymc(run, quick):
    pytest.importorskip("pymc")
    space = run("docs/pymc.md", 0)
    assert space["predicted"]["y"].shape == (1000, 60)
    assert {"at_two", "noise"} < set(space["draws"])


@pytest.mark.slow
def test_diagnostics(run, quick, tmp_path):
    space = run("docs/diagnostics.md", 0, 1)
    assert space["draws"]["x"].shape == (4000,)
    assert (tmp_path / "fit.png").exists()


@pytest.mark.parametrize(
    ("block", "name", "data"),
    [
        (0, "model", '{"n": 10, "heads": 7}'),
        (1, "model", '{"x": [1.0, 2.0], "y": [0.9, 2.1]}'),
        (2, "log_density", '{"times": [0.3, 1.2, 2.0]}'),
    ],
)
def test_models_for_the_command_line(block, name, data, tmp_path, monkeypatch):
    if block == 1:
        pytest.importorskip("pymc")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(blocks("docs/command_line.md")[block])
    (tmp_path / "data.json").write_text(data)
    assert load_target(f"{tmp_path}/model.py:{name}", tmp_path / "data.json").dim == 1


def test_the_tables_are_those_of_the_records():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_hold():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
