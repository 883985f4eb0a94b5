"""The cost of a training step of the belief networks, a VGP's beside that of a factorised q.

    python benchmarks/sbn.py [--quick]

Three seeds side by side, without dreams, and with them where the row has them; the card must have nothing else to do.
On a CPU one seed and few steps, the rows in turns, recorded as `sbn-cpu`.
Expected on an H200: a VGP's step costs at most two thirds more than a factorised q's with one layer, and half more with
two. On a CPU, where operations count and not launches, at most twice as much with linear layers, and at most a third
more through tanh units.
"""

import dataclasses
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.random as jr
import record
from dlgm import TURN, measure, prepare

from vgp.data import Bits
from vgp.experiments import rows

ROWS = ("sbn1-linear", "sbn1-linear-vgp", "sbn1", "sbn1-vgp", "sbn2", "sbn2-vgp")
JOBS = {name: dataclasses.replace(rows.find(name), dreams=0.0) for name in ROWS}
JOBS |= {f"{name}, dreams": rows.find(name) for name in ROWS if rows.find(name).dreams}
SEEDS = 3
CPU_TURN, CPU_ROUNDS = 10, 3


def main() -> None:
    quick, cpu = "--quick" in sys.argv, jax.default_backend() == "cpu"
    turn, count, seeds = (CPU_TURN if cpu else TURN), 50_000, 1 if cpu else SEEDS
    turn, count, seeds = (3, 1000, 1) if quick else (turn, count, seeds)
    pixels = Bits.pack(jr.uniform(jr.key(0), (count, 784)) < 0.13)
    with ThreadPoolExecutor(len(JOBS)) as pool:
        made = pool.map(lambda row: prepare(row, 0, seeds, pixels, turn), JOBS.values())
        made = dict(zip(JOBS, made, strict=True))
    turns = range(CPU_ROUNDS if cpu else 1)
    rounds = [{name: measure(*each[:3]) for name, each in made.items()} for _ in turns]
    figures = []
    for name, (*_, size) in made.items():
        ms = statistics.median(found[name] for found in rounds)
        figures.append({"name": name, "ms": ms, "seeds": seeds, "parameters": size})
        print(f"{name:20s} {ms:8.3f} ms", flush=True)
    if not quick:
        record.write("sbn-cpu" if cpu else "sbn", {"batch": rows.find(ROWS[0]).batch, "turn": turn}, figures)


if __name__ == "__main__":
    main()
