"""The cost of a training step of DRAW, plain and with a VGP at every glimpse, in one run; and its launches.

    python benchmarks/draw.py [--quick] [--only NAME ...] [--name RECORD]

Random images of 28 × 28 in batches of 128; 64 glimpses, compiled by eight, 256 units, 100 latents a glimpse. A launch
is an operation of the compiled program that the device is told to start; small ones take as long as their launch. XLA's
own settings are those of XLA_FLAGS. Beside each step stands its floor: the operations and bytes that it cannot do
without, at the rates of a large product and a large copy, and its launches, at the rate of a chain of small operations.
Expected on an H200: plain DRAW at batch 128 at most 10 ms a step, with a VGP (m = 100, K = 0) at most 1.5 times that.
"""

import dataclasses
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import record
from dlgm import ceilings, measure

from vgp import loop
from vgp.data import Bits
from vgp.experiments import parameters, rows, step
from vgp.experiments.optimizer import NARROW, optimizer_of
from vgp.experiments.parameters import Layout
from vgp.models.attention import RAW

PLAIN = rows.find("draw")
VGP = rows.find("draw-vgp")


USUAL, HALF = None, "bfloat16"  # how exact products are


def variants() -> dict[str, tuple[rows.Row, int, str | None]]:
    """Row, K and the precision of products of everything that is timed."""
    change = dataclasses.replace
    named = {
        "draw": (PLAIN, 0, USUAL),
        "draw, one glimpse at a time": (change(PLAIN, unroll=1), 0, USUAL),
        "draw, unroll 4": (change(PLAIN, unroll=4), 0, USUAL),
        "draw, unroll 16": (change(PLAIN, unroll=16), 0, USUAL),
        "draw, bfloat16 products": (PLAIN, 0, HALF),
        "draw, batch 256": (change(PLAIN, batch=256), 0, USUAL),
        "draw, batch 512": (change(PLAIN, batch=512), 0, USUAL),
        "draw, layer norm": (change(PLAIN, normalised=True), 0, USUAL),
        "draw + vgp, K = 0": (VGP, 0, USUAL),
        "draw + vgp, K = 4": (VGP, 4, USUAL),
        "draw + vgp, K = 4, batch 256": (change(VGP, batch=256), 4, USUAL),
        "draw + vgp, K = 4, batch 512": (change(VGP, batch=512), 4, USUAL),
        "draw + vgp, full rank, K = 0": (change(VGP, rank=None), 0, USUAL),
        "draw + vgp, rank 16, K = 0": (change(VGP, rank=16), 0, USUAL),
        "draw + vgp, r a network, K = 0": (change(VGP, linearised=0, auxiliary_width=200), 0, USUAL),
    }
    wanted = [name for flag, name in zip(sys.argv, sys.argv[1:], strict=False) if flag == "--only"]
    return {name: named[name] for name in wanted} if wanted else named


def prepare(row: rows.Row, inner: int, pixels: Bits, turn: int):
    """A compiled run of `turn` steps and the state that it starts from."""
    learner = rows.build(row, (28, 28), pixels.mean(), jr.key(0))
    flat, together = parameters.taken_apart(learner)
    optimizer = optimizer_of(row, together.layout)
    state = jax.tree.map(lambda leaf: leaf[None], loop.init(flat, optimizer, jr.key(1), 10**6))
    one = step.TrainStep(
        pixels,
        together,
        row.make_bound(inner),
        row.make_gradient(),
        optimizer,
        row.batch,
        0,
        row.optimizer != "rmsprop",
    )
    return eqx.filter_jit(loop._turn).lower((one, turn), state), (one, turn), state, int(flat.size), together.layout


def launches(text: str) -> float:
    """How many operations one step starts: those of the inner loops times their turns, and those around them."""
    blocks = {
        match[1]: match[0] for match in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) \(.*?^}", text, re.MULTILINE | re.DOTALL)
    }
    begins = r" (?:fusion|custom-call|copy|reduce|sort|scatter|convolution|dot|dynamic-update-slice|cholesky)\("

    def count(name: str) -> float:
        body = blocks.get(name, "")
        total = len(re.findall(begins, body))
        for line in body.splitlines():
            if " while(" in line:
                inside = re.search(r"body=%?([\w.\-]+)", line)
                turns = re.search(r"known_trip_count[^\d]*(\d+)", line)
                total += (int(turns[1]) if turns else 1) * (count(inside[1]) if inside else 0)
        return total

    outer = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    return count(outer[1]) if outer else float("nan")


def floor(row: rows.Row, inner: int, layout: Layout) -> dict[str, float]:
    """Operations and bytes that a step cannot do without."""
    b, u, z, side = row.batch * row.glimpses, row.hidden[0][-1], row.latents[0], 28
    given, process = 2 * z, 0.0  # numbers that the heads give; products of the process
    m, factor = row.num_data, 0.0
    if row.family == "vgp":
        p, r, c = (2 if row.scale == "gp" else 1) * z, row.rank or m, row.latent_dim or z
        given += r * p
        process = (inner + 1) * (m * c + m * m + (m * r if row.rank else 0) + r * p)
        factor = 2 * m**3
    numbers = 4 * u + 4 * u + 2 * RAW + row.writing**2 + given  # outputs of the layers, of each image and glimpse
    weights = (2 * row.reading**2 + 2 * u + z + u) * 4 * u + u * (numbers - 8 * u)
    windows = sum(times * (n * side**2 + n**2 * side) for times, n in ((2, row.reading), (1, row.writing)))
    steps = 0.0  # of Newton and Schulz, five for every matrix that Muon moves
    for shape, blocks in zip(layout.shapes, layout.blocks, strict=True):
        if blocks and min(shape[0], shape[1] // blocks) > NARROW:
            short, long = sorted((shape[0], shape[1] // blocks))
            steps += blocks * 5 * (4 * short**2 * long + 2 * short**3)
    moved = 4 * (4 * b * numbers + 7 * sum(layout.sizes))  # outputs and their slopes, written and read; the optimiser's
    return {"gigaflops": (3 * 2 * b * (weights + windows + process) + factor + steps) / 1e9, "megabytes": moved / 1e6}


def chained() -> float:
    """Microseconds a launch in a chain of small operations, each of which waits for the one before it."""

    def step(x, _):
        for _ in range(8):
            x = jnp.tanh(x @ x)
        return x, None

    program = jax.jit(lambda x: jax.lax.scan(step, x, length=500)[0]).lower(jnp.eye(128)).compile()
    seconds, x = [], jnp.eye(128)
    for _ in range(4):
        started = time.perf_counter()
        jax.block_until_ready(program(x))
        seconds.append(time.perf_counter() - started)
    return min(seconds) / launches(program.as_text()) * 1e6


def main() -> None:
    quick = "--quick" in sys.argv
    turn, count = (2, 256) if quick else (20, 12_800)
    pixels = Bits.pack(jr.uniform(jr.key(0), (count, 784)) < 0.13)
    jobs = variants()
    made, figures = {}, []
    rates = {"terabytes": 1.0, "teraflops": 1.0} if quick else ceilings()
    rates["microseconds"] = chained()
    print(rates, flush=True)
    for name, (row, inner, precision) in jobs.items():  # traced one after another, since precision is a global choice
        small = {"glimpses": 2, "batch": 8, "unroll": 1} if quick else {}
        with jax.default_matmul_precision(precision):
            made[name] = prepare(dataclasses.replace(row, **small), inner, pixels, turn)
    with ThreadPoolExecutor(2 if quick else 14) as pool:
        compiled = {name: pool.submit(job[0].compile) for name, job in made.items()}
        wait(compiled.values())
    told = dict(zip(sys.argv, sys.argv[1:], strict=False)).get("--name", "draw")
    base = None
    for name, (_, constant, state, size, layout) in made.items():
        try:
            program = compiled[name].result()
            ms = measure(program, constant, state)
        except jax.errors.JaxRuntimeError as error:  # a library without a kernel for it: the others still count
            print(f"{name:40s} failed: {str(error)[:200]}", flush=True)
            continue
        base = ms if base is None else base
        entry = {"name": name, "ms": ms, "ratio": ms / base, "parameters": size}
        entry["launches"] = launches(program.compiled.as_text()) / turn
        row, inner, precision = jobs[name]
        if precision is USUAL:  # as of the product that gives the rate
            least = floor(row, inner, layout)
            needs = least["gigaflops"] / rates["teraflops"], 1e-3 * least["megabytes"] / rates["terabytes"]
            chain = 1e-3 * entry["launches"] * rates["microseconds"]
            entry["floor"] = {**least, "ms": max(needs), "launches_ms": chain}
        figures.append(entry)
        print(f"{name:40s} {ms:8.3f} ms  {ms / base:6.2f}  {entry['launches']:8.0f} launches  {size}", flush=True)
        if not quick:  # what has been measured is kept, whatever comes after
            record.write(told, {"turn": turn, "xla_flags": os.environ.get("XLA_FLAGS", ""), **rates}, figures)


if __name__ == "__main__":
    main()
