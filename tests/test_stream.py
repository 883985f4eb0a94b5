"""Batches from an iterator: the same posterior as with all of the data in memory."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

import vgp

ROWS, LENGTH = 50, 8
RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(ROWS, 2)).astype(np.float32), "y": RNG.normal(size=ROWS).astype(np.float32)}


def log_likelihood(z, batch):
    return dist.Normal(batch["x"] @ z, 1.0).log_prob(batch["y"]).sum()


def epochs(opened=None):
    def batches():
        if opened is not None:
            opened.append(1)
        for start in range(0, ROWS, LENGTH):
            yield {name: array[start : start + LENGTH] for name, array in DATA.items()}

    return batches


def streamed(batches=None, num_data=ROWS):
    stream = vgp.Stream(batches or epochs(), num_data=num_data)
    return vgp.target(log_likelihood, jnp.zeros(2), prior=dist.Normal(0.0, 1.0), data=stream)


IN_MEMORY = vgp.target(log_likelihood, jnp.zeros(2), prior=dist.Normal(0.0, 1.0), data=DATA)


def test_outside_of_training_it_is_the_whole_data():
    u = jr.normal(jr.key(0), (3, 2))
    target = streamed()
    np.testing.assert_allclose(jax.jit(lambda u: target.log_probs(u))(u), IN_MEMORY.log_probs(u), rtol=1e-5)
    assert target.num_data == ROWS


def test_a_step_scales_its_batch_by_all_rows_over_its_own():
    u, target = jnp.array([0.3, -0.2]), streamed()
    for step in (0, 4, 7):
        seen = target.for_step(jr.key(0), None, jnp.asarray(step)).log_likelihood(u)
        start = (step % 6) * LENGTH  # six whole batches; the last two rows are for evaluation
        batch = {name: array[start : start + LENGTH] for name, array in DATA.items()}
        np.testing.assert_allclose(seen, ROWS / LENGTH * log_likelihood(u, batch), rtol=1e-5)


def test_a_fit_on_a_stream_finds_the_posterior():
    opened = []
    family = vgp.families.FullRank(2, key=jr.key(0))
    fit = vgp.fit(streamed(epochs(opened)), family, key=jr.key(0), steps=1500, draws=8, progress=False)
    precision = np.eye(2) + DATA["x"].T @ DATA["x"]
    mean, cov = np.linalg.solve(precision, DATA["x"].T @ DATA["y"]), np.linalg.inv(precision)
    draws = np.asarray(fit.sample(jr.key(1), 4000))
    assert np.abs((draws.mean(0) - mean) / np.sqrt(np.diag(cov))).max() < 0.25
    np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(cov)), rtol=0.15)
    assert len(opened) >= 1500 // 6
    assert np.isfinite(fit.khat)


def test_restarts_share_the_stream():
    family = vgp.families.MeanField(2, key=jr.key(0))
    fit = vgp.fit(streamed(), family, key=jr.key(0), steps=20, restarts=2, draws=4, start=None, progress=False)
    assert np.isfinite(fit.histories).all()


def test_a_resumed_run_reads_on_where_it_stopped(tmp_path):
    family = vgp.families.MeanField(2, key=jr.key(0))
    options = {"key": jr.key(0), "draws": 4, "start": None, "progress": False}
    whole = vgp.fit(streamed(), family, steps=40, **options)
    first = vgp.fit(streamed(), family, steps=40, **options)
    first.save(tmp_path / "run.vgp")
    more = vgp.load(tmp_path / "run.vgp", streamed()).resume(steps=7, progress=False)
    again = whole.resume(steps=7, progress=False)
    np.testing.assert_array_equal(more.histories, again.histories)


def test_a_list_of_batches_will_do():
    u = jnp.ones((1, 2))
    np.testing.assert_allclose(streamed(list(epochs()())).log_probs(u), IN_MEMORY.log_probs(u), rtol=1e-5)


def test_what_cannot_be_streamed_is_refused():
    with pytest.raises(TypeError, match="only once; pass a function"):
        vgp.Stream(epochs()(), num_data=ROWS)
    with pytest.raises(ValueError, match="num_data must be"):
        vgp.Stream(epochs(), num_data=0)
    with pytest.raises(ValueError, match="same leading axis"):
        vgp.Stream(lambda: iter([{"x": np.zeros(3), "y": np.zeros(2)}]), num_data=5)
    with pytest.raises(ValueError, match="same leading axis"):
        vgp.Stream(lambda: iter([]), num_data=5)
    with pytest.raises(ValueError, match="leave batch_size out"):
        vgp.fit(streamed(), key=jr.key(0), batch_size=4)
    short = streamed(num_data=ROWS + 20)
    with pytest.raises(Exception, match="check num_data"):
        short.log_probs(jnp.zeros((1, 2))).block_until_ready()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "The data is empty"),
        ({"x": np.ones((3, 2)), "y": np.array([1.0, np.nan, 2.0])}, "is NaN at row 1"),
    ],
)
def test_data_that_cannot_be_used_is_named(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        vgp.target(log_likelihood, jnp.zeros(2), data=data)
