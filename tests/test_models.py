"""What the models of images ask of their data."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from vgp.models import DLGM, DRAW, SBN

MODELS = {
    "DLGM": lambda key: DLGM(4, (2,), ((3,),), key=key),
    "DRAW": lambda key: DRAW((2, 2), 2, 1, 3, 2, key=key),
    "SBN": lambda key: SBN(4, (2,), key=key),
}
BAD = {
    r"rows of 4 pixels, got shape \(4,\); pass \(n, 4\), one datapoint as x\[None\]": np.ones(4),
    r"rows of 4 pixels, got shape \(2, 3\)": np.ones((2, 3)),
    "numbers from 0 to 1, got 255; scale them": np.full((1, 4), 255.0),
    "numbers from 0 to 1, got nan": np.full((1, 4), np.nan),
}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("message", BAD)
@pytest.mark.parametrize("name", MODELS)
def test_bad_data(name, message, key):
    with pytest.raises(ValueError, match=f"The data of this {name} are .*{message}"):
        MODELS[name](key).at(jnp.asarray(BAD[message]))


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_looked_at_inside_a_compiled_function_too(name, key):
    model = MODELS[name](key)
    z = model.sample_prior(jr.key(1), 1)
    found = jax.eval_shape(lambda x: model.at(x).log_probs(z), jnp.ones((1, 4)))
    assert found.shape == (1,)
    with pytest.raises(ValueError, match="got shape"):
        jax.eval_shape(lambda x: model.at(x).log_probs(z), jnp.ones((1, 5)))
