"""What the Gaussian process itself adds: families with the same networks on MNIST reduced to 14 × 14, on a CPU.

    VGP_DATA=... python benchmarks/ablation.py [--quick]

20 latent variables, networks of two layers of 100 tanh units, 20 epochs at batch 100, the training bound of each row.
The warp is a process with inputs per datapoint or shared, or a perceptron; r is a network, or knows the warp.
Expected: the VGP with inputs per datapoint ahead of the same network with a perceptron in place of the process under
either r, of a planar flow of 80 steps, and of the VGP with shared inputs; all ahead of the mean-field.
"""

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.random as jr
import numpy as np
import record

from vgp import loop
from vgp.data import Bits, Images, load
from vgp.experiments import evaluate, rows
from vgp.experiments.folder import Progress, Run
from vgp.experiments.optimizer import optimizer_of
from vgp.experiments.parameters import Parameters
from vgp.experiments.step import TrainStep

SIDE, SEEDS, QUICK = 14, 2, "--quick" in sys.argv
COMMON = {"architecture": "small", "batch": 100, "epochs": 20}
VGP, HVM = (dataclasses.replace(rows.find(name), latent_dim=20) for name in ("dlgm1-vgp", "dlgm1-hvm"))
EACH, PLAIN = {"num_data": 32}, {"linearised": 0}
VARIANTS = {
    "mean-field": rows.find("dlgm1-vae"),
    "planar flow, 80 steps": rows.find("dlgm1-nf80"),
    "perceptron": dataclasses.replace(HVM, **PLAIN),
    "perceptron, r knows the warp": HVM,
    "VGP, 100 shared inputs": dataclasses.replace(rows.find("dlgm1-vgp-shared"), latent_dim=8),
    "VGP, 32 inputs per datapoint": dataclasses.replace(VGP, **EACH, **PLAIN),
    "VGP, 32 inputs per datapoint, r knows the warp": dataclasses.replace(VGP, **EACH),
}


def reduced() -> Images:
    """Fixed-binarized MNIST with every square of four pixels one, by majority; two even ones are a coin's."""
    whole = load("mnist", "fixed")

    def shrink(bits: Bits, count: int) -> Bits:
        rng = np.random.default_rng(0)
        chosen = np.sort(rng.permutation(len(bits))[:count])
        x = np.asarray(bits(chosen, jr.key(0))).reshape(-1, SIDE, 2, SIDE, 2).mean((2, 4))
        return Bits.pack((x + 0.01 * (rng.random(x.shape) - 0.5) > 0.5).reshape(count, -1))

    small = {"train": shrink(whole.train, len(whole.train)), "valid": shrink(whole.valid, 2000)}
    return dataclasses.replace(whole, shape=(SIDE, SIDE), test=shrink(whole.test, 2000), **small)


def made(row: rows.Row, images: Images, seed: int) -> tuple[Progress, Parameters, TrainStep]:
    """A row at its start, and a step of its training."""
    progress, together = Run("", row, images, images.name, seed, 1).start()
    ((_, inner),) = row.inner
    step = TrainStep(
        pixels=images.train,
        together=together,
        bound=row.make_bound(inner),
        gradient=row.make_gradient(),
        optimizer=optimizer_of(row, together.layout),
        batch=row.batch,
        warmup=0,
        tail=True,
        dreams=row.dreams,
    )
    return progress, together, step


def trained(row: rows.Row, images: Images, seed: int) -> tuple[Parameters, jax.Array, float, float]:
    """What a row has learned, its last training bound, and the seconds that it took."""
    progress, together, step = made(row, images, seed)
    started = time.monotonic()
    outcome = loop.run(step, progress.state, progress.history, rule=None, turn=step.per_epoch, progress=False)
    return together, outcome.state.params[0], float(outcome.history[-1, 0]), time.monotonic() - started


def one(name: str, row: rows.Row, images: Images, seed: int) -> dict[str, float | str | int]:
    """Trains and measures one family."""
    together, params, value, seconds = trained(row, images, seed)
    learner = together(params)
    inner = 32 if learner.encoder.latent_dim else 0
    bound = evaluate.bound(learner, images.test, jr.key(1), draws=4, inner=inner)
    estimate = evaluate.estimate(learner, images.test, jr.key(2), samples=500, inner=inner // 8)
    return {
        "family": name,
        "seed": seed,
        "bound": bound.upper.value,
        "estimate": estimate.value,
        "train": -value,
        "seconds": seconds,
        "parameters": params.size,
    }


def compared(
    common: dict[str, Any], variants: dict[str, rows.Row], images: Images, seeds: int = SEEDS
) -> Iterator[list[dict]]:
    """Trains and measures every variant with every seed, or for one epoch with `--quick`; all figures as they come."""
    figures = []
    for seed in range(1 if QUICK else seeds):
        for name, row in variants.items():
            row = dataclasses.replace(row, **{**common, **({"epochs": 1} if QUICK else {})})
            figures.append(one(name, row, images, seed))
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in figures[-1].items()}, flush=True)
            jax.clear_caches()
            yield figures


def main() -> None:
    rows.ARCHITECTURES["small", 1] = ((20,), ((100, 100),))
    for figures in compared(COMMON, VARIANTS, reduced()):
        if not QUICK:
            record.write("ablation", COMMON, figures)


if __name__ == "__main__":
    main()
