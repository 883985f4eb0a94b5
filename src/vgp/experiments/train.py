"""`vgp train`: walks a run's epochs, watches the validation bound, and loses nothing."""

import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .. import loop
from ..bounds import AbstractBound
from ..data import AbstractPixels
from ..gradients import VALUES
from .folder import Progress, Run
from .metrics import Writer
from .optimizer import optimizer_of
from .parameters import Parameters
from .rows import stages
from .step import TrainStep

CHECKS = 50  # looks at the validation images in a run
PATIENCE = 15  # of them without improvement before a run stops
PACED = 50  # epochs that tell the pace
IMAGES = 2000  # of the validation set that are looked at
LOST = 0.95  # the share of what was learned that a run has to lose to count as collapsed


@eqx.filter_jit
def _validate(together: Parameters, bound: AbstractBound, params, pixels: AbstractPixels, rows, key):
    # The mean bound of every seed on the same images with the same noise.
    x = pixels(rows, key)

    def one(flat):
        learner = together(flat)
        return jnp.mean(bound(learner.model.at(x), learner.encoder.at(x, learner.model), key, len(rows), VALUES))

    return jax.lax.map(one, params)


def train(run: Run, progress: Progress, together: Parameters, *, show: bool = True, patience: int | None = PATIENCE):
    """Goes on until the run's last epoch, until validation has stopped improving, or Ctrl-C; saves what it has.

    Returns the progress. Its `ending` is "max_steps", "converged" (stopped by validation), "interrupted", "diverged",
    or "collapsed": the model has come to draw pixels on their own again, and its best parameters are put back.
    """
    row, images = run.row, run.images
    per_epoch = len(images.train) // row.batch
    if per_epoch == 0:
        raise ValueError(
            f"A batch of {row.batch} is larger than the {len(images.train)} training images; pass a smaller --batch."
        )
    optimizer, started, before = optimizer_of(row, together.layout), time.monotonic(), progress.seconds
    end = int(np.max(progress.state.tail_from + progress.state.tail_steps))
    every = max(1, end // per_epoch // CHECKS)
    seen = jnp.asarray(np.linspace(0, len(images.valid) - 1, min(IMAGES, len(images.valid))).astype(np.int32))
    writer, floor, collapsed = Writer(run.path), _independent(images.train), False

    def note(state: loop.State, history: np.ndarray):
        progress.state, progress.history = state, history
        progress.seconds = before + time.monotonic() - started

    def save(state: loop.State, history: np.ndarray):
        note(state, history)
        run.save(progress)

    ended: list[float] = []

    def between(state: loop.State, values: np.ndarray) -> bool:
        nonlocal collapsed
        ended.append(time.monotonic())
        if recent := np.diff(ended[-PACED:]).tolist():
            progress.pace = sum(recent) / len(recent)
        epoch = int(state.step[0]) // per_epoch
        writer.scalars(epoch, "train bound", values)
        if epoch % every and epoch * per_epoch < end:
            return False
        found = np.asarray(_validate(together, bound, state.params, images.valid, seen, jr.key(0)))
        writer.scalars(epoch, "validation bound", found)
        progress.checks = np.concatenate([progress.checks, [[epoch, *found]]])
        better = found > progress.best_bound
        progress.best = jnp.where(jnp.asarray(better)[:, None], state.params, progress.best)
        progress.best_bound = np.where(better, found, progress.best_bound)
        learned, left = progress.best_bound - floor, found - floor
        collapsed = bool(np.all((learned > 0) & (left < (1 - LOST) * learned)))
        recent = progress.checks[progress.checks[:, 0] > progress.since]
        return collapsed or (patience is not None and _stale(recent, patience))

    progress.ending = "interrupted"  # for whoever reads a save from the middle
    run.save(progress)
    outcome, bound = None, row.make_bound(0)
    for stage in stages(row, end // per_epoch, per_epoch):
        if int(progress.state.step[0]) >= stage.end:
            continue
        bound = row.make_bound(stage.inner)
        step = TrainStep(
            pixels=images.train,
            together=together,
            bound=bound,
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
            until=stage.end,
            between=between,
            label=row.name,
        )
        note(outcome.state, outcome.history)
        if outcome.ending != "max_steps":
            break
    progress.ending = outcome.ending if outcome else "max_steps"
    if collapsed and progress.ending == "converged":
        best, fresh = jnp.copy(progress.best), jax.vmap(optimizer.init)(progress.best)
        progress.state = eqx.tree_at(lambda state: (state.params, state.optimizer), progress.state, (best, fresh))
        progress.ending = "collapsed"
    run.save(progress)
    writer.close()
    return progress


def _independent(pixels: AbstractPixels) -> float:
    # The bound of a model that draws every pixel on its own, by its mean.
    likely = np.clip(np.asarray(pixels.mean(), float), 1e-6, 1 - 1e-6)
    return float(np.sum(likely * np.log(likely) + (1 - likely) * np.log1p(-likely)))


def _stale(checks: np.ndarray, patience: int) -> bool:
    # Has no seed improved in the last checks?
    if len(checks) <= patience:
        return False
    bounds = np.where(np.isnan(checks), -np.inf, checks)[:, 1:]
    return bool(np.all(bounds[-patience:].max(0) <= bounds[:-patience].max(0)))


def sentence(run: Run, progress: Progress) -> str:
    """What happened, and what to do next."""
    folder, epochs = Path(run.path), len(progress.history)
    where = f"{run.row.name} at epoch {epochs} after {progress.seconds:.0f} s, in '{folder}'"
    if progress.ending == "diverged":
        return (
            f"{where}: the bound or its gradient was not finite for {loop.LONGEST_STREAK} steps in a row; the last "
            "good parameters are kept there, go on from them with --resume --rate and a smaller learning rate."
        )
    if progress.ending == "collapsed":
        return (
            f"{where}: the model lost what it had learned, its validation bound is hardly better than that of pixels "
            "on their own; its best parameters are put back, go on from them with --resume --rate and a smaller rate."
        )
    if progress.ending == "interrupted":
        return f"{where}: interrupted; the same command with --resume goes on bit for bit."
    value = ", ".join(f"{-b:.2f}" for b in progress.best_bound)
    why = "validation has stopped improving" if progress.ending == "converged" else "all epochs are done"
    return f"{where}: {why}; validation bound {value} nats per image. Next: vgp evaluate {folder}"
