"""What is looked at between the epochs of a run: the validation bound, the best parameters, and when to end."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int

from .. import loop
from ..bounds import AbstractBound
from ..data import AbstractPixels, Images
from ..gradients import VALUES
from .folder import Progress, Run
from .metrics import Writer
from .parameters import Parameters

CHECKS = 50  # looks at the validation images in a run
PACED = 50  # epochs that tell the pace
IMAGES = 2000  # of the validation set that are looked at
LITTLE = 0.1  # nats above independent pixels, up to which nothing has been learned
LOST = 0.95  # the share of what was learned that a run has to lose to count as collapsed


@eqx.filter_jit
def _validate(together: Parameters, bound: AbstractBound, params, pixels: AbstractPixels, rows, key):
    # The mean bound of every seed on the same images with the same noise.
    x = pixels(rows, key)

    def one(flat):
        learner = together(flat)
        return jnp.mean(bound(learner.model.at(x), learner.encoder.at(x, learner.model), key, len(rows), VALUES))

    return jax.lax.map(one, params)


class Watch:
    """Called after every epoch; True ends the walk, and `found` says why: "stale" or "collapsed".

    `bound` is the one of the validation images, set anew where K changes. A run is stale where no seed has improved in
    the last `patience` looks. It has collapsed where nearly all that the model had learned over one that draws every
    pixel by itself is lost again.
    """

    bound: AbstractBound
    found: str | None = None

    def __init__(self, run: Run, progress: Progress, together: Parameters, per_epoch: int, patience: int | None):
        self.progress, self.together, self.per_epoch, self.patience = progress, together, per_epoch, patience
        self.pixels, self.writer, self.floor = run.images.valid, Writer(run.path), independent(run.images)
        self.rows, self.ended = looked_at(self.pixels), []
        self.every = max(1, run.row.epochs // CHECKS)

    def __call__(self, state: loop.State, values: np.ndarray) -> bool:
        self.ended.append(time.monotonic())
        if recent := np.diff(self.ended[-PACED:]).tolist():
            self.progress.pace = sum(recent) / len(recent)
        step = int(state.step[0])
        epoch, end = step // self.per_epoch, int(np.max(state.tail_from + state.tail_steps))
        self.writer.scalars(epoch, "train bound", values)
        if epoch % self.every == 0 or step >= end:
            self._look(epoch, state)
        return self.found is not None

    def _look(self, epoch: int, state: loop.State) -> None:
        progress = self.progress
        bounds = np.asarray(_validate(self.together, self.bound, state.params, self.pixels, self.rows, jr.key(0)))
        self.writer.scalars(epoch, "validation bound", bounds)
        progress.checks = np.concatenate([progress.checks, [[epoch, *bounds]]])
        better = bounds > progress.best_bound
        progress.best = jnp.where(jnp.asarray(better)[:, None], state.params, progress.best)
        progress.best_bound = np.where(better, bounds, progress.best_bound)
        learned, left = progress.best_bound - self.floor, bounds - self.floor
        settled = bool(np.all(state.settled))
        if np.all((learned > LITTLE) & (left < (1 - LOST) * learned)):
            self.found = "collapsed"
        elif self.patience is not None and not settled and _stale(progress.recent, self.patience):
            self.found = "stale"


def looked_at(pixels: AbstractPixels) -> Int[Array, " n"]:
    """The rows of the validation images that a run looks at."""
    return jnp.asarray(np.linspace(0, len(pixels) - 1, min(IMAGES, len(pixels))).astype(np.int32))


def independent(images: Images) -> float:
    """The bound, on those rows, of a model that draws every pixel on its own, by its mean over the training images."""
    likely = np.clip(np.asarray(images.train.mean(), float), 1e-6, 1 - 1e-6)
    share = np.asarray(images.valid(looked_at(images.valid), jr.key(0)), float).mean(0)
    return float(np.sum(share * np.log(likely) + (1 - share) * np.log1p(-likely)))


def _stale(checks: np.ndarray, patience: int) -> bool:
    # Has no seed improved in the last checks?
    if len(checks) <= patience:
        return False
    bounds = np.where(np.isnan(checks), -np.inf, checks)[:, 1:]
    return bool(np.all(bounds[-patience:].max(0) <= bounds[:-patience].max(0)))
