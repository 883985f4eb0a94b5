"""Where each named value lies in the flat unconstrained vector, and the transforms between the two."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Bool, Float, PyTree
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import IdentityTransform, Transform

from ..target import Target, Values


class Layout(eqx.Module):
    """A pytree of constrained values as a flat vector u of `dim` real numbers, and back.

    Made by `Layout.of(example, supports)`: the example gives tree and shapes, `supports` has one numpyro
    constraint per leaf, in the order of `jax.tree.leaves`.

    Discrete values have no such transform: they are in u as they are, as floats, and `kept` does the same for others.
    """

    treedef: Any = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    dtypes: tuple[Any, ...] = eqx.field(static=True)  # of discrete values; None where they are floats
    within: tuple[constraints.Constraint, ...]
    transforms: tuple[Transform, ...]

    @staticmethod
    def of(example: PyTree, supports: list[constraints.Constraint]) -> "Layout":
        paths, treedef = tree_flatten_with_path(example)
        supports = [_single(support) for support in supports]
        names = tuple(keystr(path, simple=True, separator=".") for path, _ in paths)
        shapes = tuple(jnp.shape(leaf) for _, leaf in paths)
        transforms = tuple(_bijection(name, support) for name, support in zip(names, supports, strict=True))
        kinds = [jnp.result_type(leaf) for _, leaf in paths]
        dtypes = tuple(None if jnp.issubdtype(kind, jnp.floating) else kind for kind in kinds)
        return Layout(treedef, names, shapes, dtypes, tuple(supports), transforms)

    def kept(self, *names: str) -> "Layout":
        """The layout with these values in u as they are, on their own support."""
        unknown = sorted(set(names) - set(self.names))
        if unknown and self.names == ("",):
            raise ValueError(f"The values have no name to be kept by, got {unknown}; make the example a dict of them.")
        if unknown:
            raise ValueError(f"There are no values {unknown} to keep; the values are {list(self.names)}.")
        pairs = zip(self.names, self.transforms, strict=True)
        transforms = tuple(IdentityTransform() if name in names else transform for name, transform in pairs)
        return Layout(self.treedef, self.names, self.shapes, self.dtypes, self.within, transforms)

    def supports(self) -> list[tuple[str, constraints.Constraint, int]]:
        """Name, support in u and number of coordinates of each leaf."""
        each = zip(self.names, self.within, self.transforms, self.sizes, strict=True)
        return [
            (name or "the values", support if isinstance(transform, IdentityTransform) else constraints.real, size)
            for name, support, transform, size in each
        ]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many unconstrained numbers each leaf takes."""
        shapes = zip(self.shapes, self.transforms, strict=True)
        return tuple(math.prod(transform.inverse_shape(shape)) for shape, transform in shapes)

    @property
    def dim(self) -> int:
        """The length of u."""
        return sum(self.sizes)

    def _pieces(self, u):
        start = 0
        for shape, transform, size in zip(self.shapes, self.transforms, self.sizes, strict=True):
            yield transform, u[start : start + size].reshape(transform.inverse_shape(shape))
            start += size

    def constrain(self, u: Float[Array, " d"]) -> Values:
        """The pytree of constrained values."""
        pieces = zip(self._pieces(u), self.dtypes, strict=True)
        values = [transform(piece) if dtype is None else _whole(piece, dtype) for (transform, piece), dtype in pieces]
        return jax.tree.unflatten(self.treedef, values)

    def unconstrain(self, z: Values) -> Float[Array, " d"]:
        """The inverse of `constrain`."""
        leaves = self.treedef.flatten_up_to(z)
        for name, shape, leaf in zip(self.names, self.shapes, leaves, strict=True):
            if jnp.shape(leaf) != shape:
                told = f"'{name}' is" if name else "The values are"
                raise ValueError(
                    f"{told} of shape {shape}, got {jnp.shape(leaf)}; where a batch is asked for, its axis comes first."
                )
        pieces = [jnp.ravel(t.inv(jnp.asarray(x, float))) for t, x in zip(self.transforms, leaves, strict=True)]
        return jnp.concatenate(pieces)

    def log_jacobian(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """log |dz/du| of `constrain`."""
        total = jnp.zeros((), u.dtype)
        for transform, piece in self._pieces(u):
            if not isinstance(transform, IdentityTransform):
                total += jnp.sum(transform.log_abs_det_jacobian(piece, transform(piece)))
        return total

    def inside(self, u: Float[Array, " d"]) -> Bool[Array, ""]:
        """Do the values that are in u as they are lie in their supports?"""
        within = [
            jnp.all(support(piece))
            for (transform, piece), support in zip(self._pieces(u), self.within, strict=True)
            if isinstance(transform, IdentityTransform)
        ]
        return jnp.all(jnp.asarray([True, *within]))

    def coordinates(self) -> list[str]:
        """A name for every number in u: the leaf's own, with an index where it takes several."""
        named = zip(self.names, self.sizes, strict=True)
        return [name if size == 1 else f"{name}[{i}]" for name, size in named for i in range(size)]


class AbstractLaidOut(Target):
    """A target whose values are those of its layout and nothing more."""

    layout: eqx.AbstractVar[Layout]

    def constrain(self, u):
        return self.layout.constrain(u)

    def unconstrain(self, z):
        return self.layout.unconstrain(z)

    def log_jacobian(self, u):
        return self.layout.log_jacobian(u)

    def coordinates(self):
        return self.layout.coordinates()

    def supports(self):
        return self.layout.supports()

    def kept(self, *names: str) -> "AbstractLaidOut":
        """The target with these values in u as they are, for a mean-field with their support."""
        return eqx.tree_at(lambda t: t.layout, self, self.layout.kept(*names))


def _whole(piece, dtype):
    # A whole number that was kept as a float.
    return jnp.round(jax.lax.stop_gradient(piece)).astype(dtype)


def _single(support: constraints.Constraint) -> constraints.Constraint:
    # What holds for every value by itself, as behind `to_event`.
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _bijection(name: str, support: constraints.Constraint) -> Transform:
    if support.is_discrete:
        if support.event_dim > 0:
            raise ValueError(
                f"The discrete values of '{name or 'the example'}' depend on each other ({support}), and only single "
                "ones can be fitted; write them as single values, or sum them out of the model."
            )
        return IdentityTransform()
    try:
        return IdentityTransform() if support is constraints.real else biject_to(support)
    except NotImplementedError as error:
        raise ValueError(
            f"No transform to the real line is known for the constraint {support} of '{name or 'the value'}'; "
            "use one that numpyro's biject_to knows."
        ) from error
