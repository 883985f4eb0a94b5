"""The learned numbers of a row as one vector, and the way back."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..amortised.networks import Dense
from .rows import Learner

ALIGNED = 64  # numbers: 256 bytes of single precision


class Layout(NamedTuple):
    """Where the arrays of a tree lie in one vector: each at a multiple of `ALIGNED` numbers, with zeros between them.

    A product reads its weights where they lie. Where they do not begin at such an address a GPU's library may take a
    slower way, or have none. `blocks` says of each array how many matrices lie side by side in it, 0 for all but the
    weights of a layer.
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    blocks: tuple[int, ...]

    def ravel(self, tree) -> Array:
        """The arrays of a tree in one vector."""
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
        return jnp.concatenate([jnp.pad(leaf, (0, -leaf.size % ALIGNED)) for leaf in leaves])

    def leaves(self, flat: Array) -> list[Array]:
        """The arrays in a vector."""
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = [part for size in sizes for part in (size, -size % ALIGNED)]  # every array, and what follows it
        parts = jnp.split(flat, np.cumsum(pieces)[:-1])[::2]
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def unravel(self, flat: Array) -> Any:
        """The inverse of `ravel`."""
        return jax.tree.unflatten(self.tree, self.leaves(flat))


class Parameters(eqx.Module):
    """How a learner is put together from one flat vector: few arrays are few launches."""

    layout: Layout = eqx.field(static=True)
    static: Any = eqx.field(static=True)

    def __call__(self, flat: Array) -> Learner:
        return eqx.combine(self.layout.unravel(flat), self.static)


def taken_apart(learner: Learner) -> tuple[Array, Parameters]:
    """The learned numbers in one vector, and the way back."""
    arrays, static = eqx.partition(learner, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    layout = Layout(tree, tuple(leaf.shape for leaf in leaves), tuple(jax.tree.leaves(_blocks(arrays))))
    return layout.ravel(arrays), Parameters(layout, static)


def _blocks(arrays):
    def own(part):
        if isinstance(part, Dense):
            return eqx.tree_at(lambda layer: (layer.weight, layer.bias), part, (part.blocks, 0))
        return 0

    return jax.tree.map(own, arrays, is_leaf=lambda part: isinstance(part, Dense))
