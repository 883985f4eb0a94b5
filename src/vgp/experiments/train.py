"""`vgp train`: walks a run's epochs, watches the validation bound, and loses nothing."""

import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import loop
from .folder import Progress, Run
from .optimizer import optimizer_of
from .parameters import Parameters
from .rows import stages
from .step import TrainStep
from .watch import LITTLE, Watch, independent

PATIENCE = 15  # looks at the validation images without improvement before a run stops
FALL = 0.5  # then the rate falls from the best parameters on, over this share of the epochs that led to them,
SLOW = 0.8  # unless they are from this part of the tail on, where it had fallen by nine tenths
ENDINGS = ("stale", "collapsed", "interrupted", "diverged")


def train(run: Run, progress: Progress, together: Parameters, *, show: bool = True, patience: int | None = PATIENCE):
    """Goes on until the run's last epoch, until validation has stopped improving, or Ctrl-C; saves what it has.

    Where validation stops improving while the rate is not small, it falls from the best parameters on, and the run ends
    with that. Returns the progress. Its `ending` is "max_steps", "converged" (by validation), "interrupted",
    "diverged" (of all seeds), or "collapsed": the model has come to draw pixels on their own again. After either of the
    last two its best parameters are put back.
    """
    row, images = run.row, run.images
    per_epoch = len(images.train) // row.batch
    if per_epoch == 0:
        raise ValueError(
            f"A batch of {row.batch} is larger than the {len(images.train)} training images; pass a smaller --batch."
        )
    optimizer, started, before = optimizer_of(row, together.layout), time.monotonic(), progress.seconds
    watch = Watch(run, progress, together, per_epoch, patience)

    def note(state: loop.State, history: np.ndarray):
        progress.state, progress.history = state, history
        progress.seconds = before + time.monotonic() - started

    def save(state: loop.State, history: np.ndarray):
        note(state, history)
        run.save(progress)

    def walk(inner: int, until: int) -> str:
        watch.bound, watch.found = row.make_bound(inner), None
        step = TrainStep(
            pixels=images.train,
            together=together,
            bound=watch.bound,
            gradient=row.make_gradient(),
            optimizer=optimizer,
            batch=row.batch,
            warmup=row.warmup * per_epoch,
            tail=row.optimizer != "rmsprop",
            draws=row.draws,
            flip=row.flip,
            dreams=row.dreams,
        )
        outcome = loop.run(
            step,
            progress.state,
            progress.history,
            restarts=run.seeds,
            rule=None,
            progress=show,
            save=save,
            turn=per_epoch,
            until=until,
            between=watch,
            label=row.name,
        )
        note(outcome.state, outcome.history)
        return outcome.ending if watch.found is None else watch.found

    progress.ending = "interrupted"  # for whoever reads a save from the middle
    run.path.mkdir(parents=True, exist_ok=True)  # where nothing can be written, that is known before the first epoch
    if len(progress.history):  # a run that fails in its first epoch is none, and leaves whatever was there
        run.save(progress)
    ending = "max_steps"
    for stage in stages(row, row.epochs, per_epoch):
        while _left(progress.state, stage.end):
            ending = walk(stage.inner, stage.end)
            falling = _falling(progress, optimizer, per_epoch) if ending == "stale" else None
            if falling is not None and row.optimizer != "rmsprop":
                progress.state = falling
            elif ending in ENDINGS:
                break
        if ending in ENDINGS:
            break
    if ending != "interrupted" and _lost(progress).all():
        ending = "diverged"
    if ending in ("collapsed", "diverged"):
        progress.state = _at_best(progress, optimizer)
    progress.ending = "converged" if ending == "stale" else ending
    run.save(progress)
    watch.writer.close()
    return progress


def _left(state: loop.State, until: int) -> bool:
    return int(state.step[0]) < min(until, int(np.max(state.tail_from + state.tail_steps)))


def _lost(progress: Progress) -> np.ndarray:
    # Which seeds had no finite step in the last epoch, or never a finite bound of the validation images.
    return np.isnan(progress.history[-1:]).any(0) | ~np.isfinite(progress.best_bound)


def _at_best(progress: Progress, optimizer) -> loop.State:
    # The best parameters, and an optimiser that knows nothing of what came after them.
    state = progress.state
    new = jnp.copy(progress.best), jax.vmap(optimizer.init)(progress.best), jnp.zeros_like(state.streak)
    return eqx.tree_at(lambda state: (state.params, state.optimizer, state.streak), state, new)


def _falling(progress: Progress, optimizer, per_epoch: int) -> loop.State | None:
    # The state at the best parameters, with the rate that they had falling to zero over a share of the epochs that led
    # to them, within those that are left; None where that rate was next to zero.
    state, best = _at_best(progress, optimizer), int(progress.best_at(progress.recent).max())
    start, length, now = (int(np.max(x)) for x in (state.tail_from, state.tail_steps, state.step))
    along = min(max((best * per_epoch - start) / max(length, 1), 0.0), 1.0)
    if along > SLOW:
        return None
    steps = min(max(1, round(FALL * (best - progress.since))), (start + length - now) // per_epoch) * per_epoch
    whole = round(steps / (1 - along))
    new = (
        jnp.full_like(state.step, now + steps - whole),
        jnp.full_like(state.step, whole),
        jnp.ones_like(state.settled),
    )
    return eqx.tree_at(lambda state: (state.tail_from, state.tail_steps, state.settled), state, new)


def sentence(run: Run, progress: Progress) -> str:
    """What happened, and what to do next."""
    folder, epochs = Path(run.path), len(progress.history)
    where = f"{run.row.name} at epoch {epochs} after {progress.seconds:.0f} s, in '{folder}'"
    rest = "" if epochs < run.row.epochs else ", and more --epochs"
    back = f"its best parameters are put back, go on from them with --resume --rate and a smaller rate{rest}."
    if progress.ending == "diverged":
        return f"{where}: the bound or its gradient was no longer finite; {back}"
    if progress.ending == "collapsed":
        return (
            f"{where}: the model lost what it had learned, its validation bound is hardly better than that of pixels "
            f"on their own; {back}"
        )
    if progress.ending == "interrupted":
        return f"{where}: interrupted; the same command with --resume goes on bit for bit."
    value = ", ".join(f"{-b:.2f}" for b in progress.best_bound)
    why = "validation has stopped improving" if progress.ending == "converged" else "all epochs are done"
    if len(bad := np.flatnonzero(_lost(progress))):
        seeds = ", ".join(str(run.seed + i) for i in bad)
        why += f", but the bound of seed {seeds} was no longer finite (a smaller --rate may help)"
    told = f"{where}: {why}; validation bound {value} nats per image"
    means = independent(run.images)
    if len(unlearned := np.flatnonzero(np.isfinite(progress.best_bound) & (progress.best_bound < means + LITTLE))):
        seeds = "" if run.seeds == 1 else " of seed " + ", ".join(str(run.seed + i) for i in unlearned)
        return (
            f"{told}, but the model{seeds} has learned no more than the means of the pixels, which alone give "
            f"{-means:.2f}; go on with --resume --no-early and more --epochs, or begin anew with --fresh and a "
            "--warmup, or another --rate."
        )
    return f"{told}. Next: vgp evaluate {folder}"
