"""The optimisers of the rows, over the one vector of their parameters."""

import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers

from .. import optimizers
from .parameters import Layout, Parts
from .rows import Row

OPTIMIZERS = ("adam", "muon", "rmsprop")
RMS = 0.2  # of Muon's updates in units of the rate, about that of Adam's, so that one rate serves both
NARROW = 8  # inputs or outputs up to which a layer is left to Adam


def optimizer_of(row: Row, layout: Layout) -> optax.GradientTransformation:
    """The row's optimiser."""
    return _made(row.optimizer, row.rate, row.clip, layout)


@lru_cache  # the same object for the same arguments, so that nothing is compiled again
def _made(name: str, rate: float, clip: float | None, layout: Layout) -> optax.GradientTransformation:
    match name:
        case "adam":
            steps = optax.adam(rate)
        case "muon":
            steps = muon(rate, layout)
        case "rmsprop":
            steps = optimizers.rmsprop(rate)
        case _:
            raise ValueError(f"The optimisers of the rows are {', '.join(OPTIMIZERS)}, got '{name}'.")
    return steps if clip is None else optax.chain(optax.clip_by_global_norm(clip), steps)


def muon(rate: float, layout: Layout) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) for the weights of the layers, Adam for all else.

    The momentum of a matrix is made orthogonal before it is taken as a step, so that all of its directions move alike.
    Matrices that lie side by side, as those of an LSTM's gates, are each made so on its own.
    """
    pieces = list(zip(layout.shapes, layout.blocks, strict=True))
    wide = [bool(blocks) and min(shape[0], shape[1] // blocks) > NARROW for shape, blocks in pieces]
    matrix = MuonDimensionNumbers(reduction_axis=0, output_axis=2)  # (i, blocks, o)
    kinds = {"matrices": [matrix for is_wide in wide if is_wide], "rest": None}
    steps = optax.contrib.muon(rate, consistent_rms=RMS, muon_weight_dimension_numbers=kinds)

    def sorted_out(params: Array | Parts) -> dict:
        leaves = layout.leaves(params)
        matrices, rest = [], []
        for leaf, (shape, blocks), is_wide in zip(leaves, pieces, wide, strict=True):
            if is_wide:
                matrices.append(leaf.reshape(shape[0], blocks, -1))
            else:
                rest.append(leaf.ravel())
        return {"matrices": matrices, "rest": jnp.concatenate(rest)}

    def together(kinds: dict, like: Array | Parts) -> Array | Parts:
        sizes = [math.prod(shape) for (shape, _), is_wide in zip(pieces, wide, strict=True) if not is_wide]
        matrices, rest = iter(kinds["matrices"]), iter(jnp.split(kinds["rest"], np.cumsum(sizes)[:-1]))
        leaves = [next(matrices if is_wide else rest) for is_wide in wide]
        return layout.parts(leaves) if isinstance(like, Parts) else layout.ravel(leaves)

    def init(flat):
        return steps.init(sorted_out(flat))

    def update(flat, state, params):
        updates, state = steps.update(sorted_out(flat), state, sorted_out(params))
        return together(updates, params), state

    return optax.GradientTransformation(init, update)
