"""The learned numbers of a row as one vector, and the way back."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..amortised.networks import LARGE, Dense
from .rows import Learner

ALIGNED = 64  # numbers: 256 bytes of single precision


class Parts(NamedTuple):
    """A vector taken apart: the small arrays in one, and each large one."""

    small: Array
    large: tuple[Array, ...]


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

    def leaves(self, params: Array | Parts) -> list[Array]:
        """The arrays in a vector, or in the parts of one."""
        if isinstance(params, Parts):
            small, large = iter(_split(params.small, [n for n in self.sizes if n < LARGE])), iter(params.large)
            found = [next(small if size < LARGE else large) for size in self.sizes]
        else:
            found = _split(params, self.sizes)
        return [part.reshape(shape) for part, shape in zip(found, self.shapes, strict=True)]

    def unravel(self, params: Array | Parts) -> Any:
        """The inverse of `ravel`."""
        return jax.tree.unflatten(self.tree, self.leaves(params))

    def parts(self, leaves: list[Array]) -> Parts:
        """The arrays in parts."""
        sized = list(zip(leaves, self.sizes, strict=True))
        large = tuple(leaf.ravel() for leaf, size in sized if size >= LARGE)
        return Parts(self.ravel([leaf for leaf, size in sized if size < LARGE]), large)

    @property
    def sizes(self) -> list[int]:
        """How many numbers each array has."""
        return [math.prod(shape) for shape in self.shapes]


def _split(flat: Array, sizes: list[int]) -> list[Array]:
    pieces = [part for size in sizes for part in (size, -size % ALIGNED)]  # every array, and what follows it
    return jnp.split(flat, np.cumsum(pieces)[:-1])[::2]


class Parameters(eqx.Module):
    """How a learner is put together from one flat vector: few arrays are few launches."""

    layout: Layout = eqx.field(static=True)
    static: Any = eqx.field(static=True)

    def __call__(self, params: Array | Parts) -> Learner:
        return eqx.combine(self.layout.unravel(params), self.static)

    def opened(self, tree: PyTree) -> PyTree:
        """The tree with every vector of this layout, the parameters or what an optimiser has of them, in its parts.

        A run is saved, copied and continued with one vector of parameters. In a step a large array of weights would be
        copied out of it, and its gradient into it: there they are apart.
        """
        sizes = self.layout.sizes
        if max(sizes) < LARGE:
            return tree
        whole = sum(size + -size % ALIGNED for size in sizes)

        def one(leaf):
            return self.layout.parts(self.layout.leaves(leaf)) if leaf.shape == (whole,) else leaf

        return jax.tree.map(one, tree)

    def closed(self, tree: PyTree) -> PyTree:
        """The inverse of `opened`."""

        def is_parts(node):
            return isinstance(node, Parts)

        def one(node):
            return self.layout.ravel(self.layout.leaves(node)) if is_parts(node) else node

        return jax.tree.map(one, tree, is_leaf=is_parts)


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
