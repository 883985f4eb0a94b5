"""Calibration says so when posteriors are right, and what is wrong when they are not."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import vgp
from vgp.calibration import Calibration, sbc, sbc_numpyro


def simulate(key):
    # z ~ N(0, 1), x | z ~ N(z, 1): the posterior is N(x / 2, 1 / 2).
    z_key, x_key = jr.split(key)
    z = jr.normal(z_key)
    return {"z": z}, z + jr.normal(x_key)


def posterior_of(shift, stretch):
    return lambda x, key: {"z": x / 2 + shift + stretch * 0.5**0.5 * jr.normal(key, (63,))}


def calibrated(shift=0.0, stretch=1.0):
    return sbc(simulate, posterior_of(shift, stretch), key=jr.key(0), simulations=200, draws=63, progress=False)


def test_the_right_posterior_is_calibrated():
    found = calibrated()
    assert not found.failed
    assert found.simulations == 200
    assert "Calibrated" in str(found)
    assert found.histogram("z").sum() == 200


@pytest.mark.parametrize(
    ("shift", "stretch", "fault"),
    [(0.0, 0.5, "too narrow"), (0.0, 2.0, "too wide"), (0.5, 1.0, "too high"), (-0.5, 1.0, "too low")],
)
def test_a_wrong_posterior_is_named_with_its_fault(shift, stretch, fault):
    found = calibrated(shift, stretch)
    assert found.failed == ["z"]
    assert f"z is {fault}" in str(found)


def test_ranks_count_the_draws_below_the_truth():
    drawn = {"z": jnp.arange(10.0), "unknown": jnp.zeros(10)}
    found = sbc(lambda key: ({"z": 6.5}, None), lambda data, key: drawn, key=jr.key(0), simulations=3, draws=10)
    np.testing.assert_array_equal(found.ranks["z"], [7, 7, 7])
    assert list(found.ranks) == ["z"]


def test_one_failure_among_many_values_is_not_held_against_them():
    rng = np.random.default_rng(0)
    found = Calibration({f"z[{i}]": rng.integers(0, 64, 100) for i in range(100)}, 63)
    assert min(found.pvalues.values()) < 0.05
    assert not found.failed


def test_a_model_is_calibrated_without_compiling_again():
    compiled = []

    def model(x, y):
        compiled.append(1)
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = np.linspace(-1, 1, 5).astype(np.float32)
    family = vgp.families.FullRank(1, key=jr.key(0))
    options = {"family": family, "steps": 60, "draws": 16}
    found = sbc_numpyro(model, x, x, key=jr.key(0), simulations=2, draws=31, options=options, progress=False)
    assert found.ranks["w"].shape == (2,)
    traced = len(compiled)
    sbc_numpyro(model, x, x, key=jr.key(1), simulations=3, draws=31, options=options, progress=False)
    # A new call compiles as much as the first; what matters is that a third simulation adds only its own draw.
    assert len(compiled) - traced <= traced + 1


@pytest.mark.slow
def test_fits_of_a_conjugate_model_are_calibrated():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    options = {"family": vgp.families.FullRank(2, key=jr.key(0)), "steps": 300}
    found = sbc_numpyro(model, x, x[:, 0], key=jr.key(0), simulations=100, draws=63, options=options, progress=False)
    assert not found.failed, str(found)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="simulations must be a whole number"):
        sbc(simulate, posterior_of(0, 1), key=jr.key(0), simulations=0)

    def unobserved():
        numpyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="no observed sites"):
        sbc_numpyro(unobserved, key=jr.key(0))


def test_ranks_are_plotted():
    figure = calibrated(stretch=0.5).plot()
    assert len([axis for axis in figure.axes if axis.get_title()]) == 1
