"""The folder of a run: what it is (run.json), where it stands (state.vgp), what it was worth (records)."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import loop
from ..checkpoint import CheckpointError, flatten, read, restore, write
from ..data import Images, load
from ..data.images import READERS
from . import rows
from .optimizer import optimizer_of
from .parameters import Parameters, taken_apart

DESCRIPTION, STATE = "run.json", "state.vgp"


@dataclasses.dataclass
class Progress:
    """Where a run stands: the state of every seed, the best parameters so far by validation, and the history."""

    state: loop.State
    best: jax.Array  # (seeds, parameters)
    best_bound: np.ndarray  # (seeds,), on the validation images
    history: np.ndarray  # (epochs, seeds), the training bound
    checks: np.ndarray  # (checks, 1 + seeds): epoch, and the validation bound of each seed
    seconds: float = 0.0
    ending: str = "interrupted"
    since: int = 0  # the epoch at which this schedule began: patience counts from there
    pace: float = 0.0  # seconds an epoch, without the first, in which a step is compiled

    @property
    def recent(self) -> np.ndarray:
        """The checks of this schedule."""
        return self.checks[self.checks[:, 0] > self.since]

    @staticmethod
    def best_at(checks: np.ndarray) -> np.ndarray:
        """The epoch at which each seed was best, of some checks."""
        bounds = np.where(np.isnan(checks), -np.inf, checks)[:, 1:]
        return checks[bounds.argmax(0), 0].astype(int)

    def arrays(self) -> dict[str, np.ndarray]:
        """What of it are arrays, but for the state."""
        figures = {"best_bound": self.best_bound, "history": self.history, "checks": self.checks}
        return {"best": np.asarray(self.best), **figures}

    def told(self) -> dict[str, Any]:
        """What of it is no array."""
        return {"seconds": self.seconds, "ending": self.ending, "since": self.since, "pace": self.pace}


@dataclasses.dataclass
class Run:
    """A row on given data, from the first seed on, in a folder."""

    path: Path
    row: rows.Row
    images: Images
    source: str  # what `load` was called with; the path of a file is absolute, so that it holds from anywhere
    seed: int
    seeds: int

    def __post_init__(self):
        if self.source not in READERS:
            self.source = str(Path(self.source).expanduser().absolute())

    def describe(self) -> dict[str, Any]:
        """What is written to run.json."""
        return {
            "row": self.row.name,
            "settings": dataclasses.asdict(self.row),
            "data": self.source,
            "protocol": self.images.protocol,
            "origin": self.images.origin,
            "seed": self.seed,
            "seeds": self.seeds,
        }

    def start(self) -> tuple[Progress, Parameters]:
        """Every seed at its starting values."""
        keys = [jax.random.key(self.seed + i) for i in range(self.seeds)]
        mean = self.images.train.mean()
        learners = [rows.build(self.row, self.images.shape, mean, jax.random.fold_in(key, 0)) for key in keys]
        flats, together = zip(*(taken_apart(learner) for learner in learners), strict=True)
        steps = self.row.epochs * (len(self.images.train) // self.row.batch)
        optimizer = optimizer_of(self.row, together[0].layout)
        states = [
            loop.init(f, optimizer, jax.random.fold_in(k, 1), steps, self.row.tail)
            for f, k in zip(flats, keys, strict=True)
        ]
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        none = np.zeros((0, self.seeds))
        worst = np.full(self.seeds, -np.inf)
        return Progress(state, jnp.copy(state.params), worst, none, np.zeros((0, 1 + self.seeds))), together[0]

    def save(self, progress: Progress) -> None:
        """Writes run.json and state.vgp, or leaves the ones that are there."""
        write(self.path / STATE, flatten(progress.state, "state") | progress.arrays(), progress.told())
        self.write_description()

    def write_description(self) -> None:
        """Writes run.json, at once or not at all."""
        beside = self.path / f".{DESCRIPTION}"
        beside.write_text(json.dumps(self.describe(), indent=1) + "\n")
        os.replace(beside, self.path / DESCRIPTION)

    def load(self) -> tuple[Progress, Parameters]:
        """Where the run in the folder stands."""
        progress, together = self.start()
        arrays, meta = read(self.path / STATE)
        best = jnp.asarray(arrays["best"], progress.best.dtype)
        if best.shape != progress.best.shape:
            raise CheckpointError(
                f"'{self.path / STATE}' has parameters of the shape {list(best.shape)}, expected "
                f"{list(progress.best.shape)}; it is of another version or row, train anew with --fresh."
            )
        if meta.get("kept"):
            state = self._at(progress.state, best, len(arrays["history"]))
        else:
            state = restore(progress.state, arrays, "state")
        figures = arrays["best_bound"], arrays["history"], arrays["checks"]
        told = (meta.get(name, 0) for name in ("seconds", "ending", "since", "pace"))
        return Progress(state, best, *figures, *told), together

    def keep(self, progress: Progress, path: Path) -> "Run":
        """A run in another folder with what this one has learned, and no more: its best parameters, in half precision.

        It can be evaluated, drawn from and begun with as any other. Gone on with, it is not the same run bit for bit:
        its optimiser begins anew.
        """
        kept, arrays = dataclasses.replace(self, path=path), progress.arrays()
        half = {"best": arrays["best"].astype(np.float16)}
        write(path / STATE, arrays | half, {**progress.told(), "kept": True})
        kept.write_description()
        return kept

    def _at(self, state: loop.State, params: jax.Array, epochs: int) -> loop.State:
        # The state of a run that has come so far with these parameters, and has no memory but for them.
        per_epoch = len(self.images.train) // self.row.batch
        there = jnp.full_like(state.step, epochs * per_epoch)
        state = eqx.tree_at(lambda s: (s.params, s.step), state, (params, there))
        return loop.extend(state, max(self.row.epochs - epochs, 0) * per_epoch, self.row.tail)


def is_run(path: Path) -> bool:
    """Does the folder hold a run?"""
    return (path / DESCRIPTION).exists() and (path / STATE).exists()


def is_kept(path: Path) -> bool:
    """Is it a copy without an optimiser, of what another run has learned?"""
    return bool(read(path / STATE)[1].get("kept"))


def open_run(path: Path) -> Run:
    """The run in a folder."""
    if not is_run(path):
        raise FileNotFoundError(
            f"There is no run in '{path}'; name a folder that `vgp train` wrote, with {DESCRIPTION}."
        )
    try:
        told = json.loads((path / DESCRIPTION).read_text())
        row = rows.Row(**{k: _tuples(v) for k, v in told["settings"].items()})
        source, protocol, seed, seeds = (told[name] for name in ("data", "protocol", "seed", "seeds"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"'{path / DESCRIPTION}' is damaged or another version's ({type(error).__name__}: {error}); put back a "
            "copy of it, or train anew with --fresh."
        ) from error
    if isinstance(source, str) and source not in READERS and not Path(source).expanduser().is_file():
        raise FileNotFoundError(
            f"The run in '{path}' was trained on '{source}', which is no file any more; put it back, or write where it "
            f"is now as \"data\" in '{path / DESCRIPTION}'."
        )
    images = load(source, protocol)
    # What has a name is always the same images, whichever file they came from; an own file may have changed.
    if source not in READERS and told.get("origin", images.origin) != images.origin:
        raise ValueError(
            f"'{source}' holds other images than those of the run in '{path}', which were {told['origin']}; "
            "put them back, or train anew in another folder."
        )
    return Run(path, row, images, source, seed, seeds)


def _tuples(value):
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
