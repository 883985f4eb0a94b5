"""The cost of one step, as a ratio to AutoIAFNormal's, and how it grows with d and with m.

    python benchmarks/step.py

Expected: num_data=64, inner=16, 64 draws in two dimensions at most 4 steps of AutoIAFNormal(num_flows=3) at 64
particles; exponent in d at most 1.1 from 10³ to 10⁵ (zero mean function, latent_dim 8, num_data 64, inner 0),
in time and in memory; exponent in m at most 3.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import record
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoIAFNormal
from threadpoolctl import threadpool_limits

import vgp
from vgp import loop, optimizers
from vgp.fit import Assemble, Step
from vgp.result import Settings
from vgp.targets import shapes


def _normal(z):
    return -0.5 * jnp.sum(z**2)


def our_step(target, family, bound, draws=64):
    """One step of `vgp.fit`, and the state that it starts from."""
    optimizer = optimizers.named(None, target.dim)
    params, assemble = Assemble.taken_apart(family, flat=True)
    gradient = vgp.gradients.DoublyReparameterised() if bound.inner else vgp.gradients.StickingTheLanding()
    settings = Settings(bound, gradient, "adam", draws, 1, None, 10_000, True)
    return Step(target, assemble, settings, optimizer), loop.init(params, optimizer, jr.key(1), 10_000)


def compiled_steps(step, state, count, alone=True):
    """`count` steps as one program, compiled as `loop.run` compiles it."""

    def body(_, state):
        return step(state)[0]

    program = jax.jit(lambda state: jax.lax.fori_loop(0, count, body, state)).lower(state)
    return program.compile(compiler_options={"xla_cpu_multi_thread_eigen": not alone})


def per_step(program, state, count, repeats=7):
    """The median time of a step, in milliseconds."""
    jax.block_until_ready(program(state))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(program(state))
        times.append((time.perf_counter() - started) / count * 1e3)
    return float(np.median(times))


def ratio_to_flow() -> dict:
    """Both steps timed in turn in one process, so that the machine's mood cancels."""
    target = shapes.x_shape()
    count = 300
    step, state = our_step(target, vgp.VGP(2, 64, key=jr.key(0)), vgp.bounds.Importance(inner=16))
    ours = compiled_steps(step, state, count)
    driven = vgp.VGP(2, 64, meanfield=vgp.meanfield.Normal(2, "gp", 0.5), key=jr.key(0))
    driven_step, driven_state = our_step(target, driven, vgp.bounds.Importance(inner=16))
    default = compiled_steps(driven_step, driven_state, count)

    def model():
        space = dist.ImproperUniform(dist.constraints.real_vector, (), (2,))
        numpyro.factor("log_p", target.log_prob(numpyro.sample("u", space)))

    svi = SVI(model, AutoIAFNormal(model, num_flows=3), optax.adam(1e-2), Trace_ELBO(num_particles=64))
    svi_state = svi.init(jr.key(0))
    theirs = jax.jit(lambda s: jax.lax.fori_loop(0, count, lambda _, s: svi.update(s)[0], s)).lower(svi_state).compile()
    rounds = [
        {
            "vgp_ms": per_step(ours, state, count),
            "vgp_driven_scale_ms": per_step(default, driven_state, count),
            "iaf_ms": per_step(theirs, svi_state, count),
        }
        for _ in range(3)
    ]
    figures = {"rounds": rounds, "floor_ms": floor()}
    figures["ratio"] = float(np.median([r["vgp_ms"] / r["iaf_ms"] for r in rounds]))
    figures["driven_ratio"] = float(np.median([r["vgp_driven_scale_ms"] / r["iaf_ms"] for r in rounds]))
    figures["whole_fit_ratio"], figures["whole_fit_seconds"] = whole_fits(svi, target)
    return figures


def floor() -> float:
    """What no version goes below: two (1088, 64) by (64, 64) products, forward and back, and 1088 × 64 exponentials."""
    rows, weights, count = jnp.ones((1088, 64)), 0.01 * jnp.ones((64, 64)), 1000

    def body(_, x):
        return jnp.exp(-(x @ weights) @ weights.T)

    program = jax.jit(lambda x: jax.lax.fori_loop(0, count, body, x)).lower(rows)
    return per_step(program.compile(compiler_options={"xla_cpu_multi_thread_eigen": False}), rows, count)


def whole_fits(svi, target, steps=6000) -> tuple[float, dict]:
    """What a user waits for: 6000 steps from scratch, compilation included, as a ratio."""
    jax.clear_caches()
    started = time.perf_counter()
    jax.block_until_ready(svi.run(jr.key(0), steps, progress_bar=False).losses)
    theirs = time.perf_counter() - started
    jax.clear_caches()
    started = time.perf_counter()
    vgp.fit(target, vgp.VGP(2, 64, key=jr.key(0)), key=jr.key(1), steps=steps, progress=False)
    ours = time.perf_counter() - started
    return ours / theirs, {"vgp": ours, "iaf": theirs}


def slope(sizes, values) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(sizes, build) -> dict:
    """Time and memory of a step over a range of sizes, with their exponents."""
    rows = []
    for size in sizes:
        step, state = build(size)
        count = 5
        program = compiled_steps(step, state, count, alone=False)
        memory = program.memory_analysis()
        held = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        rows.append({"size": size, "ms": per_step(program, state, count, 5), "megabytes": held / 1e6})
        print(rows[-1], flush=True)
    exponents = {kind: slope(sizes, [row[kind] for row in rows]) for kind in ("ms", "megabytes")}
    return {"rows": rows, "exponents": exponents}


def vgp_of(dim, num_data):
    target = vgp.target(_normal, jnp.zeros(dim))
    family = eqx.filter_jit(lambda k: vgp.VGP(dim, num_data, 8, mean="zero", key=k))(jr.key(0))
    return our_step(target, family, vgp.bounds.Importance(inner=0))


@threadpool_limits.wrap(1, "blas")  # as `loop.run` does
def main() -> None:
    figures = {"two_dimensions": ratio_to_flow()}
    print(figures["two_dimensions"], flush=True)
    figures["latent_variables"] = growth([1000, 3000, 10_000, 30_000, 100_000], lambda d: vgp_of(d, 64))
    figures["variational_data"] = growth([64, 128, 256, 512, 1024], lambda m: vgp_of(10, m))
    for name in ("latent_variables", "variational_data"):
        print(name, figures[name]["exponents"])
    configuration = {"draws": 64, "num_data": 64, "inner": 16, "scaling": "zero mean, latent_dim 8, inner 0"}
    record.write("step", configuration, figures)


if __name__ == "__main__":
    main()
