"""The optimisers of the rows, over one vector."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from vgp.experiments import optimizer, rows
from vgp.experiments.optimizer import RMS, optimizer_of
from vgp.experiments.parameters import taken_apart

ROW = dataclasses.replace(rows.find("draw"), glimpses=2, unroll=1, optimizer="muon", clip=None, rate=0.5)


@pytest.fixture(scope="module")
def whole():
    return taken_apart(rows.build(ROW, (8, 8), jnp.full(64, 0.3), jr.key(0)))


def three_steps(optimizer, flat, gradients):
    """The updates of each step."""
    state, made = optimizer.init(flat), []
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, flat)
        made.append(updates)
    return made


def test_muon_moves_every_direction_of_a_matrix_alike(whole):
    flat, together = whole
    layout = together.layout
    gradients = layout.ravel([jr.normal(jr.key(i), shape) for i, shape in enumerate(layout.shapes)])[None]
    (updates,) = three_steps(optimizer_of(ROW, layout), flat, gradients)
    assert layout.blocks.count(4) == 2 and layout.blocks.count(1) == 4  # gates; reader, writer and two heads
    seen = 0
    for update, gradient, blocks in zip(
        layout.leaves(updates), layout.leaves(gradients[0]), layout.blocks, strict=True
    ):
        if not blocks or update.shape[1] < 8:
            continue
        for own, slope in zip(np.split(update, blocks, axis=1), np.split(gradient, blocks, axis=1), strict=True):
            left, _, right = np.linalg.svd(slope, full_matrices=False)
            inside = left.T @ own @ right.T / (-ROW.rate * RMS * np.sqrt(max(own.shape)))
            spread = np.diagonal(inside)  # near one for every direction, whatever the gradient's length along it
            assert spread.min() > 0.6 and spread.max() < 1.3
            np.testing.assert_allclose(inside - np.diag(spread), 0.0, atol=0.02)
            seen += 1
    assert seen == 2 * 4 + 3


def test_all_else_is_left_to_adam(whole):
    flat, together = whole
    layout = together.layout
    gradients = jax.vmap(lambda key: jr.normal(key, flat.shape))(jr.split(jr.key(1), 3))
    ours = three_steps(optimizer_of(ROW, layout), flat, gradients)
    expected = three_steps(optax.nadam(ROW.rate), flat, gradients)
    for step, (mine, others) in enumerate(zip(ours, expected, strict=True)):
        for a, b, blocks in zip(layout.leaves(mine), layout.leaves(others), layout.blocks, strict=True):
            narrow = not blocks or b.shape[1] < 8
            assert np.allclose(a, b, rtol=1e-5, atol=1e-7) == narrow, (step, a.shape)


def test_decay_takes_a_share_off_the_matrices_and_nothing_else(whole):
    flat, together = whole
    layout = together.layout
    optimizer = optimizer_of(dataclasses.replace(ROW, decay=0.3), layout)
    (updates,) = three_steps(optimizer, flat, jnp.zeros_like(flat)[None])
    for update, had, blocks in zip(layout.leaves(updates), layout.leaves(flat), layout.blocks, strict=True):
        share = 0.3 * ROW.rate if blocks and had.shape[1] >= 8 else 0.0
        np.testing.assert_allclose(update, -share * had, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="--decay goes with --optimizer muon, got 'adam'; leave --decay out"):
        optimizer_of(dataclasses.replace(ROW, decay=0.3, optimizer="adam"), layout)


def test_large_arrays_by_themselves_change_nothing(whole, monkeypatch):
    flat, together = whole
    gradients = jax.vmap(lambda key: jr.normal(key, flat.shape))(jr.split(jr.key(2), 3))
    expected = three_steps(optimizer.muon(ROW.rate, together.layout), flat, gradients)
    monkeypatch.setattr(optimizer, "LARGE", 30)
    by_itself = optimizer.muon(ROW.rate, together.layout)
    assert len(jax.tree.leaves(by_itself.init(flat))) > len(
        jax.tree.leaves(optimizer_of(ROW, together.layout).init(flat))
    )
    for mine, others in zip(three_steps(by_itself, flat, gradients), expected, strict=True):
        np.testing.assert_allclose(mine, others, rtol=1e-5, atol=1e-7)


def test_nothing_moves_between_the_arrays(whole):
    flat, together = whole
    (updates,) = three_steps(optimizer_of(ROW, together.layout), flat, jnp.ones_like(flat)[None])
    np.testing.assert_array_equal(together.layout.ravel(together.layout.leaves(updates)), updates)


def test_the_gradient_is_clipped(whole):
    flat, together = whole
    ones = jnp.ones_like(flat)
    long, longer = jnp.stack([ones, 3 * ones]), jnp.stack([2 * ones, 5 * ones])
    for clip in (1.0, None):
        row = dataclasses.replace(ROW, clip=clip, optimizer="adam")
        found = [three_steps(optimizer_of(row, together.layout), flat, each)[1] for each in (long, longer)]
        assert np.allclose(*found, rtol=1e-5) == (clip == 1.0)


def test_the_same_settings_give_the_same_object(whole):
    layout = whole[1].layout
    longer = dataclasses.replace(ROW, epochs=7)
    assert optimizer_of(ROW, layout) is optimizer_of(longer, layout)
    assert optimizer_of(ROW, layout) is not optimizer_of(dataclasses.replace(ROW, rate=0.1), layout)
    with pytest.raises(ValueError, match="optimisers of the rows are adam, muon, rmsprop, got 'sgd'"):
        optimizer_of(dataclasses.replace(ROW, optimizer="sgd"), layout)
