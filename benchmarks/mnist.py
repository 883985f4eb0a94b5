"""Rows of the paper's table, side by side on one GPU: trained, evaluated, recorded.

    VGP_DATA=... python benchmarks/mnist.py dlgm1-vae:fixed:300:3 dlgm1-vgp:fixed:300:3 --seconds 500 --runs runs

A job is ROW:PROTOCOL:EPOCHS:SEEDS. All start at once; a training still under way at `--seconds` is interrupted, and
goes on where it was with `--resume` and the same command. Every run is then evaluated and its records written.
Under NVIDIA's multi-process service (`nvidia-cuda-mps-control -d`) the runs share the GPU well. XLA's search for the
fastest kernels is left out at first, since it takes minutes on a busy GPU; a program that fails so is compiled again
with it.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ("--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cublaslt=false", "")
INTERRUPTED = 130
GRACE = 60  # seconds for the epoch under way and the save


def vgp(*arguments: str, log: Path, flags: str = "", seconds: float | None = None) -> int:
    """Runs the command; Ctrl-C after so many seconds."""
    code = f"import os; os.environ['XLA_FLAGS'] = {flags!r} or os.environ.get('XLA_FLAGS', '')\n"
    code += "from vgp.cli import app; app()"
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
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


def job(spec: str, options: argparse.Namespace, started: float) -> str:
    """Trains and evaluates one row; the last lines of its log."""
    row, protocol, epochs, seeds = spec.split(":")
    folder = options.runs / spec.replace(":", "-")
    log = options.runs / f"{folder.name}.log"
    kind = ["--resume"] if options.resume and (folder / "run.json").exists() else ["--fresh"]
    flags = ""
    for flags in FLAGS:
        left = options.seconds - (time.monotonic() - started)
        arguments = ["train", row, "--data", "mnist", "--protocol", protocol, "--epochs", epochs, "--seeds", seeds]
        code = vgp(*arguments, "--out", str(folder), "--no-early", *kind, log=log, flags=flags, seconds=left)
        if code in (0, INTERRUPTED):
            break
    vgp("evaluate", str(folder), "--results", str(options.results), log=log, flags=flags)
    told = [line for line in log.read_text().splitlines() if line.startswith(row)]
    return "\n".join(told[-1 - int(seeds) :]) or f"{spec} failed; see {log}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="ROW:PROTOCOL:EPOCHS:SEEDS")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with ThreadPoolExecutor(len(options.jobs)) as pool:
        for told in pool.map(lambda spec: job(spec, options, started), options.jobs):
            print(told, flush=True)


if __name__ == "__main__":
    main()
