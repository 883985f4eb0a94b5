"""Bad input gets one sentence: what was expected, what came, what to do."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
import pytest

import vgp
from vgp.families import MeanField
from vgp.models import SBN

GOOD = vgp.target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(2))
KEY = jr.key(0)


def fit(*args, **options):
    return vgp.fit(*args, **{"key": KEY, "steps": 200, "progress": False, **options})


CASES = {
    "not a scalar": (lambda: vgp.target(lambda z: z, jnp.zeros(2)), ValueError, r"must return a scalar, got \(2,\)"),
    "not an array": (lambda: vgp.target(lambda z: "x", jnp.zeros(2)), (TypeError, ValueError), "str"),
    "integer leaf": (lambda: vgp.target(lambda z: 0.0, {"n": 3}), TypeError, r"int(32|64).*'example\['n'\]'"),
    "empty example": (lambda: vgp.target(lambda z: 0.0, {}), ValueError, "no values in it"),
    "prior of another size": (
        lambda: vgp.target(lambda z: 0.0, jnp.zeros(2), prior=dist.Normal(0, 1).expand([3]).to_event(1)),
        ValueError,
        r"must cover 2 values, got one of shape \(3,\)",
    ),
    "uneven data": (
        lambda: vgp.target(lambda z, x: 0.0, 0.0, data=(jnp.ones(3), jnp.ones(4))),
        ValueError,
        "same leading axis",
    ),
    "several posteriors": (
        lambda: fit(SBN(4, (2,), key=KEY).at(jnp.zeros((3, 4)))),
        TypeError,
        r"one posterior, got a model at 3 datapoints, each with a z of its own; fit one of them, model.at\(x\[:1\]\)",
    ),
    "nowhere finite": (
        lambda: fit(vgp.target(lambda z: jnp.log(-jnp.sum(z**2) - 1), jnp.zeros(2))),
        ValueError,
        r"not finite at any of 64 starting points, for example nan at \[",
    ),
    "mismatched dimensions": (
        lambda: fit(GOOD, MeanField(3, key=KEY)),
        ValueError,
        "has 3 dimensions and the target 2",
    ),
    "negative num_data": (
        lambda: vgp.VGP(2, -1, key=KEY),
        ValueError,
        "num_data must be a whole number, 0 or more, got -1",
    ),
    "no dimensions": (lambda: vgp.VGP(0, key=KEY), ValueError, "dim must be a whole number, 1 or more, got 0"),
    "unknown mean": (lambda: vgp.VGP(2, mean="flat", key=KEY), ValueError, "'affine' or 'zero', got 'flat'"),
    "narrow inputs": (
        lambda: vgp.VGP(2, inputs=jnp.ones((4, 3)), key=KEY),
        ValueError,
        r"must be \(num_data, 2\), got \(4, 3\)",
    ),
    "short outputs": (
        lambda: vgp.VGP(2, 4, outputs=jnp.ones((3, 2)), key=KEY),
        ValueError,
        r"must be \(4, 2\), one row per input, got \(3, 2\)",
    ),
    "no steps": (lambda: fit(GOOD, steps=0), ValueError, "steps must be a whole number, 1 or more, got 0"),
    "no draws": (lambda: fit(GOOD, draws=0), ValueError, "draws must be a whole number"),
    "half a restart": (lambda: fit(GOOD, restarts=1.5), ValueError, "restarts must be a whole number"),
    "old-style key": (
        lambda: fit(GOOD, key=jax.random.PRNGKey(0)),
        TypeError,
        r"one typed key, got uint32\[2\]; write jax.random.key\(0\)",
    ),
    "a seed for a key": (lambda: fit(GOOD, key=0), TypeError, "one typed key, got int"),
    "several keys": (lambda: fit(GOOD, key=jr.split(KEY)), TypeError, "one typed key"),
    "no target": (lambda: fit(3.0), TypeError, "must come from vgp.target or be a log density, got float"),
    "no example": (lambda: fit(lambda z: 0.0), TypeError, "needs an example"),
    "an example too many": (lambda: fit(GOOD, example=jnp.zeros(2)), TypeError, "a target has them already"),
    "not a family": (lambda: fit(GOOD, "vgp"), TypeError, "must be one of vgp's"),
    "not a gradient": (lambda: fit(GOOD, gradient="reinforce"), TypeError, "'auto' or one of vgp.gradients"),
    "batches of nothing": (lambda: fit(GOOD, batch_size=5), ValueError, "this one has no data"),
    "unknown scale": (lambda: vgp.meanfield.Normal(2, "fixed"), ValueError, "'learned' or 'gp', got 'fixed'"),
    "unknown flow": (lambda: vgp.families.Flow(2, "glow", key=KEY), ValueError, "got 'glow'"),
}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    call, kind, match = CASES[name]
    with pytest.raises(kind, match=match) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message.strip()


def test_a_log_density_with_its_example_is_enough():
    fitted = vgp.fit(lambda z: -0.5 * z["a"] ** 2, example={"a": 0.0}, key=KEY, steps=5, progress=False)
    assert set(fitted.sample(KEY, 3)) == {"a"}
