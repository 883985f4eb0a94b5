"""X-shape, each in a fresh process with no compilation cache: how long until AutoBNAFNormal's final ELBO?

    python benchmarks/race.py [ROUNDS]

AutoBNAFNormal takes 6000 steps of 64 particles. The VGP runs with its defaults, once to its own end and then with
ever fewer steps: the shortest run whose sandwich's lower side is still ahead is the time it needs. Seconds of the fit
include compilation; seconds of the process include imports and the measuring that follows as well.
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


def needed(r: dict) -> float:
    """Seconds of the shortest run of ours that ends ahead of the flow."""
    flow = r["AutoBNAFNormal"]["elbo"]
    return min(ours["seconds"] for ours in r["VGP"].values() if ours["elbo"] - 2 * ours["stderr"] > flow)


def main() -> None:
    rounds = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        flow = child(FLOW)
        # The whole default run, then shorter and shorter budgets of the same defaults while they still win.
        ours = {"default": child(OURS.format(steps=None))}
        for steps in (1000, 300):
            ours[str(steps)] = child(OURS.format(steps=steps))
        rounds.append({"AutoBNAFNormal": flow, "VGP": ours})
        print(json.dumps(rounds[-1], indent=1))
    figures = {
        "rounds": rounds,
        "needed_over_flow_seconds": [needed(r) / r["AutoBNAFNormal"]["seconds"] for r in rounds],
    }
    print(figures["needed_over_flow_seconds"])
    record.write("race", {"target": "x-shape", "flow_steps": 6000, "particles": 64, "rounds": len(rounds)}, figures)


if __name__ == "__main__":
    main()
