"""Two tiny rows, images for them, and what trains them, for the tests of `vgp train`."""

import contextlib
import dataclasses
import signal

import numpy as np
import pytest
from typer.testing import CliRunner

from vgp.checkpoint import flatten
from vgp.cli import app
from vgp.experiments import commands, rows, train as training
from vgp.experiments.folder import Run, open_run
from vgp.progress import Bar

# Every test trains one of these two, so that what they share is compiled once. "staged" changes K in the middle.
TINY = rows.Row("tiny", "vae", gradient="StickingTheLanding", batch=20, epochs=6, rate=1e-2)
STAGED = dataclasses.replace(TINY, name="staged", inner=((0.0, 0), (0.5, 1)))
PER_EPOCH = 3
KINDS = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])


def made(n, seed):
    """Images of two kinds, a tenth of the pixels turned over."""
    rng = np.random.default_rng(seed)
    return (KINDS[rng.integers(2, size=n)] ^ (rng.random((n, 6)) < 0.1)).astype(np.uint8)


@contextlib.contextmanager
def small_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # keeps the command from choosing a folder
        patch.setitem(rows.ARCHITECTURES, ("deep", 1), ((3,), ((8, 8),)))
        for row in (TINY, STAGED):
            patch.setitem(rows.ROWS, row.name, row)
        yield


def begin(path, source, images, row=STAGED, seed=0, seeds=2, **changes):
    return Run(path, dataclasses.replace(row, **changes), images, source, seed, seeds)


def go(run, **options):
    return training.train(run, *run.start(), show=False, **options)


def go_on(path, **options):
    run = open_run(path)
    return training.train(run, *run.load(), show=False, **options)


def at_epoch(patch, epoch, act):
    """Lets something happen in this epoch, counted from now on."""
    seen = []

    def update(*_):
        seen.append(1)
        if len(seen) == epoch:
            act()

    patch.setattr(Bar, "update", update)


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Killed(Exception):
    pass


def kill():
    raise Killed


def assert_same(one, other):
    """Bit for bit, all but the time that it took."""
    sides = []
    for p in (one, other):
        kept = {"best": p.best, "best_bound": p.best_bound, "history": p.history, "checks": p.checks}
        sides.append(flatten(p.state, "state") | {name: np.asarray(array) for name, array in kept.items()})
    assert sides[0].keys() == sides[1].keys() and len(sides[0]) > 10
    for name, array in sides[0].items():
        assert (array.dtype, array.shape) == (sides[1][name].dtype, sides[1][name].shape), name
        assert array.tobytes() == sides[1][name].tobytes(), name
    assert one.ending == other.ending


def command(source, path, **options):
    """`vgp train staged`, without its progress bar."""
    given = {"data": source, "protocol": None, "out": path, "seed": 0, "seeds": 2, "resume": False, "fresh": False}
    return commands.run_train("staged", **given | {"early": True, "progress": False} | options)


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))
