"""One optimisation step of a VGP on a grid in three latent dimensions, as `vgp.fit` takes it."""

import time

import jax
import jax.numpy as jnp
import jax.random as jr

from .. import loop, optimizers
from ..bounds import Importance
from ..families import VGP
from ..fit import Assemble, Step
from ..gp import Grid
from ..gradients import DoublyReparameterised
from ..result import Settings
from ..targets import target as make_target
from .measure import peak, seconds

DRAWS = 64


def measure_step(points: int, count: int, repeats: int = 5) -> dict:
    """Milliseconds of a step with `points` along each of the three dimensions, by chunks of `count` steps.

    Bound, gradient and optimiser are the defaults. The memory is the peak up to the end, so that it means something
    only where nothing larger ran before.
    """
    dim = 3
    family = VGP(dim, inputs=Grid(points, latent_dim=dim), key=jr.key(0))
    optimizer = optimizers.named(None, dim)
    params, assemble = Assemble.taken_apart(family, flat=True)
    settings = Settings(Importance(), DoublyReparameterised(), "adam", DRAWS, 1, None, 10_000, True)
    target = make_target(lambda z: -0.5 * jnp.sum(z**2), jnp.zeros(dim))
    step = Step(target, assemble, settings, optimizer)
    state = loop._own(loop.init(params, optimizer, jr.key(1), settings.steps))
    del params

    def chunk():
        nonlocal state
        state, values = loop._advance((step, 1), state, jnp.asarray(count))
        return values

    started = time.perf_counter()
    jax.block_until_ready(chunk())
    first = time.perf_counter() - started
    each = seconds(chunk, repeats) / count
    if int(state.skipped):
        raise RuntimeError(
            f"{int(state.skipped)} of {int(state.step)} steps were skipped: their values are not finite."
        )
    return {
        "size": points**dim,
        "solver": family.solver,
        "draws": DRAWS,
        "inner": Importance().inner,
        "ms": 1e3 * each,
        "first_seconds": first,
        "peak_megabytes": peak(),
    }
