"""Default `vgp.fit` on ten posteriors of posteriordb, against reference draws, beside NumPyro's guides.

    VGP_DATA=... python benchmarks/posteriordb.py [--seeds 3] [--parallel 1] [--only NAME] [--no-rivals] [--out DIR]

VGP_DATA is a folder with `posteriordb/NAME.json` (the data) and `NAME.npz` (reference draws by parameter, on their
constrained scale), from github.com/stan-dev/posteriordb. Expected on at least nine of ten, worst of three seeds: the
largest error of a mean at most 0.1 posterior standard deviations, of a standard deviation at most 10 %, k-hat below
0.7.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record

METHODS = ("VGP", "AutoMultivariateNormal", "AutoIAFNormal", "AutoBNAFNormal")
DRAWS = 20_000
SLOW = ("diamonds", "lotka", "gauss_mix")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--only", action="append", help="a part of a posterior's name; may be given again")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "METHOD", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(plain(one(*options.one))))
        return
    from posteriors import POSTERIORS

    names = [name for name in POSTERIORS if not options.only or any(part in name for part in options.only)]
    methods = METHODS[:1] if options.no_rivals else METHODS
    jobs = [(name, method, seed) for method in methods for name in names for seed in range(options.seeds)]
    slow_first = sorted(jobs, key=lambda job: not any(part in job[0] for part in SLOW))
    with ThreadPoolExecutor(options.parallel) as pool:
        figures = [row for row in pool.map(lambda job: in_a_process(*job), slow_first) if row is not None]
    figures.sort(key=lambda row: jobs.index((row["posterior"], row["method"], row["seed"])))
    for row in figures:
        shown = {key: float("nan") if value is None else value for key, value in row.items()}
        print(
            f"{row['posterior'][:26]:26} {row['method']:22} {row['seed']}  mean {shown['mean_error']:8.3f}  "
            f"sd {shown['sd_error']:6.3f}  khat {shown['khat']:5.2f}  ELBO {shown['elbo']:10.3f}  "
            f"{row['seconds']:6.1f} s"
        )
    if not options.only:
        figures += kept(methods)
        configuration = {"fit": "defaults", "guides": "6000 steps of 64 draws", "draws": DRAWS}
        configuration["parallel"] = options.parallel
        record.write("posteriordb", configuration, figures, options.out)


def kept(methods: tuple[str, ...]) -> list[dict]:
    """Rows of the last record by methods that were not run this time."""
    path = record.RESULTS / "posteriordb.json"
    rows = json.loads(path.read_text())["figures"] if path.exists() else []
    return [plain(row) for row in rows if row["method"] not in methods]


def plain(row: dict) -> dict:
    """JSON has no NaN."""
    return {key: None if isinstance(value, float) and value != value else value for key, value in row.items()}


def in_a_process(name: str, method: str, seed: int) -> dict | None:
    """One fit, in a fresh process."""
    command = [sys.executable, __file__, "--one", name, method, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} {method} {seed} failed: {done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def one(name: str, method: str, seed: str) -> dict:
    """Fits one posterior by one method and compares its draws with the reference."""
    import jax

    from vgp.rivals import fit_guide

    target, reference = load(name)
    fit_key, draw_key = jax.random.split(jax.random.key(int(seed)))
    started = time.monotonic()
    row = {"posterior": name, "method": method, "seed": int(seed)}
    if method == "VGP":
        import vgp

        fit = vgp.fit(target, key=fit_key, progress=False)
        row["seconds"] = round(time.monotonic() - started, 2)
        values = fit.sample(draw_key, DRAWS)
        row |= {"elbo": fit.elbo.lower, "elbo_upper": fit.elbo.upper}
        row |= {
            "khat": fit.khat,
            "khat_extended": fit.khat_extended,
            "status": fit.status.name,
            "steps": len(fit.history),
        }
        resampled = errors(fit.sample(draw_key, DRAWS // 4, resample=True), reference)
        row |= {"mean_error_resampled": resampled[0], "sd_error_resampled": resampled[1]}
    else:
        guide = fit_guide(target, method, key=fit_key)
        row["seconds"] = round(time.monotonic() - started, 2)
        values = jax.vmap(target.constrain)(guide.sample(draw_key, DRAWS))
        row |= {"elbo": guide.elbo.lower, "khat": guide.khat, "steps": guide.steps}
    row["mean_error"], row["sd_error"] = errors(values, reference)
    return row


def load(name: str):
    """The posterior as a target, and its reference draws."""
    import numpy as np
    from posteriors import POSTERIORS

    import vgp

    folder = Path(os.environ.get("VGP_DATA", "data")) / "posteriordb"
    if not (folder / f"{name}.json").exists():
        raise SystemExit(f"'{folder}' does not hold {name}.json; set VGP_DATA to the folder above posteriordb.")
    data = json.loads((folder / f"{name}.json").read_text())["data"]
    data = {key: np.asarray(value) if isinstance(value, list) else value for key, value in data.items()}
    return vgp.from_numpyro(POSTERIORS[name], **data), np.load(folder / f"{name}.npz")


def errors(values: dict, reference) -> tuple[float, float]:
    """The largest error of a mean in posterior standard deviations, and of a standard deviation relative to it."""
    import numpy as np

    means, spreads = [], []
    for name in reference.files:
        site, _, index = name.partition("[")
        draws = np.asarray(values[site], np.float64)
        draws = draws[:, int(index[:-1]) - 1] if index else draws
        truth = reference[name].astype(np.float64)
        means.append(abs(draws.mean() - truth.mean()) / truth.std())
        spreads.append(abs(draws.std() / truth.std() - 1))
    return float(max(means)), float(max(spreads))


if __name__ == "__main__":
    main()
