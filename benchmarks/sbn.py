"""The cost of a training step of the belief networks, a VGP's beside that of a factorised q.

    python benchmarks/sbn.py [--quick]

Three seeds side by side, without dreams, and with them where the row has them; the card must have nothing else to do.
Expected on an H200: a VGP's step costs at most two thirds more than a factorised q's with one layer, and half more with
two.
"""

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor

import jax.random as jr
import record
from dlgm import TURN, measure, prepare

from vgp.data import Bits
from vgp.experiments import rows

ROWS = ("sbn1-linear", "sbn1-linear-vgp", "sbn1", "sbn1-vgp", "sbn2", "sbn2-vgp")
JOBS = {name: dataclasses.replace(rows.find(name), dreams=0.0) for name in ROWS}
JOBS |= {f"{name}, dreams": rows.find(name) for name in ROWS if rows.find(name).dreams}
SEEDS = 3


def main() -> None:
    quick = "--quick" in sys.argv
    turn, count, seeds = (3, 1000, 1) if quick else (TURN, 50_000, SEEDS)
    pixels = Bits.pack(jr.uniform(jr.key(0), (count, 784)) < 0.13)
    with ThreadPoolExecutor(len(JOBS)) as pool:
        made = pool.map(lambda row: prepare(row, 0, seeds, pixels, turn), JOBS.values())
    figures = []
    for name, (compiled, constant, state, size) in zip(JOBS, list(made), strict=True):
        figures.append({"name": name, "ms": measure(compiled, constant, state), "seeds": seeds, "parameters": size})
        print(f"{name:20s} {figures[-1]['ms']:8.3f} ms", flush=True)
    if not quick:
        record.write("sbn", {"batch": rows.find(ROWS[0]).batch, "turn": turn}, figures)


if __name__ == "__main__":
    main()
