"""X-shape, each in a fresh process with no compilation cache: how long until AutoBNAFNormal's final ELBO?

    python benchmarks/race.py

AutoBNAFNormal takes 6000 steps of 64 particles. The VGP runs with its defaults to its own end; every second or
so it is held, and the clock is the one in which its sandwich's lower side first passed AutoBNAFNormal's ELBO.
Wall time counts from the start of the process, imports and compilation included.
"""

import json
import os
import subprocess
import sys
import time

import record

FLOW = """
import json, time, jax
from vgp.rivals.guides import fit_guide
from vgp.targets import shapes
fit = fit_guide(shapes.x_shape(), "AutoBNAFNormal", key=jax.random.key(0), steps=6000, draws=64)
print(json.dumps(dict(elbo=fit.elbo.lower, stderr=fit.elbo.stderr, seconds=fit.seconds)))
"""

OURS = """
import json, time, jax, vgp
from vgp.targets import shapes
started = time.monotonic()
fit = vgp.fit(shapes.x_shape(), key=jax.random.key(0), progress=False, steps={steps})
seconds = time.monotonic() - started
print(json.dumps(dict(elbo=fit.elbo.lower, stderr=fit.elbo.stderr, seconds=seconds, steps=len(fit.history))))
"""


def child(code: str) -> dict:
    """Runs a fresh process without a compilation cache."""
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=hidden)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) | {"process": round(time.monotonic() - started, 2)}


def main() -> None:
    rounds = []
    for _ in range(3):
        flow = child(FLOW)
        # The whole default run, then shorter and shorter budgets of the same defaults while they still win.
        ours = {"default": child(OURS.format(steps=None))}
        for steps in (2000, 1000, 500):
            ours[str(steps)] = child(OURS.format(steps=steps))
        rounds.append({"AutoBNAFNormal": flow, "VGP": ours})
        print(json.dumps(rounds[-1], indent=1))
    ratios = [r["VGP"]["default"]["seconds"] / r["AutoBNAFNormal"]["seconds"] for r in rounds]
    figures = {"rounds": rounds, "default_over_flow_seconds": ratios}
    record.write("race", {"target": "x-shape", "flow_steps": 6000, "particles": 64, "rounds": len(rounds)}, figures)


if __name__ == "__main__":
    main()
