"""A run that begins with what another has learned: it takes all of it."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from vgp.experiments import rows
from vgp.experiments.begun import _given, epochs_before

PAIRS = [
    ("dlgm1-vae", "dlgm1-vgp"),
    ("dlgm2-vae", "dlgm2-vgp"),
    ("draw", "draw-vgp"),
    ("sbn1-linear", "sbn1-linear-vgp"),
]
PAIRS += [("sbn1", "sbn1-vgp"), ("sbn2", "sbn2-vgp")]


def learner(name: str, seed: int):
    row = dataclasses.replace(rows.find(name), glimpses=2, num_data=4, latent_dim=2, rank=None, auxiliary_width=4)
    return rows.build(row, (4, 4), jnp.full(16, 0.3), jr.key(seed))


@pytest.mark.parametrize(("donor", "name"), PAIRS)
def test_nothing_that_was_learned_is_lost(donor, name):
    had, has = learner(donor, 0), learner(name, 1)
    begun, taken = _given(has, had)
    left = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(begun)}
    arrays = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(had)]
    assert taken >= len(arrays) > 4
    for place, leaf in arrays:
        np.testing.assert_array_equal(leaf, left[place], err_msg=place)


def test_epochs_behind_a_run_are_counted():
    assert epochs_before("draw-vgp at epoch 120") == 120
    assert epochs_before("") == epochs_before(None) == 0
