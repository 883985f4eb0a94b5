"""A target from a log density: any pytree of values, with numpyro constraints per leaf."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from numpyro.distributions import constraints as constraint

from ..target import Values
from .layout import AbstractLaidOut, Layout
from .stream import Stream, StreamTarget


def target(
    log_density: Callable[..., Any],
    example: PyTree,
    constraints: PyTree = None,
    prior: dist.Distribution | None = None,
    data: PyTree | Stream = None,
    touches: Bool[np.ndarray, "t d"] | None = None,
) -> "FunctionTarget | StreamTarget":
    """A target from a function.

    **Main arguments:** `log_density`, of the *constrained* values, a scalar; `example`, a pytree that
    gives names, shapes and dtypes only: it is not a start and need not lie in the support.

    **Other arguments:** `constraints`, a pytree prefix of `example` whose leaves are numpyro constraints,
    or None for the real line; the log-Jacobian is added here. `prior`, a numpyro distribution of the flat
    unconstrained values: `log_density` is then log p(x | z) alone. `data`, arrays with a leading axis N:
    `log_density(z, batch)` is then summed over a batch, and scaled by N / batch size in this one place; or a
    `vgp.Stream` of batches. `touches`, where log p is a sum of t terms: `log_density` then returns them as a vector,
    and `touches[j, i]` says whether term j depends on coordinate i. Gradients for discrete values use it.

    Values with a discrete constraint stay as they are: their example may hold whole numbers, and `log_density` then
    gets whole numbers.
    """
    paths, _ = tree_flatten_with_path(example)
    if not paths:
        raise ValueError("The example has no values in it; pass a pytree of floating-point arrays or numbers.")
    supports = _spread(constraints, example)
    for (path, leaf), support in zip(paths, supports, strict=True):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and not support.is_discrete:
            raise TypeError(
                f"The example must hold floating-point values, got {jnp.result_type(leaf)} at "
                f"'example{keystr(path)}'; write it as a float, or give it a discrete constraint such as "
                "numpyro.distributions.constraints.boolean."
            )
    layout = Layout.of(example, supports)
    if prior is not None:
        prior = _over_all(prior, layout.dim)
    if isinstance(data, Stream) and touches is not None:
        raise TypeError("touches does not go with a vgp.Stream; leave it out and return the sum of the terms.")
    if isinstance(data, Stream):
        _check_scalar(lambda z: log_density(z, data.example), layout)
        return StreamTarget(dim=layout.dim, log_density=log_density, stream=data, layout=layout, prior=prior)
    if data is not None:
        data = jax.tree.map(jnp.asarray, data)
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(data)}
        if len(lengths) != 1 or None in lengths:
            raise ValueError(
                f"Every array in data needs the same leading axis, got lengths {sorted(map(str, lengths))}."
            )
        if lengths == {0}:
            raise ValueError("The data is empty: its arrays have a leading axis of 0; pass at least one row.")
        _check_finite(data)
    made = FunctionTarget(layout.dim, log_density, layout, prior, data, touches=_checked(touches, layout.dim))
    if touches is None:
        _check_scalar(made.density, layout)
    else:
        made._check_terms()
    return made


def _checked(touches, dim: int):
    if touches is None:
        return None
    table = np.asarray(touches, bool)
    if table.ndim != 2 or table.shape[1] != dim:
        raise ValueError(f"touches must have a row per term and {dim} columns, got shape {table.shape}.")
    return table


def _check_scalar(density: Callable[..., Any], layout: Layout):
    out = jax.eval_shape(density, jax.eval_shape(layout.constrain, jnp.zeros(layout.dim)))
    if getattr(out, "shape", None) != ():
        shape = getattr(out, "shape", type(out).__name__)
        raise ValueError(f"The log density must return a scalar, got {shape}; sum it over its axes.")


def _check_finite(data: PyTree):
    for path, leaf in tree_flatten_with_path(data)[0]:
        bad = np.argwhere(np.isnan(np.asarray(leaf))) if jnp.issubdtype(leaf.dtype, jnp.floating) else np.empty(0)
        if bad.size:
            raise ValueError(f"'data{keystr(path)}' is NaN at row {int(bad[0][0])}; drop the row, or fill it in.")


class FunctionTarget(AbstractLaidOut):
    """What `vgp.target` returns."""

    dim: int = eqx.field(static=True)
    log_density: Callable[..., Any] = eqx.field(static=True)
    layout: Layout
    prior: dist.Distribution | None = None
    data: PyTree = None
    multiplier: float | Float[Array, ""] = 1.0
    touches: Bool[np.ndarray, "t d"] | None = None

    @property
    def num_data(self) -> int | None:
        """The length N of the data's leading axis, if there is data."""
        return None if self.data is None else jax.tree.leaves(self.data)[0].shape[0]

    def minibatch(self, key: PRNGKeyArray, size: int) -> "FunctionTarget":
        """The same target on a random batch of the data, scaled so that its log density is unbiased."""
        total = self.num_data or 0
        rows = jr.choice(key, total, (size,), replace=False)
        batch = jax.tree.map(lambda leaf: leaf[rows], self.data)
        return eqx.tree_at(lambda t: (t.data, t.multiplier), self, (batch, total / size))

    def density(self, z: Values) -> Float[Array, ""]:
        """The user's log density of constrained values, scaled if the data is a batch."""
        return self._terms(z) if self.touches is None else jnp.sum(self._terms(z))

    def _terms(self, z: Values) -> Float[Array, "..."]:
        if self.data is None:
            return self.log_density(z)
        return self.multiplier * self.log_density(z, self.data)

    def log_terms(self, u):
        if self.touches is None:
            return None
        return jax.vmap(lambda u: self._terms(self.constrain(u)))(u), jnp.asarray(self.touches)

    def _check_terms(self):
        out = jax.eval_shape(self._terms, jax.eval_shape(self.constrain, jnp.zeros(self.dim)))
        rows = 0 if self.touches is None else len(self.touches)
        if getattr(out, "shape", None) != (rows,):
            got = getattr(out, "shape", type(out).__name__)
            raise ValueError(f"With touches the log density returns its {rows} terms as a vector, got {got}.")

    def log_likelihood(self, u):
        value = self.density(self.constrain(u))
        return value if self.prior is not None else value + self.log_jacobian(u)  # the prior is one of u already


def _over_all(prior: dist.Distribution, dim: int) -> dist.Distribution:
    # The prior as one distribution of the flat vector; a Normal stays a Normal, for the sake of its KL.
    if isinstance(prior, dist.Normal):
        loc, scale = jnp.asarray(prior.loc), jnp.asarray(prior.scale)
        prior = dist.Normal(jnp.broadcast_to(loc, (dim,)), jnp.broadcast_to(scale, (dim,))).to_event(1)
    elif prior.event_dim == 0:
        prior = prior.expand((dim,)).to_event(1)
    if prior.shape() != (dim,):
        raise ValueError(f"The prior must cover {dim} values, got one of shape {prior.shape()}.")
    return prior


def _spread(constraints, example) -> list[constraint.Constraint]:
    # One constraint per leaf of the example: a prefix of it serves the whole branch below.
    def is_leaf(node):
        return node is None or isinstance(node, constraint.Constraint)

    def branch(c, part):
        return jax.tree.map(lambda _: constraint.real if c is None else c, part)

    try:
        spread = jax.tree.map(branch, constraints, example, is_leaf=is_leaf)
    except ValueError as error:
        raise ValueError(
            "The constraints must follow the example's structure, with a numpyro constraint or None at each leaf."
        ) from error
    found = jax.tree.leaves(spread, is_leaf=is_leaf)
    for each in found:
        if not isinstance(each, constraint.Constraint):
            raise TypeError(
                f"A constraint must be one of numpyro.distributions.constraints or None, got {each!r}; write "
                "constraints.boolean, say, or constraints.integer_interval(0, 2)."
            )
    return found
