"""What the kept runs are worth on images that they learned from and on others: is it q that overfits, or the model?

    VGP_DATA=... python benchmarks/kept.py [RUN ...] [--quick]

For each run of `results/kept`, or those named, on as many training as test images, evenly spaced: the bound of one draw
with its sandwich, −log p by importance sampling, and the distance between the two, which is what q lacks. A record for
each run. Expected: a distance that is about the same on both sets where only the model overfits, and larger on test
images where q does; and a bound of one draw far above that of many for runs that were trained with many.
"""

import sys
from pathlib import Path

import jax.random as jr
import record

from vgp.experiments import evaluate
from vgp.experiments.folder import open_run
from vgp.experiments.records import some_of

KEPT = Path(__file__).parent.parent / "results" / "kept"
IMAGES, DRAWS, INNER = 400, 8, 16
SAMPLES = {"draw": 50, "dlgm": 500}  # as many as a CPU has time for


def measure(folder: Path, images: int) -> list[dict]:
    """One run on both sets."""
    run = open_run(folder)
    progress, together = run.load()
    learner, key = together(progress.best[0]), jr.key(0)
    latent, samples, figures = bool(learner.encoder.latent_dim), SAMPLES[run.row.model], []
    for name, pixels in (("training", run.images.train), ("test", run.images.test)):
        some = some_of(pixels, images)
        bound, lower = -evaluate.bounds(learner, some, key, draws=DRAWS, inner=INNER if latent else 0)
        estimate = -evaluate.estimates(learner, some, key, samples=samples, inner=4 if latent else 0)
        told = {"run": folder.name, "row": run.row.name, "path": run.row.path, "trained_with": run.row.outer}
        each = {"bound": bound, "lower": lower, "estimate": estimate, "distance": bound - estimate}
        means = {key: float(values.mean()) for key, values in each.items()}
        errors = {f"{key}_stderr": float(values.std(ddof=1) / len(values) ** 0.5) for key, values in each.items()}
        figures.append({**told, "images": name, **means, **errors, "samples": samples})
        print(figures[-1], flush=True)
    return figures


def main() -> None:
    quick, wanted = "--quick" in sys.argv, [name for name in sys.argv[1:] if name != "--quick"]
    for folder in sorted(path.parent for path in KEPT.glob("*/run.json")):
        if wanted and folder.name not in wanted:
            continue
        figures = measure(folder, 4 if quick else IMAGES)
        if not quick:
            record.write(f"kept-{folder.name}", {"images": IMAGES, "draws": DRAWS, "inner": INNER}, figures)


if __name__ == "__main__":
    main()
