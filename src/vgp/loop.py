"""The one training loop: chunks of a pure step on the device; on the host, between chunks, progress,
stopping, the NaN policy, checkpoints and Ctrl-C.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg  # noqa: F401  loads the BLAS whose threads are limited below; XLA would load it too late
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree
from threadpoolctl import threadpool_limits

from .compiling import alone, once
from .progress import Bar
from .stopping import Plateau

TAIL = 0.7  # the share of a run in which the learning rate falls to zero, unless something else is asked for
LONGEST_STREAK = 100  # steps in a row that may be skipped before the run counts as diverged
CHUNK = 250  # steps a chunk may hold; the host also aims at half a second


class State(eqx.Module):
    """Everything a run is: saved and restored whole, it continues bit for bit."""

    params: PyTree
    optimizer: PyTree
    key: PRNGKeyArray  # of the whole run; a step folds its number in
    step: Int[Array, "..."]
    tail_from: Int[Array, "..."]  # the learning rate falls from this step on,
    tail_steps: Int[Array, "..."]  # over this many; then the run ends
    settled: Bool[Array, "..."]  # did the stopping rule start the tail?
    skipped: Int[Array, "..."]  # steps left out because something was not finite,
    streak: Int[Array, "..."]  # and how many of them in a row, just now


def init(
    params: PyTree, optimizer: optax.GradientTransformation, key: PRNGKeyArray, steps: int, share: float = TAIL
) -> State:
    """The state before the first step of a run of at most `steps`; the rate falls in the last `share` of them."""
    tail = int(share * steps)
    zero = jnp.zeros((), jnp.int32)
    return State(
        params=params,
        optimizer=optimizer.init(params),
        key=key,
        step=zero,
        tail_from=zero + (steps - tail),
        tail_steps=zero + tail,
        settled=jnp.zeros((), bool),
        skipped=zero,
        streak=zero,
    )


def extend(state: State, steps: int, share: float = TAIL) -> State:
    """The same state with a run of `steps` more ahead of it, its tail the last `share` of those."""
    tail = int(share * steps)
    return eqx.tree_at(
        lambda s: (s.tail_from, s.tail_steps, s.settled, s.streak),
        state,
        (
            state.step + (steps - tail),
            jnp.full_like(state.tail_steps, tail),
            jnp.zeros_like(state.settled),
            jnp.zeros_like(state.streak),
        ),
    )


def update(
    state: State,
    value: Float[Array, ""],
    gradient: PyTree,
    optimizer: optax.GradientTransformation,
    tail: bool = True,
) -> tuple[State, Float[Array, ""]]:
    """One guarded step of the optimiser, which ascends.

    Where the value or the gradient is not finite, nothing changes but the count.
    """
    updates, moved = optimizer.update(jax.tree.map(jnp.negative, gradient), state.optimizer, state.params)
    if tail:
        along = jnp.clip((state.step - state.tail_from) / jnp.maximum(state.tail_steps, 1), 0.0, 1.0)
        rate = 0.5 * (1 + jnp.cos(jnp.pi * along))
        updates = jax.tree.map(lambda u: (rate * u).astype(u.dtype), updates)
    params = optax.apply_updates(state.params, updates)
    # Not of the updates too: they would have to be written down before it is known whether they are wanted.
    finite = jnp.isfinite(value)
    for leaf in jax.tree.leaves(jax.lax.optimization_barrier(gradient)):  # to look while it is put together is slower
        finite &= jnp.all(jnp.isfinite(leaf))
    params, moved = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (params, moved), (state.params, state.optimizer)
    )
    new = State(
        params=params,
        optimizer=moved,
        key=state.key,
        step=state.step + 1,
        tail_from=state.tail_from,
        tail_steps=state.tail_steps,
        settled=state.settled,
        skipped=state.skipped + ~finite,
        streak=jnp.where(finite, 0, state.streak + 1),
    )
    return new, jnp.where(finite, value, jnp.nan)


Step = Callable[[State], tuple[State, Float[Array, "..."]]]


def _chunk(constant, state, count):
    # `count` is an array, so that chunks of any length share one compilation.
    step, restarts = constant

    def body(i, carry):
        state, values = carry
        state, value = step(state)
        return state, values.at[i].set(value)

    values = jnp.full((CHUNK, restarts), jnp.nan)
    return jax.lax.fori_loop(0, count, body, (state, values))


def _turn(constant, state):
    # A fixed number of steps with something made ready for all of them, as the order of an epoch's data.
    step, length = constant
    ready = step.begin(state)
    state, values = jax.lax.scan(lambda state, _: step(state, ready), step.opened(state), length=length)
    return step.closed(state), values


_advance_turn = eqx.filter_jit(_turn, donate="all-except-first")


# A small step on the CPU is many small operations, and sharing each of them out among threads costs more than
# it saves: half as much again on an idle machine, twenty times as much on a busy one. XLA's threads are switched
# off at compilation, those of the LAPACK that it calls while the loop runs.
_advance = eqx.filter_jit(_chunk, donate="all-except-first")
_advance_alone = alone(_chunk, donate="all-except-first")
SMALL = 100_000  # parameters up to which a step counts as small


class Outcome(NamedTuple):
    """How a run ended: the state, the bound per step (steps, restarts), and the name of the ending."""

    state: State
    history: np.ndarray
    ending: str


def run(
    step: Step,
    state: State,
    history: np.ndarray,
    *,
    restarts: int = 1,
    rule: Plateau | None = Plateau(),
    tail: bool = True,
    progress: bool = True,
    save: Callable[[State, np.ndarray], None] | None = None,
    save_every: float = 30.0,
    turn: int | None = None,
    until: int | None = None,
    between: Callable[[State, np.ndarray], bool] | None = None,
    label: str = "fit",
) -> Outcome:
    """Runs `step` until the run's end, the stopping rule, divergence or Ctrl-C.

    With `turn` a chunk is always that many steps, one scan over `step.opened(state)` with `step.begin(state)` made
    ready before it, and the history holds the mean of each; `between` is then called after every turn and ends the run
    by returning True. `until` ends this call before the run's own end.

    `save` is called at most every `save_every` seconds; the end is the caller's to save. Decisions fall at multiples of
    the rule's `every`, never at moments that depend on the clock, so that a resumed run makes the same ones.
    """
    every = rule.every if rule else CHUNK
    state = _own(state)
    small = sum(leaf.size for leaf in jax.tree.leaves(state.params)) <= SMALL
    alone = small and jax.default_backend() == "cpu"
    advance = _advance_alone if alone else _advance
    blas_threads = threadpool_limits(1, "blas") if alone else nullcontext()
    pieces, size, saved = [history], 16, time.monotonic()
    at = lambda name: int(np.asarray(getattr(state, name)).max())  # noqa: E731
    done, end = at("step"), at("tail_from") + at("tail_steps")
    ending, last, stopped = "max_steps", end, False
    with Bar(end, progress, label) as bar, _interrupts() as interrupted, blas_threads:
        while done < (last := end if until is None else min(until, end)):
            count = turn or min(size, CHUNK, every - done % every, last - done)
            started = time.monotonic()
            if turn:
                state, values = _advance_turn((step, turn), state)
                values = _mean(np.asarray(values).reshape(turn, restarts))
            else:
                state, values = advance((step, restarts), state, jnp.asarray(count))
                values = np.asarray(values)[:count]
                size = _next_size(size, count, time.monotonic() - started)
            done += count
            pieces.append(values)
            pace = (time.monotonic() - started) if turn else None
            bar.update(done, end, _note(pieces, at("skipped"), pace))
            if int(np.asarray(state.streak).min()) >= LONGEST_STREAK:
                ending = "diverged"
                break
            if rule and not at("settled") and done < at("tail_from"):
                pieces = [np.concatenate(pieces)]
                if rule(pieces[0]):
                    state = _start_tail(state, done, end if tail else done)
                    end = at("tail_from") + at("tail_steps")
            if between and between(state, values[-1]):
                ending, stopped = "converged", True
            if interrupted.is_set() and done < end and not stopped:
                ending = "interrupted"
                break
            if save and time.monotonic() - saved > save_every:
                pieces = [np.concatenate(pieces)]
                save(state, pieces[0])
                saved = time.monotonic()
            if stopped:
                break
    if ending == "max_steps" and at("settled"):
        ending = "converged"
    return Outcome(state, np.concatenate(pieces), ending)


@once
def _own(state: State) -> State:
    # A copy, since chunks give their buffers away and these may be the caller's; and without weak types,
    # which the second chunk would not have and so compile again.
    def copy(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jnp.copy(leaf) if is_key else jnp.array(leaf, dtype=leaf.dtype, copy=True)

    return jax.tree.map(copy, state)


def _start_tail(state: State, done: int, end: int) -> State:
    # The tail is in proportion to what came before it, within the steps that are left.
    length = min(max(500, int(done * TAIL / (1 - TAIL))), end - done)
    like = np.ones(state.step.shape, state.step.dtype)
    new = (jnp.asarray(done * like), jnp.asarray(length * like), jnp.asarray(like.astype(bool)))
    return eqx.tree_at(lambda s: (s.tail_from, s.tail_steps, s.settled), state, new)


def _mean(values: np.ndarray) -> np.ndarray:
    # Of the steps that were taken; NaN where none was.
    taken = np.isfinite(values)
    total = np.where(taken, values, 0.0).sum(0, keepdims=True)
    return np.where(taken.any(0), total / np.maximum(taken.sum(0), 1), np.nan)


def _next_size(size: int, count: int, seconds: float) -> int:
    # Towards half a second a chunk, growing at most fourfold: the first chunk's time is mostly compilation.
    return max(1, min(4 * size, int(0.5 * count / max(seconds, 1e-4)) or 1))


def _note(pieces, skipped, pace=None) -> str:
    recent = pieces[-1][np.isfinite(pieces[-1])]
    note = f"bound {recent.mean():.4g}" if recent.size else "bound not finite"
    if pace and len(pieces) > 3:  # the rise over the last turns, per second
        span = pieces[1:][-10:]
        note += f", {(span[-1].mean() - span[0].mean()) / (len(span) - 1) / pace:+.2g} nats/s"
    return f"{note}, {skipped} skipped" if skipped else note


@contextmanager
def _interrupts():
    # The first Ctrl-C asks the loop to stop after its chunk; a second one raises as usual.
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = signal.getsignal(signal.SIGINT)

    def ask(*_):
        event.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, ask)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)
