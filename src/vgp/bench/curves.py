"""A family after some steps of training with one estimator or another, at equal cost."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray
from threadpoolctl import threadpool_limits

from .. import loop, optimizers
from ..bounds import Importance
from ..compiling import alone
from ..families import AbstractFamily
from ..fit import Assemble, Step
from ..gradients import AbstractGradient
from ..result import Settings
from ..target import Target
from .variance import draws


def trained(
    target: Target,
    family: AbstractFamily,
    gradient: AbstractGradient,
    key: PRNGKeyArray,
    marks: Sequence[int],
    *,
    evaluations: int,
    inner: int = 16,
) -> list[Any]:
    """The family after so many steps as `vgp.fit` takes them, of `evaluations` of log p each.

    The learning rate falls towards the last mark, and nothing stops before.
    """
    optimizer = optimizers.named(None, target.dim)
    params, assemble = Assemble.taken_apart(family, flat=True)
    each = draws(gradient, evaluations, variables=target.dim)
    settings = Settings(Importance(inner=inner), gradient, "adam", each, 1, None, marks[-1], True)
    step = Step(target, assemble, settings, optimizer)
    state = loop._own(loop.init(params, optimizer, key, marks[-1]))
    found = []
    with threadpool_limits(1, "blas"):
        for mark in marks:
            state = _advance(step, state, jnp.asarray(mark - int(state.step)))
            found.append(assemble.on_host(state.params))
    if int(state.skipped):
        raise RuntimeError(f"{int(state.skipped)} of {marks[-1]} steps were skipped: their values are not finite.")
    return found


@alone
def _advance(step: Step, state: loop.State, count: Int[Array, ""]) -> loop.State:
    return jax.lax.fori_loop(0, count, lambda _, state: step(state)[0], state)
