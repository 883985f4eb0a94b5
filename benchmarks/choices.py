"""What the settings of `dlgm1-vgp` were chosen by: K, split or not, rank; and the mean-field's gradients beside them.

    VGP_DATA=... python benchmarks/choices.py [--quick] [--rows]

Networks, latents and images of `ablation.py`, batch 100, on a CPU. First, but for `--rows`, the noise of the gradient:
the sum of the variances of all its parts, on one batch, for bounds with and without the split, after one epoch and
after ten. Then what is reached in ten epochs. Expected: K = 8 the quietest without the split, and ahead of K = 0; a
rank that loses little; of the mean-field's gradients none ahead by much.
"""

import dataclasses
import sys

import ablation
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import record

from vgp import gradients
from vgp.bounds import Importance
from vgp.experiments import rows

COMMON = {"architecture": "small", "batch": 100, "epochs": 10}
VGP = ablation.VARIANTS["VGP, 32 inputs per datapoint, r knows the warp"]
SHARED = ablation.VARIANTS["VGP, 100 shared inputs"]
MEANFIELD = ablation.VARIANTS["mean-field"]


def changed(row: rows.Row, **changes) -> rows.Row:
    return dataclasses.replace(row, **changes)


VARIANTS = {
    "32 inputs per datapoint, K = 8": VGP,
    "32 inputs, K = 0": changed(VGP, inner=((0.0, 0),)),
    "32 inputs, K = 0, split": changed(VGP, inner=((0.0, 0),), split=True),
    "32 inputs, K = 8, rank 16": changed(VGP, rank=16),
    "32 inputs, K = 8, rank 8": changed(VGP, rank=8),
    "100 shared inputs, K = 8": changed(SHARED, rank=None),
    "100 shared inputs, K = 8, rank 64": changed(SHARED, rank=64),
    "100 shared inputs, K = 8, rank 32": changed(SHARED, rank=32),
    "100 shared inputs, K = 8, rank 8": changed(SHARED, rank=8),
    "mean-field, KL in closed form": MEANFIELD,
    "mean-field, sampled, Pathwise": changed(MEANFIELD, split=False),
    "mean-field, sampled, StickingTheLanding": changed(MEANFIELD, split=False, gradient="StickingTheLanding"),
}
ESTIMATORS = {
    (f"K = {inner}", "split" if split else "unsplit", kind.__name__): (Importance(inner=inner, split=split), kind())
    for inner in (0, 8)
    for split in (False, True)
    for kind in (gradients.Pathwise, gradients.DoublyReparameterised)
}
KEYS = 40


def noise(row: rows.Row, images, epochs: int) -> list[dict]:
    """The variance of each estimator's gradient at what the row has learned in so many epochs."""
    together, params, *_ = ablation.trained(changed(row, **{**COMMON, "epochs": epochs}), images, 0)
    x, keys, found = images.train(jnp.arange(COMMON["batch"]), jr.key(0)), jr.split(jr.key(1), KEYS), []
    for (inner, split, kind), (bound, gradient) in ESTIMATORS.items():
        slopes = np.asarray(_slopes(together, params, x, bound, gradient, keys), float)
        variance = float(slopes.var(0, ddof=1).sum())
        found.append({"epochs": epochs, "inner": inner, "split": split, "gradient": kind, "variance": variance})
        print(found[-1], flush=True)
    return found


@eqx.filter_jit
def _slopes(together, params, x, bound, gradient, keys):
    def value(flat, key):
        learner = together(flat)
        return bound(learner.model.at(x), learner.encoder.at(x, learner.model), key, len(x), gradient).mean()

    return jax.lax.map(lambda key: jax.grad(value)(params, key), keys)


def main() -> None:
    rows.ARCHITECTURES["small", 1] = ((20,), ((100, 100),))
    images, found = ablation.reduced(), []
    for epochs in () if "--rows" in sys.argv else (1,) if ablation.QUICK else (1, COMMON["epochs"]):
        found += noise(VGP, images, epochs)
        if not ablation.QUICK:
            record.write("noise", {**COMMON, "keys": KEYS}, found)
    for figures in ablation.compared(COMMON, VARIANTS, images, seeds=1):
        if not ablation.QUICK:
            record.write("choices", COMMON, figures)


if __name__ == "__main__":
    main()
