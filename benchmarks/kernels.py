"""Where the time of a training step goes on a GPU: the kernels that take longest, from JAX's own trace.

    python benchmarks/kernels.py ROW [--inner K] [--set KEY=VALUE ...]

for example dlgm1-vgp-shared --inner 0 --set num_data=500 --set rank=None, with keys of `vgp.experiments.rows.Row`.

Random images of 28 × 28. Kernels of the same kind are counted together. `busy` is the time in which the device works;
what is left of a step's wall time are gaps between kernels. XLA's own settings are those of XLA_FLAGS.
"""

import argparse
import collections
import dataclasses
import gzip
import json
import re
import tempfile
import time
from pathlib import Path

import jax
import jax.random as jr
from draw import prepare

from vgp.data import Bits
from vgp.experiments import rows
from vgp.experiments.settings import setting

TURN = 20  # steps in a program
SHOWN = 25


def events(folder: Path) -> list[tuple[str, float]]:
    """Name and microseconds of all that ran on the device, or on the host where there is no other."""
    (path,) = folder.glob("**/*.trace.json.gz")
    traced = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in traced if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in traced if e.get("name") == "thread_name"}
    device = {pid for pid, name in names.items() if "GPU" in name} or set(names)
    return [
        (e["name"], e["dur"])
        for e in traced
        if e.get("ph") == "X" and e["pid"] in device and "XLA" not in threads.get((e["pid"], e["tid"]), "")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("--inner", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    row = rows.find(options.row)
    row = dataclasses.replace(row, **dict(setting(text) for text in options.set))
    inner = row.inner[-1][1] if options.inner is None else options.inner
    pixels = Bits.pack(jr.uniform(jr.key(0), (row.batch * TURN, 784)) < 0.13)
    lowered, constant, state, *_ = prepare(row, inner, pixels, TURN)
    program = lowered.compile()
    state, _ = jax.block_until_ready(program(constant, state))
    started = time.perf_counter()
    state, _ = jax.block_until_ready(program(constant, state))
    wall = (time.perf_counter() - started) / TURN * 1e3
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(program(constant, state))
        found = events(Path(folder))
    taken, counts = collections.Counter(), collections.Counter()
    for name, microseconds in found:
        kind = re.sub(r"[._]?\d+$", "", name)
        taken[kind] += microseconds / TURN / 1e3
        counts[kind] += 1
    print(f"{row.name}, batch {row.batch}, K = {inner}: {wall:.3f} ms a step, busy {sum(taken.values()):.3f} ms")
    for kind, ms in taken.most_common(SHOWN):
        each = 1e3 * ms * TURN / counts[kind]
        print(f"{ms:8.3f} ms  {counts[kind] / TURN:8.1f} times  {each:8.2f} us each  {kind[:90]}")


if __name__ == "__main__":
    main()
