"""A run that begins with what another has learned."""

import dataclasses
import re

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .folder import Progress, Run
from .parameters import Parameters, taken_apart
from .rows import Learner


def begin_with(progress: Progress, together: Parameters, other: Run) -> tuple[Progress, int]:
    """The start of a run with the best parameters of another, wherever names and sizes agree, and how many did.

    A DRAW gives a DRAW with a VGP all but the variational data and the auxiliary model, and a VAE does the same for a
    DLGM; seed i begins with the other run's seed i, modulo their number.
    """
    had, apart = other.load()
    return taking(progress, together, had.best, apart)


def taking(
    progress: Progress, together: Parameters, theirs: Float[Array, "s p"], apart: Parameters
) -> tuple[Progress, int]:
    """The same with the parameters `theirs` of each seed, as `apart` reads them."""
    rows, taken = [], 0
    for i, params in enumerate(progress.state.params):
        learner, taken = _given(together(params), apart(theirs[i % len(theirs)]))
        rows.append(taken_apart(learner)[0])
    state = eqx.tree_at(lambda state: state.params, progress.state, jnp.stack(rows))
    return dataclasses.replace(progress, state=state, best=jnp.copy(state.params)), taken


def told_of(other: Run) -> str:
    """The run's row and how far it was trained; and the epoch of the parameters that are taken, if that is another.

    With several seeds it is the earliest of theirs. What that run began with itself is told as well.
    """
    had = other.load()[0]
    before, done = epochs_before(other.row.begun), len(had.history)
    best = int(had.best_at(had.checks).min()) if len(had.checks) else done
    told = f"{other.row.name} at epoch {before + done}"
    told += "" if best == done else f", its best of epoch {before + best}"
    return told + (f"; that with {other.row.begun}" if other.row.begun else "")


def epochs_before(begun: str | None) -> int:
    """How many epochs of training stand behind what a run began with."""
    found = re.match(r"\S+ at epoch (\d+)", begun or "")
    return int(found[1]) if found else 0


def _given(learner: Learner, donor: Learner) -> tuple[Learner, int]:
    has = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(donor)}
    taken = 0

    def one(path, leaf):
        nonlocal taken
        found = has.get(jax.tree_util.keystr(path))
        if found is None or jnp.shape(found) != jnp.shape(leaf):
            return leaf
        taken += 1
        return found

    return jax.tree_util.tree_map_with_path(one, learner), taken
