"""The cost of a training step of each row, as a ratio to the VAE's, all in one run; and the floor of the VGP's.

    VGP_DATA=... python benchmarks/dlgm.py [--quick] [--only NAME]

Expected on an H200: m = 500, K = 0, batch 200 at most 8 VAE steps with a learned scale, and K = 8 at most 12; rank 32
and m = 100 at most 4; 1000 epochs of dlgm1-vgp inside 4 minutes.
"""

import dataclasses
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import record

from vgp import loop
from vgp.data import Bits
from vgp.experiments import parameters, rows, step
from vgp.experiments.optimizer import optimizer_of

TURN = 250  # steps, an epoch of 50,000 at batch 200
BASE = dataclasses.replace(rows.find("dlgm1-vgp-shared"), latent_dim=None, rank=32)  # c = d


def variants() -> dict[str, tuple[rows.Row, int, int]]:
    """Row, K and seeds of everything that is timed."""
    full = dataclasses.replace(BASE, num_data=500, rank=None)
    named = {
        "vae": (rows.find("dlgm1-vae"), 0, 1),
        "vae, 3 seeds": (rows.find("dlgm1-vae"), 0, 3),
        "iwae50": (rows.find("dlgm1-iwae50"), 0, 1),
        "planar 80": (rows.find("dlgm1-nf80"), 0, 1),
        "hvi 8": (rows.find("dlgm1-hvi8"), 0, 1),
        "hvm, K = 0": (rows.find("dlgm1-hvm"), 0, 1),
        "hvm, K = 8": (rows.find("dlgm1-hvm"), 8, 1),
        "vgp m = 500, K = 0": (full, 0, 1),
        "vgp m = 500, learned scale, K = 0": (dataclasses.replace(full, scale="learned"), 0, 1),
        "vgp m = 500, K = 8": (full, 8, 1),
        "vgp m = 100 rank 32, K = 0": (BASE, 0, 1),
        "vgp m = 100 rank 32, K = 8": (BASE, 8, 1),
        "vgp m = 100 rank 32, K = 8, 3 seeds": (BASE, 8, 3),
        "dlgm1-vgp, K = 8": (rows.find("dlgm1-vgp"), 8, 1),
        "vae, two layers": (rows.find("dlgm2-vae"), 0, 1),
        "vgp, two layers, K = 8": (rows.find("dlgm2-vgp"), 8, 1),
        "dlgm1-vgp-iw5": (rows.find("dlgm1-vgp-iw5"), 4, 1),
        "dlgm2-vgp-iw5": (rows.find("dlgm2-vgp-iw5"), 4, 1),
        "dlgm1-vgp-iw20": (rows.find("dlgm1-vgp-iw20"), 0, 1),
        "dlgm2-vgp-iw20": (rows.find("dlgm2-vgp-iw20"), 0, 1),
    }
    wanted = [name for flag, name in zip(sys.argv, sys.argv[1:], strict=False) if flag == "--only"]
    return {name: named[name] for name in wanted} if wanted else named


def prepare(row: rows.Row, inner: int, seeds: int, pixels, turn: int):
    """A compiled epoch and the state that it starts from."""
    learners = [rows.build(row, (28, 28), pixels.mean(), jr.key(s)) for s in range(seeds)]
    flats, together = zip(*(parameters.taken_apart(learner) for learner in learners), strict=True)
    optimizer = optimizer_of(row, together[0].layout)
    states = [loop.init(flat, optimizer, jr.key(s), 10**6) for s, flat in enumerate(flats)]
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    one = step.TrainStep(
        pixels,
        together[0],
        row.make_bound(inner),
        row.make_gradient(),
        optimizer,
        row.batch,
        0,
        row.optimizer != "rmsprop",
        dreams=row.dreams,
    )
    compiled = eqx.filter_jit(loop._turn).lower((one, turn), state).compile()
    return compiled, (one, turn), state, int(flats[0].size)


def measure(compiled, constant, state, rounds: int = 3) -> float:
    """Milliseconds a step: the median of a few epochs, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        jax.block_until_ready(state)
        started = time.perf_counter()
        state, values = compiled(constant, state)
        jax.block_until_ready(values)
        times.append((time.perf_counter() - started) / constant[1] * 1e3)
    return sorted(times[1:])[rounds // 2]


def floor(row: rows.Row, inner: int) -> dict[str, float]:
    """Operations and bytes that a VGP step cannot do without."""
    m, d, c, b = row.num_data, row.latents[0], row.latent_dim or row.latents[0], row.batch
    p, r, h, k = (2 if row.scale == "gp" else 1) * d, row.rank or row.num_data, row.hidden[0][-1], inner + 1
    forward = 2 * b * (784 * 200 + 200 * 200) * 2 + 2 * b * 200 * d * 4  # the two networks
    forward += 2 * b * h * r * p + 2 * k * b * (m * c + m * m + (m * r if row.rank else 0) + r * p)
    factor = 2 * m**3  # factor, inverse and the products of its gradient
    parameters = 784 * 200 * 2 + h * r * p + m * c + 6 * 200 * 200
    moved = 4 * (3 * b * r * p * 2 + 7 * parameters)  # outputs written and read, Adam's reads and writes
    return {"gigaflops": (3 * forward + factor) / 1e9, "megabytes": moved / 1e6}


def ceilings() -> dict[str, float]:
    """What the card does in this run: terabytes a second of a large copy, teraflops of a large float32 product."""
    size = 8192
    x = jr.normal(jr.key(0), (size, size))
    copy, product = jax.jit(lambda x: x + 1.0), jax.jit(lambda x: x @ x)
    seconds = {}
    for name, run in (("copy", copy), ("product", product)):
        jax.block_until_ready(run(x))
        started = time.perf_counter()
        for _ in range(10):
            out = run(x)
        jax.block_until_ready(out)
        seconds[name] = (time.perf_counter() - started) / 10
    return {"terabytes": 8 * size**2 / seconds["copy"] / 1e12, "teraflops": 2 * size**3 / seconds["product"] / 1e12}


def main() -> None:
    quick = "--quick" in sys.argv
    turn, count = (3, 1000) if quick else (TURN, 50_000)
    pixels = Bits.pack(jr.uniform(jr.key(0), (count, 784)) < 0.13)
    jobs = variants()
    rates = {"terabytes": 1.0, "teraflops": 1.0} if quick else ceilings()
    print(rates, flush=True)
    with ThreadPoolExecutor(2 if quick else 14) as pool:
        made = {name: pool.submit(prepare, *job, pixels, turn) for name, job in jobs.items()}
        wait(made.values())
    figures, again = [], {}
    for name, (row, inner, seeds) in jobs.items():
        try:
            compiled, constant, state, size = made.pop(name).result()
            ms = measure(compiled, constant, state)
        except jax.errors.JaxRuntimeError as error:  # a library without a kernel for it: the others still count
            print(f"{name:40s} failed: {str(error)[:200]}", flush=True)
            continue
        again[name] = ms
        entry = {
            "name": name,
            "ms": ms,
            "ratio": ms / again.get("vae", float("nan")),
            "parameters": size,
            "seeds": seeds,
        }
        if row.family == "vgp" and row.layers == 1 and row.inputs == "shared":
            least = floor(row, inner)
            needs = least["gigaflops"] / rates["teraflops"], 1e-3 * least["megabytes"] / rates["terabytes"]
            entry["floor"] = {**least, "ms": max(needs), "ratio": ms / max(needs)}
        figures.append(entry)
        print(f"{name:40s} {ms:8.4f} ms  {entry['ratio']:6.2f}  {size} {entry.get('floor', '')}", flush=True)
        if not quick:  # what has been measured is kept, whatever comes after
            record.write("dlgm", {"batch": BASE.batch, "turn": turn, **rates}, figures)


if __name__ == "__main__":
    main()
