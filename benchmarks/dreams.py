"""What an inference network gains by images that the model draws (`vgp train --dreams`), where there are few others.

    VGP_DATA=... python benchmarks/dreams.py [--quick]

MNIST reduced to 14 × 14, 5000 training images that stay the same, 120 epochs at batch 100, on a CPU; families and
networks of `ablation.py`. Expected: with dreams the mean-field and the flow have better bounds on the test images, as
their inference networks overfit less; the VGP's bound, the best without them, gains little or nothing.
"""

import dataclasses
import sys

import ablation
import jax
import jax.random as jr
import numpy as np
import record

from vgp.data import Bits
from vgp.experiments import rows

IMAGES = 5000
COMMON = {"architecture": "small", "batch": 100, "epochs": 120}
FAMILIES = ("mean-field", "planar flow, 80 steps", "VGP, 32 inputs per datapoint, r knows the warp")
SEEDS = 2


def main() -> None:
    rows.ARCHITECTURES["small", 1] = ((20,), ((100, 100),))
    quick = "--quick" in sys.argv
    images = ablation.reduced()
    some = np.sort(np.random.default_rng(0).permutation(len(images.train))[:IMAGES])
    images = dataclasses.replace(images, train=Bits.pack(np.asarray(images.train(some, jr.key(0)))))
    figures = []
    for seed in range(1 if quick else SEEDS):
        for name in FAMILIES:
            for dreams in (0.0, 1.0):
                changes = {**COMMON, "dreams": dreams, **({"epochs": 1} if quick else {})}
                row = dataclasses.replace(ablation.VARIANTS[name], **changes)
                figures.append(ablation.one(name, row, images, seed) | {"dreams": dreams})
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in figures[-1].items()}, flush=True)
                jax.clear_caches()
                if not quick:
                    record.write("dreams", {**COMMON, "images": IMAGES}, figures)


if __name__ == "__main__":
    main()
