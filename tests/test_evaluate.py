"""What a trained model is worth, against numbers that quadrature gives; and the record of it."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import (
    ALL_X,
    PIXELS,
    amortised,
    covering,
    exact_log_q,
    log_evidence,
    moved,
    normal_nodes,
    one_layer,
)

from vgp.bounds import draw
from vgp.compiling import once
from vgp.data import Bits, Grays, Images
from vgp.experiments import evaluate, records, rows
from vgp.experiments.evaluate import bound, estimate
from vgp.experiments.folder import Progress, Run
from vgp.experiments.parameters import taken_apart
from vgp.experiments.rows import Learner
from vgp.rivals.planar import PlanarEncoder
from vgp.rivals.vae import GaussianEncoder

PIXELS_ALL = Bits.pack(np.asarray(ALL_X))  # all 16 images there are
N = len(ALL_X)


@pytest.fixture(scope="module")
def gaussian():
    return Learner(one_layer(), covering(moved(GaussianEncoder((PIXELS, 5), 1, key=jr.key(0)), 0)))


@pytest.fixture(scope="module")
def exact(gaussian):
    """−log p(x) of every image."""
    values = -np.asarray(log_evidence(gaussian.model, ALL_X), float)
    assert np.exp(-values).sum() == pytest.approx(1, abs=1e-4)
    return values


@pytest.fixture(scope="module")
def exact_bound(gaussian):
    """−ELBO of every image: the mean over q(z | x) on the nodes of a quadrature."""
    points, weights = normal_nodes(1)

    @once
    def bounds(learner):
        q = learner.encoder.at(ALL_X).view().conditional(jnp.zeros((N, 0))).base_dist

        def at(point):
            z = q.loc + q.scale * point
            return learner.model.at(ALL_X).log_probs(z) - q.log_prob(z)[:, 0]

        return jnp.sum(jnp.exp(weights)[:, None] * jax.vmap(at)(points), axis=0)

    return -np.asarray(bounds(gaussian), float)


def over_keys(measure, keys=8):
    """The mean of figures by several keys, and its standard error."""
    values = [measure(jr.key(i)).value for i in range(keys)]
    return np.mean(values), np.std(values, ddof=1) / keys**0.5


# ---------------------------------------------------------------- against quadrature


def test_estimate_is_the_evidence(gaussian, exact):
    figure = estimate(gaussian, PIXELS_ALL, jr.key(0), samples=2000)
    assert figure.value == pytest.approx(exact.mean(), abs=0.01)
    assert figure.stderr == pytest.approx(exact.std(ddof=1) / 4, rel=0.05)


def test_estimate_of_one_sample_is_the_bound_and_more_are_tighter(gaussian, exact, exact_bound):
    assert exact_bound.mean() > exact.mean() + 0.02  # there is something to tell apart
    loose, loose_error = over_keys(lambda key: estimate(gaussian, PIXELS_ALL, key, samples=1), 200)
    assert loose == pytest.approx(exact_bound.mean(), abs=4.5 * loose_error)
    tight, tight_error = over_keys(lambda key: estimate(gaussian, PIXELS_ALL, key, samples=2000))
    assert tight < loose - 3 * np.hypot(loose_error, tight_error)
    assert tight == pytest.approx(exact.mean(), abs=4.5 * tight_error + 1e-3)


def test_bound_is_the_elbo(gaussian, exact_bound):
    found = bound(gaussian, PIXELS_ALL, jr.key(0), draws=4000, inner=0)
    assert found.upper.value == pytest.approx(exact_bound.mean(), abs=0.01)
    assert found.upper.stderr == pytest.approx(exact_bound.std(ddof=1) / 4, rel=0.05)
    assert found.lower == pytest.approx(found.upper, abs=1e-4)  # log q is exact, and both sides are one


def test_an_iwae_is_between(gaussian, exact, exact_bound):
    outer = bound(gaussian, PIXELS_ALL, jr.key(0), draws=4000, inner=0, outer=5)
    assert outer.lower is None
    gap = exact_bound.mean() - exact.mean()
    assert exact.mean() + 0.05 * gap < outer.upper.value < exact_bound.mean() - 0.3 * gap


@pytest.mark.slow
def test_a_family_without_two_sides(gaussian, exact):
    planar = covering(PlanarEncoder((PIXELS, 5), 1, 2, key=jr.key(0)))
    bends = jnp.asarray([0.5, 0.8, 0.1, 0.9, -0.7, 0.2])  # û, w and b of both steps
    learner = Learner(gaussian.model, eqx.tree_at(lambda q: q.steps.bias, planar, bends))
    found = bound(learner, PIXELS_ALL, jr.key(0), draws=500, inner=0)
    figure = estimate(learner, PIXELS_ALL, jr.key(1), samples=2000)
    assert found.lower is None and found.upper.value > figure.value + 0.01
    assert figure.value == pytest.approx(exact.mean(), abs=0.02)


@pytest.fixture(scope="module")
def hierarchical(gaussian):
    return Learner(gaussian.model, amortised())


@pytest.fixture(scope="module")
def sides(hierarchical):
    return bound(hierarchical, PIXELS_ALL, jr.key(0), draws=2000, inner=4)


def test_sandwich_holds_the_exact_bound(hierarchical, sides, exact):
    @once
    def bounds(learner, key):
        n = 500 * N
        view = learner.encoder.at(ALL_X).view()
        z = draw(view, key, n)[0]
        return (learner.model.at(ALL_X).log_probs(z) - exact_log_q(view, z, 1)).reshape(-1, N)

    table = -np.concatenate([np.asarray(bounds(hierarchical, jr.key(i)), float) for i in range(8)])
    middle, error = table.mean(), table.std() / table.size**0.5
    assert error < 0.01
    assert sides.lower.value + error < middle < sides.upper.value - error
    assert sides.upper.value - sides.lower.value < 0.3
    assert exact.mean() < middle


@pytest.mark.slow
def test_estimate_of_a_hierarchical_family_is_the_evidence(hierarchical, sides, exact):
    figure = estimate(hierarchical, PIXELS_ALL, jr.key(0), samples=2000, inner=4)
    assert figure.value == pytest.approx(exact.mean(), abs=0.02)
    assert figure.value < sides.upper.value - 0.02


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize(("total", "batch"), [(16, 16), (16, 5), (16, 8), (3, 1), (1, 1), (7, 6)])
def test_batches_are_equal_and_hold_every_row_once(total, batch):
    parts = list(evaluate._batches(total, batch))
    assert all(rows.shape == (batch,) and rows.min() >= 0 and rows.max() < total for rows, _ in parts)
    assert np.concatenate([rows[:keep] for rows, keep in parts]).tolist() == list(range(total))


def test_uneven_batches_leave_out_what_fills_them_up(gaussian, monkeypatch):
    # With numbers that tell the images apart, the mean and its error are exact.
    seen = []

    def numbered(learner, pixels, rows, key, *settings):
        seen.append((len(rows), *settings, np.asarray(jr.key_data(key)).tolist()))
        return -(jnp.asarray(rows, float) ** 2)

    squares = np.arange(16.0) ** 2
    expected = pytest.approx((squares.mean(), squares.std(ddof=1) / 4))
    monkeypatch.setattr(evaluate, "CPU_ROWS", 300)
    monkeypatch.setattr(evaluate, "_estimates", numbered)
    assert estimate(gaussian, PIXELS_ALL, jr.key(0), samples=100) == expected
    assert [settings[:-1] for settings in seen] == [(6, 2, 50, 0)] * 3  # 300 rows are 50 draws of 6 images, in 2 turns
    assert len({str(settings[-1]) for settings in seen}) == 3  # each with noise of its own
    seen.clear()
    assert estimate(gaussian, PIXELS_ALL, jr.key(0), samples=14, inner=29) == expected
    assert [settings[:-1] for settings in seen] == [(5, 7, 2, 29)] * 4
    seen.clear()
    monkeypatch.setattr(evaluate, "_bounds", lambda *args: jnp.stack([numbered(*args)] * 2))
    assert bound(gaussian, PIXELS_ALL, jr.key(0), inner=0, outer=50).upper == expected
    assert [settings[0] for settings in seen] == [6, 6, 6]
    hierarchical = Learner(gaussian.model, amortised())
    seen.clear()
    assert bound(hierarchical, PIXELS_ALL, jr.key(0), inner=59).lower == expected
    assert [settings[0] for settings in seen] == [5] * 4
    monkeypatch.setattr(evaluate, "CPU_ROWS", 1)
    seen.clear()
    assert estimate(gaussian, PIXELS_ALL, jr.key(0), samples=100) == expected
    assert len(seen) == 16


def test_uneven_batches_measure_the_same(gaussian, exact, exact_bound, monkeypatch):
    monkeypatch.setattr(evaluate, "CPU_ROWS", 300)
    assert estimate(gaussian, PIXELS_ALL, jr.key(1), samples=2000).value == pytest.approx(exact.mean(), abs=0.01)
    monkeypatch.setattr(evaluate, "CPU_ROWS", 7)
    found = bound(gaussian, PIXELS_ALL, jr.key(1), draws=4000, inner=0)
    assert found.upper.value == pytest.approx(exact_bound.mean(), abs=0.01)


def test_a_figure_of_one_image():
    assert evaluate._figure(np.asarray([-3.0])) == (3.0, 0.0)
    assert evaluate._figure(np.asarray([-3.0, -5.0])) == pytest.approx((4.0, 1.0))


# ---------------------------------------------------------------- records

CONTRACT = (
    *("row", "protocol", "bound", "bound_stderr", "estimate", "estimate_stderr", "epochs", "seconds", "hardware"),
    *("commit", "configuration", "seed", "data", "bound_samples", "estimate_samples", "sandwich", "train_bound"),
    "evaluation_seconds",
)


@pytest.fixture
def measured(gaussian, tmp_path, monkeypatch):
    """A run of two seeds whose second is the learner of these tests, and the first one that is much worse."""
    monkeypatch.setitem(rows.ARCHITECTURES, ("deep", 1), ((1,), ((5,),)))
    images = Images("all", "fixed", (2, 2), PIXELS_ALL, PIXELS_ALL, PIXELS_ALL, "made up")
    flat, together = taken_apart(gaussian)
    bad = eqx.tree_at(lambda s: s.model.logits.bias, gaussian, gaussian.model.logits.bias + 3.0)
    best = jnp.stack([taken_apart(bad)[0], flat])
    checks = np.array([[2, -9.0, -8.0], [4, -7.0, -8.5]])
    progress = Progress(None, best, np.zeros(2), np.zeros((7, 2)), checks, 12.345, "max_steps")

    def measure(row="dlgm1-vae", which=1, **options):
        run = Run(tmp_path, dataclasses.replace(rows.find(row), epochs=9), images, "all.npz", 4, 2)
        return records.measure(run, progress, together, which, **{"samples": 2000, "inner": 8} | options)

    return measure


def test_a_record_says_everything(measured, exact, exact_bound):
    record = measured()
    assert set(CONTRACT) <= set(record)
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["configuration"]["latents"] == [1] and again["configuration"]["hidden"] == [[5]]
    assert again["configuration"]["epochs"] == 9 and again["configuration"]["name"] == "dlgm1-vae"
    told = {"row": "dlgm1-vae", "data": "all", "protocol": "fixed", "seed": 5, "epochs": 7, "seconds": 12.3}
    told |= {"bound_samples": 1, "bound_inner": 0, "estimate_samples": 2000, "test_images": 16, "seeds_at_once": 2}
    told |= {"ending": "max_steps", "origin": "made up"}
    assert {name: again[name] for name in told} == told
    assert again["picked"] == 2 and again["validation"] == [[2, 8.0], [4, 8.5]]
    assert again["hardware"] and again["commit"] and again["versions"]["jax"] == jax.__version__
    assert again["estimate"] == pytest.approx(exact.mean(), abs=0.02)
    for name in ("bound", "train_bound"):
        assert again[name] == pytest.approx(exact_bound.mean(), abs=0.25)
    assert again["sandwich"] == pytest.approx([again["bound"]] * 2, abs=1e-4)
    assert again["bound_stderr"] > 0 and again["estimate_stderr"] == pytest.approx(exact.std(ddof=1) / 4, rel=0.1)
    worse = measured(which=0)
    assert worse["picked"] == 4 and worse["seed"] == 4 and worse["estimate"] > again["estimate"] + 1


def test_a_record_of_an_iwae(measured):
    record = measured("dlgm1-iwae5")
    assert record["single"] == pytest.approx(measured()["bound"], abs=0.02)
    assert record["bound_samples"] == 5 and record["sandwich"] is None
    assert record["bound"] < measured()["bound"] - 0.02
    json.dumps(record, allow_nan=False)


def test_a_part_is_spread_evenly():
    bits = Bits.pack(np.eye(10, 6))
    grays = Grays(np.arange(60, dtype=np.uint8).reshape(10, 6))
    for pixels, stored in ((bits, "packed"), (grays, "grays")):
        some = records.some_of(pixels, 4)
        assert type(some) is type(pixels) and len(some) == 4 and some.dim == 6
        np.testing.assert_array_equal(getattr(some, stored), np.asarray(getattr(pixels, stored))[[0, 3, 6, 9]])
        assert records.some_of(pixels, None) is pixels and records.some_of(pixels, 10) is pixels
        assert len(records.some_of(pixels, 11)) == 10 and len(records.some_of(pixels, 1)) == 1


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    assert records._commit() != ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert records._commit() == "unknown"
