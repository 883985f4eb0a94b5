"""Where should the windows of a DRAW begin? Plain DRAW on sketches from several paths, side by side in one program.

    VGP_DATA=... python benchmarks/paths.py NAME [SEED ...] [--epochs 12] [--paths "a;b"] [--small | --quick]

Full size, for a GPU; with `--small` the networks and images of `parting.py`, with 24 glimpses, for a CPU. Every path
begins with the same networks, and every glimpse learns its own as with `--set path=ring`. The rate is constant. Leaves
results/paths-NAME.json: the training bound of every epoch.
Expected: any ring ahead of windows that begin in the middle, by tens of nats; that with some wide ones first, which is
the ring of the rows, ahead of the others.
"""

import argparse
import dataclasses
import time
from typing import Any

import ablation
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import parting
import record

from vgp import loop
from vgp.data import load
from vgp.experiments import rows
from vgp.experiments.parameters import taken_apart
from vgp.models.attention import ROUND, way


def turning(glimpses: int, radius: float, part: float, turns: float = 1.0, spread: float = 0.0):
    """Centres across and down, and parts, of windows that turn around the middle of the image."""
    angle = 2 * np.pi * turns * (np.arange(glimpses) + 0.5) / glimpses
    radii = np.linspace(radius - spread, radius + spread, glimpses)
    return radii * np.cos(angle), radii * np.sin(angle), np.full(glimpses, part)


PATHS = {
    "in the middle": lambda t: (np.zeros(t), np.zeros(t), np.ones(t)),
    "a ring": lambda t: turning(t, ROUND, 0.4),
    "smaller windows": lambda t: turning(t, ROUND, 0.25),
    "smaller still, farther out": lambda t: turning(t, 0.6, 0.2),
    "some wide ones first": None,  # the ring of the rows
    "two turns outwards": lambda t: turning(t, ROUND, 0.25, turns=2, spread=0.15),
}


def begun(row: rows.Row, images, seed: int, path: str) -> tuple[loop.State, np.ndarray, object]:
    """A row at its start, with its windows on a path."""
    progress, together, step = ablation.made(row, images, seed)
    learner: Any = together(progress.state.params[0])
    if (places := PATHS[path]) is not None:
        sizes = learner.encoder.size, learner.model.size
        raw = [jnp.asarray(way(size, images.shape, *places(row.glimpses)), jnp.float32) for size in sizes]
        learner = eqx.tree_at(lambda both: (both.encoder.path, both.model.path), learner, tuple(raw))
    return eqx.tree_at(lambda s: s.params, progress.state, taken_apart(learner)[0][None]), progress.history, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("seeds", nargs="*", type=int, default=[0], metavar="SEED")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--paths", type=lambda told: told.split(";"), default=[*PATHS])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few images, and no record")
    options = parser.parse_args()
    if unknown := [path for path in options.paths if path not in PATHS]:
        parser.error(f"paths are {'; '.join(PATHS)}: got {'; '.join(unknown)}")
    rows.ARCHITECTURES["small-draw", 1] = ((40,), ((96,),))
    row, small = rows.find("draw-sketch"), {"architecture": "small-draw", "glimpses": 24, "unroll": 4}
    if options.small or options.quick:
        row, images = dataclasses.replace(row, **small), parting.reduced(256 if options.quick else parting.TRAINED, 2)
    else:
        images = load("sketch")
    row = dataclasses.replace(row, path="ring", tail=0.0, epochs=options.epochs)
    which = [{"path": path, "seed": seed} for path in options.paths for seed in options.seeds]
    states, histories, steps = zip(*(begun(row, images, told["seed"], told["path"]) for told in which), strict=True)
    state, history = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states), np.concatenate(histories, axis=1)
    started = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        turns = {"rule": None, "turn": steps[0].per_epoch, "until": epoch * steps[0].per_epoch, "progress": False}
        outcome = loop.run(steps[0], state, history, restarts=len(which), **turns)
        state, history = outcome.state, outcome.history
        print(epoch, f"{time.monotonic() - started:.0f} s", np.round(-np.asarray(history[-1]), 2), flush=True)
    figures = [told | {"train": (-np.asarray(history)[:, i]).tolist()} for i, told in enumerate(which)]
    for told in sorted(figures, key=lambda told: told["train"][-1]):
        print(f"{told['train'][-1]:8.2f}  {told['path']}, seed {told['seed']}", flush=True)
    if not options.quick:
        names = ("architecture", "glimpses", "batch", "rate", "optimizer")
        record.write(f"paths-{options.name}", {name: getattr(row, name) for name in names}, figures)


if __name__ == "__main__":
    main()
