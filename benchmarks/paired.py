"""By how much one run is ahead of another, image by image: a bound's own error says how much the images differ.

    VGP_DATA=... python benchmarks/paired.py NAME RUN OTHER [RUN OTHER ...] [--images 500]

For each pair the bounds of both on the same images, all of the test set and some of the training images, two draws and
16 inner samples each: the mean of their differences with its standard error, and on how many images OTHER is ahead.
Leaves results/paired-NAME.json. On a CPU; kept runs will do.
Expected: where a lead is the model's, one that is many of its standard errors, on either kind of images.
"""

import argparse
from pathlib import Path

import jax.random as jr
import numpy as np
import record

from vgp.data import AbstractPixels
from vgp.experiments import evaluate
from vgp.experiments.begun import epochs_before
from vgp.experiments.folder import Run, open_run
from vgp.experiments.records import some_of

DRAWS, INNER = 2, 16


def bounds(run: Run, pixels: AbstractPixels) -> np.ndarray:
    """−ELBO of each image, in nats."""
    progress, together = run.load()
    learner = together(progress.best[0])
    inner = INNER if learner.encoder.latent_dim else 0
    return -evaluate.bounds(learner, pixels, jr.key(0), draws=DRAWS, inner=inner)[0].astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN OTHER")
    parser.add_argument("--images", type=int, default=500, help="of the training set")
    options = parser.parse_args()
    if len(options.runs) % 2:
        parser.error(f"runs are compared in pairs, got {len(options.runs)}; name as many as are to be ahead of others")
    runs, figures = [*map(open_run, options.runs)], []
    for one, other in zip(runs[::2], runs[1::2], strict=True):
        for kind, pixels in (("test", one.images.test), ("training", some_of(one.images.train, options.images))):
            ahead = bounds(one, pixels) - bounds(other, pixels)
            told = {"rows": [one.row.name, other.row.name], "seeds": [one.seed, other.seed], "images": kind}
            told["epochs"] = epochs_before(other.row.begun) + len(other.load()[0].history)
            lead = {"ahead": float(ahead.mean()), "stderr": float(ahead.std(ddof=1) / len(ahead) ** 0.5)}
            figures.append({**told, **lead, "share": float((ahead > 0).mean()), "count": len(ahead)})
            print(figures[-1], flush=True)
    record.write(f"paired-{options.name}", {"draws": DRAWS, "inner": INNER}, figures)


if __name__ == "__main__":
    main()
