"""The optimisers of the rows, over the one vector of their parameters."""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers

from .. import optimizers
from .parameters import LARGE, Layout, Parts
from .rows import Row

OPTIMIZERS = ("adam", "muon", "rmsprop")
RMS = 0.2  # of Muon's updates in units of the rate, about that of Adam's, so that one rate serves both
NARROW = 8  # inputs or outputs up to which a layer is left to Adam


def optimizer_of(row: Row, layout: Layout) -> optax.GradientTransformation:
    """The row's optimiser."""
    return _made(row.optimizer, row.rate, row.clip, row.decay, layout)


@lru_cache  # the same object for the same arguments, so that nothing is compiled again
def _made(name: str, rate: float, clip: float | None, decay: float, layout: Layout) -> optax.GradientTransformation:
    if decay and name != "muon":
        raise ValueError(f"--decay goes with --optimizer muon, got '{name}'; leave --decay out.")
    match name:
        case "adam":
            steps = optax.adam(rate)
        case "muon":
            steps = muon(rate, layout, decay)
        case "rmsprop":
            steps = optimizers.rmsprop(rate)
        case _:
            raise ValueError(f"The optimisers of the rows are {', '.join(OPTIMIZERS)}, got '{name}'.")
    return steps if clip is None else optax.chain(optax.clip_by_global_norm(clip), steps)


def muon(rate: float, layout: Layout, decay: float = 0.0) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) for the weights of the layers, Adam for all else.

    The momentum of a matrix is made orthogonal before it is taken as a step, so that all of its directions move alike.
    Matrices that lie side by side, as those of an LSTM's gates, are each made so on its own. Steps do not shrink with
    the gradient, so that weights can grow for as long as the rate is kept up: `decay` times the rate is the share of
    each matrix that a step takes off.
    """
    kinds = [_kind(*piece) for piece in zip(layout.shapes, layout.blocks, layout.sizes, strict=True)]
    matrix = MuonDimensionNumbers(reduction_axis=0, output_axis=2)  # (i, blocks, o)
    steps = optax.contrib.muon(
        rate,
        weight_decay=decay,
        consistent_rms=RMS,
        muon_weight_dimension_numbers={
            "matrices": [matrix for kind in kinds if kind == "matrices"],
            "large": [None for kind in kinds if kind == "large"],
            "rest": None,
        },
    )

    def sorted_out(params: Array | Parts) -> dict:
        sorts = {"matrices": [], "large": [], "rest": []}
        for leaf, blocks, kind in zip(layout.leaves(params), layout.blocks, kinds, strict=True):
            sorts[kind].append(leaf.reshape(leaf.shape[0], blocks, -1) if kind == "matrices" else leaf.ravel())
        return sorts | {"rest": jnp.concatenate(sorts["rest"])}

    def together(sorts: dict, like: Array | Parts) -> Array | Parts:
        sizes = [size for size, kind in zip(layout.sizes, kinds, strict=True) if kind == "rest"]
        left = {name: iter(found) for name, found in sorts.items() if name != "rest"}
        left["rest"] = iter(jnp.split(sorts["rest"], np.cumsum(sizes)[:-1]))
        leaves = [next(left[kind]) for kind in kinds]
        return layout.parts(leaves) if isinstance(like, Parts) else layout.ravel(leaves)

    def init(flat):
        return steps.init(sorted_out(flat))

    def update(flat, state, params):
        updates, state = steps.update(sorted_out(flat), state, sorted_out(params))
        return together(updates, params), state

    return optax.GradientTransformation(init, update)


def _kind(shape: tuple[int, ...], blocks: int, size: int) -> str:
    # A matrix for Muon; or what is left to Adam, each large array by itself and all small ones together.
    if blocks and min(shape[0], shape[1] // blocks) > NARROW:
        return "matrices"
    return "large" if size >= LARGE else "rest"
