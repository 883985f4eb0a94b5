"""What the warp does in a DRAW with a VGP that has been trained: how far q of a glimpse is from a mean-field.

    VGP_DATA=... python benchmarks/warps.py NAME RUN [--images 100]

For every seed of a run, over test images: the share of z's variance that comes from ξ, where a glimpse has learned
something (each variable counts by its divergence from the prior), and KL(q(z_t | x) ‖ the normal mean-field with its
means and variances), summed over the glimpses, between its two bounds of 16 inner samples. Leaves
results/warps-NAME.json. On a CPU.

Expected: a VGP that has learned by Muon with a network in r, or begun with a plain DRAW late, has become a mean-field;
one that has learned from the start without a network in r need not have.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import record

from vgp.bounds import log_q_sandwich
from vgp.experiments.folder import open_run
from vgp.experiments.records import some_of
from vgp.families.process import Collapsed

MOMENTS, INNER = 256, 16  # draws of ξ for means and variances, and inner samples


@eqx.filter_jit
def measured(model: Any, encoder: Any, x, key) -> dict[str, jax.Array]:
    """The share, the divergence from the prior, and both sides of log q less the mean-field's; nats per image."""
    keys, n = jr.split(key, 4), len(x)
    view = encoder.at(x, model).view()
    y = view.sample_latent(keys[0], n)
    z = view.conditional(y).sample(keys[1])
    collapsed, own = Collapsed(z.process), z.z.reshape(n, model.glimpses, -1).swapaxes(0, 1)
    own = own.reshape(-1, model.latents)  # as the rows of the process: glimpse by glimpse

    def moments(carry, key):
        xi = jnp.broadcast_to(jr.normal(key, (1, encoder.latent_dim)), (len(own), encoder.latent_dim))
        q: Any = collapsed.conditional(xi).base_dist
        return jax.tree.map(jnp.add, carry, (q.loc, q.loc**2, q.scale**2)), None

    zeros = (jnp.zeros_like(own),) * 3
    loc, square, left = (total / MOMENTS for total in jax.lax.scan(moments, zeros, jr.split(keys[2], MOMENTS))[0])
    warped = square - loc**2
    variance = warped + left
    divergence = 0.5 * (loc**2 + variance - 1 - jnp.log(variance))
    meanfield = dist.Normal(loc, jnp.sqrt(variance)).log_prob(own).sum(-1).reshape(-1, n).sum(0)
    sides = log_q_sandwich(view, z, y, keys[3], INNER)
    return {
        "share": jnp.sum(warped / variance * divergence) / jnp.sum(divergence),
        "divergence": jnp.sum(divergence) / n,
        "lower": jnp.mean(sides.lower - meanfield),
        "upper": jnp.mean(sides.upper - meanfield),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args()
    run = open_run(options.run)
    progress, together = run.load()
    x = some_of(run.images.test, options.images)(jnp.arange(options.images), jr.key(0)).astype(jnp.float32)
    figures = []
    for i, params in enumerate(progress.best):
        learner: Any = together(params)
        found = measured(learner.model, learner.encoder, x, jr.key(1))
        figures.append({"seed": run.seed + i, **{name: float(np.asarray(value)) for name, value in found.items()}})
        print(figures[-1], flush=True)
    settings = {"row": run.row.configuration(), "images": options.images, "moments": MOMENTS, "inner": INNER}
    record.write(f"warps-{options.name}", settings, figures)


if __name__ == "__main__":
    main()
