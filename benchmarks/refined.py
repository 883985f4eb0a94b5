"""What q of a kept DRAW lacks: is it the encoder that is wrong about an image, or a family too poor for a glimpse?

    VGP_DATA=... python benchmarks/refined.py [--quick] [RUN ...]

For some images of each set, from a trained model that stays as it is: the encoder's q of every glimpse is given a shift
of its mean and a factor of its scale for that one image, learned by Adam on the bound ("shifted"). Plain DRAW's is
also given a matrix, z = μ + σ (I + U Vᵀ) ε of low rank for every glimpse, so that the variables of a glimpse depend on
each other in whatever way this image asks ("correlated"). The draws are the same in all of these. On a CPU.

Expected: on sketches shifts gain more than ten nats of the bound, on MNIST less than one; correlations beside them
nothing that can be told from zero. Each run has a record.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import optax
import record

from vgp.divergence import gaussian_kl
from vgp.experiments.folder import open_run
from vgp.experiments.records import some_of
from vgp.experiments.rows import Learner
from vgp.families.process import Collapsed, log_standard_normal
from vgp.models.attention import read, window
from vgp.models.base import bernoulli_log_prob

KEPT = Path(__file__).parent.parent / "results" / "kept"
RUNS = ("draw-mnist-fixed", "draw-vgp-mnist-fixed", "draw-sketch-sketch-fixed")
IMAGES, DRAWS, STEPS, RANK = 24, 4, 300, 8  # draws of an image in a step
TOLD = 64  # draws of an image for a figure
RATE, SLOWER = 0.03, 0.003  # of shifts, and of correlations
Free = dict[str, Any]  # what an image has of its own, glimpses × images × …


def bounds(learner: Learner, x, free: Free, key, draws: int):
    """The bound of one draw, draws × images: all glimpses in turn, with what each image has of its own."""
    model: Any = learner.model
    encoder: Any = eqx.tree_at(lambda q: q.head, learner.encoder, learner.encoder.head.prepared())
    n = draws * len(x)
    tiled = jnp.tile(x, (draws, 1))
    images = tiled.reshape(n, *model.shape)
    free = {name: jnp.tile(each, (1, draws, *[1] * (each.ndim - 2))) for name, each in free.items()}
    noise_key, key = jr.split(key)
    noise = jr.normal(noise_key, (model.glimpses, n, model.latents))
    xis = jr.normal(key, (model.glimpses, n, encoder.latent_dim))
    standard = dist.Normal(jnp.zeros((n, model.latents)), 1.0).to_event(1)

    @jax.checkpoint
    def glimpse(carry, inputs):
        memory, canvas = carry
        noise, xi, own, reads, writes = inputs
        raw = encoder.reader(canvas.memory.h)
        there = window(raw if reads is None else raw + reads, encoder.size, model.shape, reads=True)
        lacks = images - jax.nn.sigmoid(canvas.logits).reshape(images.shape)
        seen = jnp.stack(read(there, images, lacks), axis=1).reshape(n, -1)
        memory = encoder.cell(memory, seen, canvas.memory.h)
        process = encoder.process(memory.h)
        if "shift" in own:
            local = process.local.loc + own["shift"], process.local.scale * jnp.exp(own["log_factor"])
            process = eqx.tree_at(lambda p: (p.local.loc, p.local.scale), process, local)
        view = Collapsed(process)
        q: Any = view.conditional(xi)
        normal, lost = q.base_dist, jnp.zeros(n)
        if "u" in own:
            noise, variance, volume = correlated(own["u"], own["v"], noise)
            z = normal.loc + normal.scale * noise
            # KL(N(μ, Σ) ‖ N(0, I)): like that of the mean-field but for the diagonal of Σ and its volume.
            lost = 0.5 * jnp.sum(normal.scale**2 * (variance - 1), axis=-1) - volume
        else:
            z = normal.loc + normal.scale * noise
        lost = lost + gaussian_kl(q, standard)
        if encoder.latent_dim:
            lost = lost + log_standard_normal(xi) - view.posterior(z).log_prob(xi)
        return (memory, model.advance(canvas, z, writes)), lost

    start = encoder.cell.begin(n), model.begin(n)
    (_, canvas), lost = jax.lax.scan(glimpse, start, (noise, xis, free, encoder.path, model.path))
    return (bernoulli_log_prob(canvas.logits, tiled) - lost.sum(0)).reshape(draws, len(x))


def correlated(u, v, noise):
    """(I + U Vᵀ) ε, the diagonal of its covariance, and log |I + U Vᵀ|."""
    mixed = noise + jnp.einsum("ndr,nr->nd", u, jnp.einsum("ndr,nd->nr", v, noise))
    own = jnp.einsum("ndr,nds->nrs", v, v)
    variance = 1 + 2 * jnp.sum(u * v, axis=-1) + jnp.einsum("ndr,nrs,nds->nd", u, own, u)
    volume = jnp.linalg.slogdet(jnp.eye(u.shape[-1]) + jnp.einsum("ndr,nds->nrs", v, u))[1]
    return mixed, variance, volume


def learned(bound: Callable, free: Free, key, steps: int) -> Free:
    """What each image's own part comes to by Adam, at a rate that falls to zero."""
    rates = {"fast": optax.adam(optax.cosine_decay_schedule(RATE, steps))}
    rates["slow"] = optax.adam(optax.cosine_decay_schedule(SLOWER, steps))
    optimizer = optax.multi_transform(rates, {name: "slow" if name in "uv" else "fast" for name in free})

    @jax.jit
    def run(free, key):
        def step(carry, key):
            free, state = carry
            slope = jax.grad(lambda free: -bound(free, key, DRAWS).mean(0).sum())(free)
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(free, updates), state), None

        return jax.lax.scan(step, (free, optimizer.init(free)), jr.split(key, steps))[0][0]

    return run(free, key)


def measure(name: str, images: int, steps: int, told: int) -> list[dict]:
    """One run, on images of the test set and as many that it learned from."""
    run = open_run(KEPT / name)
    progress, together = run.load()
    learner: Learner = together(progress.best[0])
    model: Any = learner.model
    figures = []
    for kind, pixels in (("test", run.images.test), ("training", run.images.train)):
        x = some_of(pixels, images)(jnp.arange(images), jr.key(0)).astype(jnp.float32)
        zeros = jnp.zeros((model.glimpses, images, model.latents))
        shifted = {"shift": zeros, "log_factor": zeros}
        u = 0.01 * jr.normal(jr.key(3), (*zeros.shape, RANK))
        ways = {"as the encoder says": {}, "shifted": shifted}
        if not learner.encoder.latent_dim:
            ways["shifted and correlated"] = {**shifted, "u": u, "v": jnp.zeros_like(u)}

        def bound(free, key, draws, x=x):
            return bounds(learner, x, free, key, draws)

        value = jax.jit(lambda free, key, bound=bound: bound(free, key, DRAWS))
        each: dict[str, np.ndarray] = {}
        for way, free in ways.items():
            free = learned(bound, free, jr.key(1), steps) if free else free
            keys = jr.split(jr.key(2), told // DRAWS)
            each[way] = -np.concatenate([np.asarray(value(free, key)) for key in keys]).mean(0, dtype=np.float64)
            entry = {"run": name, "row": run.row.name, "images": kind, "q": way, "bound": float(each[way].mean())}
            for other, values in list(each.items())[:-1]:
                gain = values - each[way]
                entry[f"less than {other}"] = [float(gain.mean()), float(gain.std(ddof=1) / len(gain) ** 0.5)]
            figures.append(entry)
            print(entry, flush=True)
    return figures


def main() -> None:
    quick = "--quick" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or RUNS
    settings = {"images": IMAGES, "steps": STEPS, "draws": DRAWS, "told": TOLD, "rank": RANK}
    settings |= {"rate": RATE, "slower": SLOWER}
    for name in names:
        figures = measure(name, *((2, 2, DRAWS) if quick else (IMAGES, STEPS, TOLD)))
        if not quick:
            record.write(f"refined-{name}", settings, figures)


if __name__ == "__main__":
    main()
