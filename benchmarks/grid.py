"""Fine structure: a VGP on a grid of 64 × 64 inputs beside one with 64 free ones, on sixteen narrow modes.

    python benchmarks/grid.py [--quick]

The target is normalised, so that an ELBO is minus the divergence. Both families start in the same place and take as
many steps. Expected: the whole sandwich of the grid above that of the free inputs.
"""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import record

import vgp
from vgp.families import Place
from vgp.meanfield import Normal

AT, WIDTH, SPREAD = (-3.0, -1.0, 1.0, 3.0), 0.25, 2.3
CENTRES = jnp.asarray([(x, y) for x in AT for y in AT])


def log_density(z):
    away = jnp.sum((z - CENTRES) ** 2, axis=1) / WIDTH**2
    return jax.nn.logsumexp(-0.5 * away) - jnp.log(len(CENTRES) * 2 * jnp.pi * WIDTH**2)


def families(points: int, seed: int) -> dict[str, vgp.VGP]:
    key = jr.key(seed)
    grid = vgp.Grid(points, latent_dim=2)
    return {
        f"grid of {points} × {points}": vgp.VGP(2, inputs=grid, meanfield=Normal(2, "gp", 0.5), key=key),
        "64 free inputs": vgp.VGP(2, 64, meanfield=Normal(2, "gp", 0.5), key=key),
    }


def main() -> None:
    quick = "--quick" in sys.argv
    steps, seeds, points = (20, 1, 8) if quick else (8000, 3, 64)
    target, start = vgp.target(log_density, jnp.zeros(2)), Place(jnp.zeros(2), jnp.full(2, SPREAD))
    figures = []
    for seed in range(seeds):
        for name, family in families(points, seed).items():
            fit = vgp.fit(target, family, key=jr.key(100 + seed), steps=steps, start=start, progress=False)
            figures.append(
                {
                    "name": name,
                    "seed": seed,
                    "lower": fit.elbo.lower,
                    "upper": fit.elbo.upper,
                    "stderr": fit.elbo.stderr,
                    "seconds": fit.seconds,
                }
            )
            print(
                f"{name:20s} seed {seed}  {fit.elbo.lower:8.3f} {fit.elbo.upper:8.3f}  {fit.seconds:6.0f} s", flush=True
            )
    if not quick:
        record.write("grid", {"steps": steps, "modes": len(CENTRES), "width": WIDTH}, figures)


if __name__ == "__main__":
    main()
