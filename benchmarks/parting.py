"""When has DRAW to learn with a VGP for it to be worth something? Small networks on sketches of 28 × 28, on a CPU.

    VGP_DATA=... python benchmarks/parting.py [SEED ...] [--quick] [--path ring] [--ways plain,again,…] [--at 40,80]

A plain DRAW is trained at a constant rate, and beside it a DRAW with a VGP that leaves it after ten epochs, at the same
rate. At every stage the rate falls to zero in branches of 15 epochs: plain DRAW from the plain one; a VGP that begins
with the plain one only then ("late"), as in the runs of `branches.py`; and a VGP from that which has learned as one
("early"), as with `--apart`. Two runs that leave each other differ by luck as well: a plain DRAW that leaves the first
where the early VGP does ("again") tells by how much. The last VGP has its own start ("from the start"). What it gains
is not all of the warp's making: "without ξ" is the same network with ξ at zero, a mean-field whose μ and σ have the
mean of the process as a second way to them. 12 glimpses of 40 latents, 96 units, 6000 images, Muon. A record for each
seed. Other settings of the VGP are more `--ways`. With `--data mnist` the images are 20,000 digits of 14 × 14.
Expected: from the start ahead of early, early ahead of late, and late hardly ahead of plain DRAW; the plain one that
left, even with it. With a path luck is less, and all are ten nats better; the VGP from the start is ahead of both the
plain one and that without ξ.
"""

import argparse
import dataclasses
import time
from typing import Any
from unittest.mock import patch

import ablation
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import record

from vgp import loop
from vgp.amortised import AmortisedVGP
from vgp.amortised.auxiliary import NoLatent
from vgp.amortised.base import AbstractEncoder, Given
from vgp.data import Bits, Images, load
from vgp.experiments import evaluate, rows
from vgp.experiments.begun import taking
from vgp.experiments.records import some_of
from vgp.families.process import Local, Process
from vgp.meanfield import Normal
from vgp.rivals.vae import Nothing

SIDE, TRAINED, TESTED = 28, 6000, 1000
FALL, APART = 15, 10  # epochs
COMMON = {"architecture": "small-draw", "glimpses": 12, "unroll": 4}
PLAIN = dataclasses.replace(rows.find("draw-sketch"), **COMMON)
VGP = dataclasses.replace(rows.find("draw-sketch-vgp"), **COMMON)
WAYS: dict[str, tuple[rows.Row, int | None]] = {
    "plain": (PLAIN, None),
    "again": (PLAIN, APART),
    "late": (VGP, None),
    "early": (VGP, APART),
    "from the start": (VGP, 0),
    "without ξ": (VGP, 0),
    "K = 4": (dataclasses.replace(VGP, inner=((0.0, 4),)), 0),
    "rank 32": (dataclasses.replace(VGP, rank=32), 0),
    "c = 32": (dataclasses.replace(VGP, latent_dim=32), 0),
    "reach 0.2": (dataclasses.replace(VGP, reach=0.2), 0),
    "reach 3": (dataclasses.replace(VGP, reach=3.0), 0),
}  # the row, and the epoch at which it leaves the first plain DRAW; None: at its branches only


def reduced(train: int, test: int) -> Images:
    """Sketches with every square of four pixels one: ink where there is any."""
    whole = load("sketch")

    def shrink(bits: Bits, count: int) -> Bits:
        x = np.asarray(bits(np.arange(count), jr.key(0)))
        return Bits.pack(x.reshape(-1, SIDE, 2, SIDE, 2).max((2, 4)).reshape(count, -1) > 0)

    few = {"train": shrink(whole.train, train), "valid": shrink(whole.valid, 1), "test": shrink(whole.test, test)}
    return dataclasses.replace(whole, shape=(SIDE, SIDE), **few)


def digits(train: int, test: int) -> Images:
    """The digits of `ablation.py`, as many as wanted."""
    whole = ablation.reduced()
    return dataclasses.replace(whole, train=some_of(whole.train, train), test=some_of(whole.test, test))


DATA = {"sketch": (reduced, TRAINED, TESTED), "mnist": (digits, 20_000, 2000)}


class Still(AbstractEncoder):
    """A VGP with ξ at zero: a mean-field again."""

    vgp: AmortisedVGP
    latent_dim: int = eqx.field(static=True, default=0)

    @property
    def dim(self):
        return self.vgp.dim

    @property
    def heads(self):
        return self.vgp.heads

    def prepared(self):
        return Still(self.vgp.prepared())

    def at(self, x, model=None):
        given = self.vgp.at(x)
        q: Any = given.view().conditional(jnp.zeros((len(x), self.vgp.latent_dim))).base_dist
        local = Local(jnp.zeros((0, self.dim)), None, q.loc, q.scale)
        return Given(dim=self.dim, process=Process(Nothing(), local, Normal(self.dim), NoLatent()))


class Training:
    """A row in training, from its start or from what another has learned; its VGPs are `still`, or are not."""

    def __init__(
        self, row: rows.Row, images: Images, seed: int, begun: "Training | None" = None, *, still: bool = False
    ):
        self.images, self.row, self.seed, self.still, made = images, row, seed, still, rows._encoder
        stilled = patch.object(rows, "_encoder", lambda *given: Still(made(*given)) if still else made(*given))
        with stilled:
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
        falling = dataclasses.replace(row, epochs=epochs, tail=1.0)
        branch = Training(falling, self.images, self.seed, self, still=self.still).until(epochs)
        learner = branch.together(branch.progress.state.params[0])
        inner = 16 if learner.encoder.latent_dim else 0
        bound = evaluate.bound(learner, self.images.test, jr.key(1), draws=4, inner=inner)
        return {"bound": bound.upper.value, "train": -float(branch.progress.history[-1, 0])}


def measure(
    images: Images, seed: int, ways: list[str], stages: list[int], fall: int, apart: int, **settings: Any
) -> list[dict]:
    """Every way at every stage, with these settings of all rows."""
    constant, chosen = {"epochs": stages[-1], "tail": 0.0}, {}
    for way in ways:
        row, left = WAYS[way]
        chosen[way] = dataclasses.replace(row, **settings), left
    trunk, own, figures = Training(dataclasses.replace(PLAIN, **settings, **constant), images, seed), {}, []
    for way in sorted(ways, key=lambda way: WAYS[way][1] or 0):
        row, left = chosen[way]
        if left is not None:
            begun = trunk.until(min(left, apart)) if left else None
            still = way == "without ξ"
            own[way] = Training(dataclasses.replace(row, **constant), images, seed, begun, still=still)
    started = time.monotonic()
    for stage in stages:
        for way in ways:
            row, left = chosen[way]
            epoch = stage - fall
            begun = trunk.until(epoch) if left is None else own[way].until(epoch - min(left, apart))
            figures.append({"epochs": stage, "way": way, **begun.fallen(row, fall)})
            print(figures[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, default=[0], metavar="SEED")
    parser.add_argument("--ways", type=lambda told: told.split(","), default=[*WAYS][:6])
    parser.add_argument("--at", type=lambda told: [*map(int, told.split(","))], default=[40, 80, 120])
    parser.add_argument("--path", default="none", help="of the windows, none or ring")
    parser.add_argument("--rate", type=float, default=VGP.rate, help="of all rows")
    parser.add_argument("--data", choices=DATA, default="sketch")
    parser.add_argument("--name", default="parting", help="of the records")
    parser.add_argument("--quick", action="store_true", help="a few images and epochs, and no record")
    options = parser.parse_args()
    rows.ARCHITECTURES["small-draw", 1] = ((40,), ((96,),))
    made, *counts = DATA[options.data]
    images = made(*((256, 50) if options.quick else counts))
    chosen = {"path": options.path, "rate": options.rate}
    for seed in options.seeds:
        if options.quick:
            measure(images, seed, options.ways, [3, 4], 1, 1, **chosen)
            continue
        figures = measure(images, seed, options.ways, options.at, FALL, APART, **chosen)
        settings = {**COMMON, **chosen, "batch": VGP.batch, "reach": VGP.reach}
        settings |= {"data": options.data, "images": counts[0], "apart": APART, "fall": FALL, "seed": seed}
        record.write(f"{options.name}-{seed}", settings, figures)


if __name__ == "__main__":
    main()
