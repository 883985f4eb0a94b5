"""When has DRAW to learn with a VGP for it to be worth something? Small networks on sketches of 28 × 28, on a CPU.

    VGP_DATA=... python benchmarks/parting.py [--quick] [--other] [SEED ...]

A plain DRAW is trained at a constant rate, and a DRAW with a VGP that leaves it after ten epochs, at the same rate. At
every stage the rate falls to zero in branches of 15 epochs: plain DRAW from the plain one; a VGP that begins with the
plain one only then ("late"), as in the runs of `branches.py`; and a VGP from that which has learned as one ("early"),
as with `--apart`. 12 glimpses of 40 latents, 96 units, 6000 images, Muon. A record for each seed. With `--other` early
ones of other settings, in a record of their own, up to the second stage.
Expected: the early one ahead of the late one, and both of plain DRAW, at first.
"""

import dataclasses
import sys
import time

import ablation
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import record

from vgp import loop
from vgp.data import Bits, Images, load
from vgp.experiments import evaluate, rows
from vgp.experiments.begun import taking

SIDE, TRAINED, TESTED = 28, 6000, 1000
STAGES, FALL, APART = (40, 80, 120), 15, 10  # epochs
COMMON = {"architecture": "small-draw", "glimpses": 12, "unroll": 4, "batch": 128, "rate": 1.2e-3}
PLAIN = dataclasses.replace(rows.find("draw-sketch"), **COMMON)
VGP = dataclasses.replace(rows.find("draw-sketch-vgp"), **COMMON, reach=1.0)
OTHER = {
    "from the start": ({}, 0),
    "early, K = 4": ({"inner": ((0.0, 4),)}, APART),
    "early, reach 0.2": ({"reach": 0.2}, APART),
    "early, rank 32": ({"rank": 32}, APART),
}  # what is set otherwise, and the epoch at which plain DRAW is left


def reduced(train: int, test: int) -> Images:
    """Sketches with every square of four pixels one: ink where there is any."""
    whole = load("sketch")

    def shrink(bits: Bits, count: int) -> Bits:
        x = np.asarray(bits(np.arange(count), jr.key(0)))
        return Bits.pack(x.reshape(-1, SIDE, 2, SIDE, 2).max((2, 4)).reshape(count, -1) > 0)

    few = {"train": shrink(whole.train, train), "valid": shrink(whole.valid, 1), "test": shrink(whole.test, test)}
    return dataclasses.replace(whole, shape=(SIDE, SIDE), **few)


class Training:
    """A row in training, from its start or from what another has learned."""

    def __init__(self, row: rows.Row, images: Images, seed: int, begun: "Training | None" = None):
        self.images, self.row, self.seed = images, row, seed
        self.progress, self.together, self.step = ablation.made(row, images, seed)
        if begun is not None:
            params = jnp.copy(begun.progress.state.params)
            self.progress, _ = taking(self.progress, self.together, params, begun.together)

    def until(self, epoch: int) -> "Training":
        """Goes on until an epoch of its own."""
        turn = self.step.per_epoch
        options = {"rule": None, "turn": turn, "until": epoch * turn, "progress": False}
        outcome = loop.run(self.step, self.progress.state, self.progress.history, **options)
        self.progress = dataclasses.replace(self.progress, state=outcome.state, history=outcome.history)
        return self

    def fallen(self, row: rows.Row, epochs: int) -> dict[str, float]:
        """What a row that begins with this one comes to while the rate falls to zero."""
        branch = Training(dataclasses.replace(row, epochs=epochs, tail=1.0), self.images, self.seed, self).until(epochs)
        learner = branch.together(branch.progress.state.params[0])
        inner = 16 if learner.encoder.latent_dim else 0
        bound = evaluate.bound(learner, self.images.test, jr.key(1), draws=4, inner=inner)
        return {"bound": bound.upper.value, "train": -float(branch.progress.history[-1, 0])}


def measure(images: Images, seed: int, stages: tuple[int, ...], fall: int, ways: dict, late: bool) -> list[dict]:
    """Plain, late if asked for, and all other ways at every stage."""
    constant = {"epochs": stages[-1], "tail": 0.0}
    trunk, own, figures = Training(dataclasses.replace(PLAIN, **constant), images, seed), {}, []
    for way, (other, apart) in sorted(ways.items(), key=lambda named: named[1][1]):
        row = dataclasses.replace(VGP, **other, **constant)
        own[way] = Training(row, images, seed, trunk.until(apart) if apart else None)
    started = time.monotonic()
    for stage in stages:
        branches = {"plain": (PLAIN, trunk.until(stage - fall))}
        branches |= {"late": (VGP, trunk)} if late else {}
        for way, (other, apart) in ways.items():
            branches[way] = dataclasses.replace(VGP, **other), own[way].until(stage - fall - apart)
        for way, (row, begun) in branches.items():
            figures.append({"epochs": stage, "way": way, **begun.fallen(row, fall)})
            print(figures[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    return figures


def main() -> None:
    quick, other = "--quick" in sys.argv, "--other" in sys.argv
    rows.ARCHITECTURES["small-draw", 1] = ((40,), ((96,),))
    images = reduced(256, 50) if quick else reduced(TRAINED, TESTED)
    ways = OTHER if other else {"early": ({}, APART)}
    for seed in [int(told) for told in sys.argv[1:] if told.isdigit()] or [0]:
        if quick:
            sooner = {way: (more, min(apart, 1)) for way, (more, apart) in ways.items()}
            measure(images, seed, (3, 4), 1, sooner, not other)
            continue
        stages = STAGES[:2] if other else STAGES
        figures = measure(images, seed, stages, FALL, ways, not other)
        settings = {**COMMON, "images": TRAINED, "apart": APART, "fall": FALL, "reach": VGP.reach, "seed": seed}
        record.write(f"ways-{seed}" if other else f"parting-{seed}", settings, figures)


if __name__ == "__main__":
    main()
