"""Rows of the tables on one GPU: trained, evaluated, recorded.

    VGP_DATA=... python benchmarks/runs.py dlgm1-vae:fixed:300:3 "draw:fixed:300:1 --batch 256" --seconds 500

A job is ROW:PROTOCOL:EPOCHS:SEEDS, and options of `vgp train` where it has some. With several numbers of epochs, as in
draw-sketch:fixed:100,200:1, a run is evaluated at each. With ROW:PROTOCOL:EPOCHS:SEEDS:FOLDER a run begins with what
the one in FOLDER, among `--runs`, has learned. Jobs begin in order, `--at-once` of them at a time.

A training still under way at `--seconds` is interrupted, and the same command goes on where it was. With `--finish` a
run that cannot get there in time ends earlier, at the epoch that it reaches at its pace, so that its learning rate has
fallen to zero by then, and is evaluated. With `--keep FOLDER` every run leaves there what it has learned, as `vgp keep`
does, when it ends and when it is interrupted: small enough to bring home from a card that is not one's own.

Small models share a GPU well under NVIDIA's multi-process service (`nvidia-cuda-mps-control -d`); runs of DRAW gain
little by it, and are better trained one after another. XLA's search for the fastest kernels among its own is left out
at first, since it takes minutes on a busy GPU; a program that fails so is compiled again with it. With `--search` it
is not left out: steps of DRAW are then shorter by a fifth, which a long run on a GPU of its own wants. XLA_FLAGS of the
environment are added to ours.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import typer

from vgp.checkpoint import read
from vgp.experiments import rows

FLAGS = ("--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cublaslt=false", "")
INTERRUPTED = 130
GRACE = 60  # seconds for the epoch under way and the save
BEGINS = 30  # seconds in which a run that goes on reads its data and what it has compiled before


def vgp(*arguments: str, log: Path, flags: str = "", seconds: float | None = None) -> int:
    """Runs the command; Ctrl-C after so many seconds."""
    code = "from vgp.cli import app; app()"
    both = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, "XLA_FLAGS": both}
    with log.open("a") as file:
        running = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
        try:
            return running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(2)
        try:
            return running.wait(GRACE)
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()


def here(*arguments: str, log: Path, seconds: float | None = None) -> int:
    """Runs the command in this process, where a step that was compiled before is not compiled again."""
    from vgp.cli import app

    def interrupt(*_):
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, interrupt)
    with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
        signal.setitimer(signal.ITIMER_REAL, 0 if seconds is None else min(seconds, 1e8))
        try:
            return app(arguments, standalone_mode=False) or 0
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def usual(name: str) -> tuple[str, int]:
    """The data of a row's table, and how many importance samples its runs are evaluated with."""
    row = rows.find(name)
    return "sketch" if row.data == "sketch" else "mnist", 50 if row.model == "draw" else 5000


def shared(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What is asked of all who train, and the options."""
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--samples", type=int, help="importance samples; by default 5000, and 50 for DRAW")
    parser.add_argument("--keep", type=Path, help="a folder for copies of what the runs have learned")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    return options


def reachable(folder: Path, seconds: float) -> int:
    """The epoch that a run reaches in so many seconds at its pace."""
    arrays, meta = read(folder / "state.vgp")
    pace = meta["pace"] or meta["seconds"]
    return len(arrays["history"]) + max(1, int((seconds - BEGINS) / pace))


def evaluated(folder: Path) -> int:
    """The epoch at which a run was last evaluated."""
    return max((json.loads(path.read_text())["epochs"] for path in folder.glob("record-*.json")), default=0)


def job(spec: str, options: argparse.Namespace, started: float) -> str:
    """Trains and evaluates one row; the last lines of its log."""
    which, *more = spec.split()
    name, protocol, stages, seeds, *start = which.split(":")
    data, samples = usual(name)
    folder = options.runs / which.replace(":", "-").replace(",", "-")
    log = options.runs / f"{folder.name}.log"
    samples = options.samples or samples
    for epochs in map(int, stages.split(",")):
        if evaluated(folder) >= epochs:
            continue
        begun, flags, code = (folder / "run.json").exists(), "", 1
        left = options.seconds - (time.monotonic() - started)
        if begun and options.finish:
            epochs = min(epochs, reachable(folder, left))
        arguments = ["train", name, "--data", data, "--protocol", protocol, "--epochs", str(epochs), "--seeds", seeds]
        arguments += ["--out", str(folder), "--no-early", *more]
        if start and not begun:
            arguments += ["--start", str(options.runs / start[0])]
        for flags in FLAGS[::-1] if options.search else FLAGS:
            kind = "--resume" if begun else "--fresh"
            code = vgp(*arguments, kind, log=log, flags=flags, seconds=max(left, 1.0))
            if code in (0, INTERRUPTED):
                break
        if code == 0 or options.finish:
            arguments = ["--samples", str(samples), "--results", str(options.results)]
            vgp("evaluate", str(folder), *arguments, log=log, flags=flags)
        if options.keep and (folder / "run.json").exists():
            vgp("keep", str(folder), "-o", str(options.keep / folder.name), log=log)
        if code != 0:
            break
    told = [line for line in log.read_text().splitlines() if line.startswith(name)]
    return "\n".join(told[-1 - int(seeds) :]) or f"{spec} failed; see {log}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="ROW:PROTOCOL:EPOCHS:SEEDS[:FOLDER]")
    parser.add_argument("--at-once", type=int, help="jobs side by side; by default all")
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--search", action="store_true", help="let XLA search for the fastest kernels at once")
    options = shared(parser)
    started = time.monotonic()
    with ThreadPoolExecutor(options.at_once or len(options.jobs)) as pool:
        for told in pool.map(lambda spec: job(spec, options, started), options.jobs):
            print(told, flush=True)


if __name__ == "__main__":
    main()
