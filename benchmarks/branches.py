"""Rows that branch from one trunk: trained, evaluated, recorded, without a seed's luck between them.

    VGP_DATA=... python benchmarks/branches.py draw-sketch draw-sketch-vgp --at 100,200,300 --fall 20 --seconds 500

The first row is trained at a constant rate (`vgp train --tail 0`), the trunk. Before each number of epochs in `--at`,
the last `--fall` of them are a run of its own for every row, begun with the trunk (`--start`), in which the rate falls
to zero. The rows of one stage then differ by these epochs only: two runs of DRAW from the start differ by more with the
seed than they do with the family. With `--apart EPOCH` the other rows leave the trunk there: each goes on from that
epoch at the same constant rate by itself, and has its branches from its own. With `--apart 0` they share nothing: every
row has a trunk of its own from the start, and only several seeds tell what is luck. Branches go `--at-once` beside a
trunk; with `--here` everything goes in this one process, a run after the other, and no step is compiled twice.

A row may have options of `vgp train` behind its name, in quotes: "draw-sketch-vgp --set reach=1.0". `--options` are for
all rows.

A training still under way at `--seconds` is interrupted, and the same command goes on where it was. With `--keep` the
branches of the last stage leave what they have learned in that folder. See `runs.py` for GPUs that are shared.
"""

import argparse
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runs import evaluated, here, shared, usual, vgp


class Branches:
    """The runs of a trunk and its branches, in folders of their own under `--runs`."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.started = options, time.monotonic()
        self.rows = {name: more for name, *more in map(str.split, options.rows)}
        self.first = next(iter(self.rows))
        data, samples = usual(self.first)
        self.data, self.samples = ["--data", options.data or data], options.samples or samples
        self.vgp = here if options.here else vgp

    def train(self, name: str, folder: Path, epochs: int, *more: str) -> bool:
        """Begins or goes on; has it come to its end?"""
        left = self.options.seconds - (time.monotonic() - self.started)
        arguments = ["train", name, *self.data, "--protocol", self.options.protocol, "--epochs", str(epochs)]
        arguments += ["--seeds", str(self.options.seeds), "--out", str(folder), "--no-early"]
        arguments += ["--resume"] if (folder / "run.json").exists() else ["--fresh", *more]
        arguments += [*self.options.options.split(), *self.rows[name]]
        return left > 0 and self.vgp(*arguments, log=folder.with_suffix(".log"), seconds=left) == 0

    def branch(self, name: str, trunk: Path, stage: int) -> str:
        """The last epochs before a stage, evaluated; what was found, or where to look."""
        folder, log = self.options.runs / f"{name}-{stage}", self.options.runs / f"{name}-{stage}.log"
        if evaluated(folder) < self.options.fall:
            if not self.train(name, folder, self.options.fall, "--tail", "1", "--start", str(trunk)):
                return f"{name} before epoch {stage} is not done; see {log}"
            options = ["--samples", str(self.samples), "--results", str(self.options.results)]
            self.vgp("evaluate", str(folder), *options, log=log)
        if self.options.keep and stage == self.options.at[-1]:
            self.vgp("keep", str(folder), "-o", str(self.options.keep / name), log=log)
        return "\n".join(line for line in log.read_text().splitlines() if " epoch " in line and ": bound " in line)

    def grown(self, name: str, there: Path, epochs: int, *more: str) -> bool:
        """The row's trunk at this epoch of its own, copied; has it come there?"""
        trunk = self.options.runs / f"{name}-trunk"
        if there.exists():
            return True
        if not self.train(name, trunk, epochs, "--tail", "0", *more):
            print(f"{trunk.name} has not come to epoch {epochs}; see {trunk.with_suffix('.log')}", flush=True)
            return False
        shutil.copytree(trunk, there.with_suffix(".part"), dirs_exist_ok=True)
        there.with_suffix(".part").rename(there)
        return True

    def trunk(self, name: str, stage: int) -> Path | None:
        """What the row branches from before a stage: the first row's trunk, or its own that may have left that one."""
        runs, first, apart = self.options.runs, self.first, self.options.apart
        epochs, root, more = stage - self.options.fall, runs / f"{first}-trunk-root", ()
        own = first if apart is None else name
        if apart:
            if not self.grown(first, root, apart):
                return None
            if apart == epochs:
                return root
            if own != first:
                epochs, more = epochs - apart, ("--start", str(root))
        there = runs / f"{own}-trunk-{stage}"
        return there if self.grown(own, there, epochs, *more) else None

    def grow(self) -> None:
        """The trunks, and at every stage their branches beside them."""
        waiting = []
        with ThreadPoolExecutor(self.options.at_once) as pool:
            for stage in self.options.at:
                for name in self.rows:
                    if there := self.trunk(name, stage):
                        if self.options.here:
                            print(self.branch(name, there, stage), flush=True)
                        else:
                            waiting.append(pool.submit(self.branch, name, there, stage))
            for told in waiting:
                print(told.result(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", help="rows of one model; the first is the trunk's")
    parser.add_argument("--at", type=lambda told: [*map(int, told.split(","))], default=[100, 200, 300])
    parser.add_argument("--fall", type=int, default=20, help="epochs in which the rate falls")
    parser.add_argument(
        "--apart", type=int, help="the epoch at which the rows part, before their branches do; 0: from the start"
    )
    parser.add_argument("--at-once", type=int, default=1, help="branches side by side, beside the trunk")
    parser.add_argument("--here", action="store_true", help="in this process, one after the other")
    parser.add_argument("--data", help="by default mnist, or sketch for rows of it")
    parser.add_argument("--protocol", default="fixed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--options", default="", help="of vgp train, for all runs, such as --options='--rate 1e-3'")
    Branches(shared(parser)).grow()


if __name__ == "__main__":
    main()
