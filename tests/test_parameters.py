"""The parameters of a row as one vector, and in parts where some of them are large."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from vgp import loop
from vgp.amortised import networks
from vgp.data import Bits
from vgp.experiments import parameters, rows, step
from vgp.experiments.optimizer import optimizer_of

ROW = dataclasses.replace(rows.find("dlgm1-vgp-shared"), latent_dim=2, num_data=8, rank=4, batch=10)


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rows.ARCHITECTURES, ("deep", 1), ((3,), ((12, 12),)))
        return parameters.taken_apart(rows.build(ROW, (4, 4), jnp.full(16, 0.3), jr.key(0)))


def stepping(together, optimizer):
    pixels = Bits.pack(jr.bernoulli(jr.key(1), 0.3, (40, 16)))
    settings = (
        ROW.make_bound(1),
        ROW.make_gradient(),
        optimizer_of(dataclasses.replace(ROW, optimizer=optimizer), together.layout),
    )
    return step.TrainStep(pixels, together, *settings, ROW.batch, 0, True)


def test_what_is_taken_apart_is_put_together_again(whole, monkeypatch):
    flat, together = whole
    monkeypatch.setattr(parameters, "LARGE", 100)
    tree = {"params": flat, "momentum": 2 * flat, "count": jnp.zeros(())}
    opened = together.opened(tree)
    large = sorted(size for size in together.layout.sizes if size >= 100)
    assert len(large) > 2 and sorted(leaf.size for leaf in opened["params"].large) == large
    for a, b in zip(together.layout.leaves(opened["params"]), together.layout.leaves(flat), strict=True):
        np.testing.assert_array_equal(a, b)
    closed = together.closed(opened)
    jax.tree.map(np.testing.assert_array_equal, closed, tree)


def test_nothing_is_apart_where_nothing_is_large(whole):
    flat, together = whole
    assert together.opened(flat) is flat


@pytest.mark.parametrize("optimizer", ["adam", "muon", "rmsprop"])
def test_parts_train_as_the_whole_does(whole, optimizer, monkeypatch):
    flat, together = whole
    one = stepping(together, optimizer)
    state = jax.tree.map(lambda leaf: leaf[None], loop.init(flat, one.optimizer, jr.key(2), 100))
    expected, values = loop._turn((one, 4), state)
    monkeypatch.setattr(parameters, "LARGE", 100)
    monkeypatch.setattr(networks, "LARGE", 100)
    found, same = loop._turn((one, 4), state)
    np.testing.assert_allclose(same, values, rtol=1e-4)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    np.testing.assert_allclose(found.params, expected.params, atol=2e-5)
    assert np.abs(found.params - state.params).max() > 1e-3  # it moved
