"""The cost of a training step of DRAW, plain and with a VGP at every glimpse, in one run; and its launches.

    python benchmarks/draw.py [--quick] [--only NAME]

Random images of 28 × 28; 64 glimpses, 256 units, 100 latents a glimpse. A launch is an operation of the compiled
program that the device is told to start; small ones take as long as their launch. XLA's own settings are those of
XLA_FLAGS. Expected on an H200: plain DRAW at batch 128 at most 10 ms a step, with a VGP (m = 100, K = 0) at most 1.5
times that.
"""

import dataclasses
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import record
from dlgm import measure

from vgp import loop
from vgp.amortised import draw as encoder_module
from vgp.data import Bits
from vgp.experiments import rows, step
from vgp.models import draw as model_module

PLAIN = rows.find("draw")
VGP = rows.find("draw-vgp")
STYLES = {"products": (encoder_module.read, model_module.write)}


def _read(window, images):
    across = jnp.sum(window.across[:, None, None] * images[:, :, :, None], axis=-1)  # n g h k
    seen = jnp.sum(window.down[:, None, :, :, None] * across[:, :, None], axis=-2)
    return window.intensity[:, None, None, None] * seen


def _write(window, patch):
    lines = jnp.sum(patch[..., None] * window.across[:, None], axis=2)  # n j w
    image = jnp.sum(window.down[..., None] * lines[:, :, None], axis=1)
    return image / window.intensity[:, None, None]


STYLES["sums"] = (_read, _write)


def variants() -> dict[str, tuple[rows.Row, int, str]]:
    """Row, K and the style of the attention's contractions, of everything that is timed."""
    change = dataclasses.replace
    named = {
        "draw": (PLAIN, 0, "products"),
        "draw, unroll 4": (change(PLAIN, unroll=4), 0, "products"),
        "draw, unroll 8": (change(PLAIN, unroll=8), 0, "products"),
        "draw, sums": (PLAIN, 0, "sums"),
        "draw, sums, unroll 4": (change(PLAIN, unroll=4), 0, "sums"),
        "draw, sums, batch 256": (change(PLAIN, batch=256), 0, "sums"),
        "draw, sums, batch 512": (change(PLAIN, batch=512), 0, "sums"),
        "draw, layer norm, sums": (change(PLAIN, normalised=True), 0, "sums"),
        "draw + vgp, K = 0, sums": (VGP, 0, "sums"),
        "draw + vgp, K = 0, sums, unroll 4": (change(VGP, unroll=4), 0, "sums"),
        "draw + vgp, K = 4, sums": (VGP, 4, "sums"),
        "draw + vgp, full rank, K = 0, sums": (change(VGP, rank=None), 0, "sums"),
        "draw + vgp, linearised, K = 0, sums": (change(VGP, linearised=1), 0, "sums"),
    }
    wanted = [name for flag, name in zip(sys.argv, sys.argv[1:], strict=False) if flag == "--only"]
    return {name: named[name] for name in wanted} if wanted else named


def prepare(row: rows.Row, inner: int, pixels: Bits, turn: int):
    """A compiled run of `turn` steps and the state that it starts from."""
    learner = rows.build(row, (28, 28), pixels.mean(), jr.key(0))
    flat, together = step.taken_apart(learner)
    optimizer = step.optimizer_of(row)
    state = jax.tree.map(lambda leaf: leaf[None], loop.init(flat, optimizer, jr.key(1), 10**6))
    one = step.TrainStep(
        pixels, together, row.make_bound(inner), row.make_gradient(), optimizer, row.batch, 0, row.optimizer == "adam"
    )
    return eqx.filter_jit(loop._turn).lower((one, turn), state), (one, turn), state, int(flat.size)


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


def main() -> None:
    quick = "--quick" in sys.argv
    turn, count = (2, 256) if quick else (20, 12_800)
    pixels = Bits.pack(jr.uniform(jr.key(0), (count, 784)) < 0.13)
    jobs = variants()
    made, figures = {}, []
    for style, (read, write) in STYLES.items():  # traced one after another, since the style is a global choice
        encoder_module.read, model_module.write = read, write
        for name, (row, inner, wanted) in jobs.items():
            if wanted == style:
                small = {"glimpses": 2, "batch": 8} if quick else {}
                made[name] = prepare(dataclasses.replace(row, **small), inner, pixels, turn)
    with ThreadPoolExecutor(2 if quick else 14) as pool:
        compiled = dict(zip(made, pool.map(lambda job: job[0].compile(), made.values()), strict=True))
    base = None
    for name, (_, constant, state, size) in made.items():
        ms = measure(compiled[name], constant, state)
        base = ms if base is None else base
        entry = {"name": name, "ms": ms, "ratio": ms / base, "parameters": size}
        entry["launches"] = launches(compiled[name].compiled.as_text()) / turn
        figures.append(entry)
        print(f"{name:40s} {ms:8.3f} ms  {ms / base:6.2f}  {entry['launches']:8.0f} launches  {size}", flush=True)
    if not quick:
        record.write("draw", {"turn": turn, "xla_flags": os.environ.get("XLA_FLAGS", "")}, figures)


if __name__ == "__main__":
    main()
