"""Default `vgp.fit` on the normalised shapes, where a perfect fit has an ELBO of 0.

    python benchmarks/shapes.py [--seeds 3] [--parallel 1] [--out DIR]

Expected: the lower side of the sandwich ahead of the best flow on each shape (banana −0.002, X-shape −0.03,
two modes −0.004, funnel −0.02).
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record

SHAPES = ("banana", "x-shape", "two-modes", "funnel")
DRAWS, INNER = 100_000, 200


def one(name: str, seed: int) -> dict:
    """One default fit, in a fresh process, measured with many draws."""
    code = f"""
import json, time
import jax, vgp
from vgp import diagnostics
from vgp.targets import shapes
target = shapes.SHAPES[{name!r}]()
started = time.monotonic()
fit = vgp.fit(target, key=jax.random.key({seed}), progress=False)
seconds = time.monotonic() - started
elbo = diagnostics.log_ratios(target, fit.family, jax.random.key(10_000 + {seed}), {DRAWS}, {INNER}).elbo
print(json.dumps(dict(shape={name!r}, seed={seed}, lower=elbo.lower, upper=elbo.upper, stderr=elbo.stderr,
                      status=fit.status.name, steps=len(fit.history), seconds=round(seconds, 2))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jobs = [(name, seed) for name in reversed(SHAPES) for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.parallel) as pool:
        figures = list(pool.map(lambda job: one(*job), jobs))
    for row in figures:
        sandwich = f"[{row['lower']:.4f}, {row['upper']:.4f}] ± {row['stderr']:.4f}"
        print(f"{row['shape']:10} {row['seed']} {sandwich} {row['status']} {row['steps']} steps {row['seconds']} s")
    configuration = {"draws": DRAWS, "inner": INNER, "fit": "defaults", "parallel": options.parallel}
    record.write("shapes", configuration, figures, options.out)


if __name__ == "__main__":
    main()
