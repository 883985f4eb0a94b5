"""Writes the tables of the README and the docs from the records in `results/`, between their markers.

    python benchmarks/tables.py [--check]

A marker is `<!-- table: NAME -->`; its table ends at `<!-- end -->`. With `--check` nothing is written, and a table
that differs from its record ends the program with an error.
"""

import itertools
import json
import re
import statistics
import sys
from datetime import datetime
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from vgp.experiments.begun import epochs_before
from vgp.experiments.published import MNIST
from vgp.experiments.rows import build, find
from vgp.experiments.table import Group, markdown, read

ROOT = Path(__file__).parent.parent
SIDES = ("bound", "estimate", "train_bound")  # of a record
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("benchmarks", "deep_models", "discrete", "draw", "grids")))


def record(name: str):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(head, rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def demo() -> str:
    """ELBO of every family on every target of `vgp demo`, with the VGP's k-hat and seconds."""
    rows = record("demo")["rows"]
    families = list(dict.fromkeys(row["family"] for row in rows))
    targets = list(dict.fromkeys(row["target"] for row in rows))
    cells = {(row["target"], row["family"]): row for row in rows}

    def show(row):
        lower, upper = row["elbo_lower"], row["elbo_upper"]
        elbo = f"{lower:.3f}" if lower == upper else f"[{lower:.3f}, {upper:.3f}]"
        return f"{elbo} · {row['khat']:.2f} · {row['seconds']:.0f} s"

    return table(["target", *families], [[t, *(show(cells[t, f]) for f in families)] for t in targets])


def shapes() -> str:
    """The worst of the seeds of the default fit on each normalised shape."""
    rows = record("shapes")["figures"]
    names = list(dict.fromkeys(row["shape"] for row in rows))
    out = []
    for name in reversed(names):
        worst = min((row for row in rows if row["shape"] == name), key=lambda row: row["lower"])
        best = max((row for row in rows if row["shape"] == name), key=lambda row: row["lower"])
        show = lambda row: f"[{row['lower']:.4f}, {row['upper']:.4f}] ± {row['stderr']:.4f}"  # noqa: E731
        out.append([name, show(worst), show(best), worst["steps"]])
    return table(["shape", "worst seed", "best seed", "steps"], out)


def race() -> str:
    """Seconds until AutoBNAFNormal's final ELBO on the X-shape, medians over the rounds."""
    columns = (("elbo", ".3f"), ("seconds", ".1f"), ("process", ".1f"))
    rounds = record("race")["figures"]["rounds"]
    runs = {"AutoBNAFNormal, 6000 steps": [r["AutoBNAFNormal"] for r in rounds]}
    for name in rounds[0]["VGP"]:
        label = "VGP, defaults" if name == "default" else f"VGP, defaults, steps={name}"
        runs[label] = [r["VGP"][name] for r in rounds]
    rows = [
        [label, *(f"{statistics.median(run[key] for run in mine):{form}}" for key, form in columns)]
        for label, mine in runs.items()
    ]
    return table(["X-shape", "ELBO", "seconds of the fit", "seconds of the whole process"], rows)


def step() -> str:
    """The cost of a step and its growth."""
    figures = record("step")["figures"]
    flat = figures["two_dimensions"]
    middle = sorted(flat["rounds"], key=lambda r: r["vgp_ms"])[len(flat["rounds"]) // 2]
    data, latent = figures["variational_data"]["exponents"], figures["latent_variables"]["exponents"]
    rows = [
        ["VGP step, num_data 64, inner 16, 64 draws", f"{middle['vgp_ms']:.2f} ms"],
        ["the same with the GP-driven scale", f"{middle['vgp_driven_scale_ms']:.2f} ms"],
        ["AutoIAFNormal step, 64 particles", f"{middle['iaf_ms']:.3f} ms"],
        ["ratio of steps, compiled and warm", f"{flat['ratio']:.1f}"],
        ["ratio of whole fits of 6000 steps, compilation included", f"{flat['whole_fit_ratio']:.1f}"],
        ["floor of the VGP step: its two large products and its exponentials alone", f"{flat['floor_ms']:.2f} ms"],
        ["exponent in d, 10³ to 10⁵: time, memory", f"{latent['ms']:.2f}, {latent['megabytes']:.2f}"],
        ["exponent in m, 64 to 1024: time, memory", f"{data['ms']:.2f}, {data['megabytes']:.2f}"],
    ]
    return table(["what", "measured"], rows)


def posteriordb() -> str:
    """The worst seed of every method on every posterior: errors of means and standard deviations, and k-hat."""
    rows = record("posteriordb")["figures"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    names = list(dict.fromkeys(row["posterior"] for row in rows))

    def show(name, method):
        mine = [row for row in rows if (row["posterior"], row["method"]) == (name, method)]
        if not mine:
            return "failed"
        if any(row["mean_error"] is None for row in mine):
            return "diverged"
        mean, sd = (max(row[key] for row in mine) for key in ("mean_error", "sd_error"))
        khats = [row["khat"] for row in mine]
        khat = "—" if None in khats else f"{max(khats):.2f}"
        good = mean <= 0.1 and sd <= 0.1 and khat != "—" and max(khats) < 0.7
        text = f"{_short(mean)} · {100 * sd:.0f} % · {khat}"
        return f"**{text}**" if good else text

    return table(
        ["posterior", *methods],
        [[name.split("-", 1)[-1], *(show(name, method) for method in methods)] for name in names],
    )


def _short(number: float) -> str:
    return f"{number:.2f}" if number < 100 else f"{number:.0e}"


def mnist() -> str:
    """Table 1 of the paper, with our records."""
    return markdown("mnist", ROOT / "results")


def sketch() -> str:
    """Table 2 of the paper, with our records."""
    return markdown("sketch", ROOT / "results")


def discrete() -> str:
    """Sigmoid belief networks, with our records."""
    return markdown("discrete", ROOT / "results")


def families() -> str:
    """One layer of latents, the same networks, epochs and seeds: bound · estimate · training bound of each family."""
    names = {"dlgm1-vae": "mean-field", "dlgm1-hvm": "perceptron", "dlgm1-nf80": "planar flow", "dlgm1-vgp": "VGP"}
    found = read(ROOT / "results", "mnist")
    usual = {"architecture": "deep", "epochs": 300, "rate": 1e-3, "flip": 0.0, "dreams": 0.0}
    columns = {
        "dynamic": usual | {"protocol": "dynamic"},
        "fixed": usual | {"protocol": "fixed"},
        "fixed, 1 % flipped": usual | {"protocol": "fixed", "flip": 0.01},
        "fixed, with dreams": usual | {"protocol": "fixed", "dreams": 1.0},
        "and twice the rate, 220 epochs": usual | {"protocol": "fixed", "dreams": 1.0, "rate": 2e-3, "epochs": 220},
    }

    def cell(name, wanted):
        asked = {"row": name, **wanted}
        own = [r for r in found if all((r["configuration"] | r).get(k, 0.0) == v for k, v in asked.items())]
        return " · ".join(f"{Group(own).mean(key):.2f}" for key in SIDES) if own else "—"

    return table(
        ["q(z \\| x)", "parameters", *columns],
        [[word, _parameters(n), *(cell(n, c) for c in columns.values())] for n, word in names.items()],
    )


def evaluation() -> str:
    """Seconds that a seed took to evaluate on a GPU: the time between the records of seeds measured in turn."""
    took: dict[str, list[float]] = {}
    runs: dict[tuple, list[dict]] = {}
    for r in read(ROOT / "results", "mnist"):
        runs.setdefault((r["row"], r["protocol"], json.dumps(r["configuration"])), []).append(r)
    for (row, *_), own in runs.items():
        dates = [datetime.fromisoformat(r["date"]) for r in sorted(own, key=lambda r: r["seed"])]
        if "H200" in own[0]["hardware"]:
            took.setdefault(row, []).extend((b - a).total_seconds() for a, b in itertools.pairwise(dates))
    return table(["row", "seconds"], [[r, f"{min(t):.0f} to {max(t):.0f}"] for r, t in sorted(took.items()) if t])


def _parameters(name: str) -> int:
    learner = build(find(name), (28, 28), np.full(784, 0.1), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))


def branched() -> str:
    """Runs on sketches as plain DRAW and with a VGP that began with the same one: bound · −log p · training bound."""
    found = [r for r in read(ROOT / "results", "sketch") if r["configuration"].get("tail") == 1.0]
    by = {(r["configuration"]["begun"], r["epochs"], r["row"]): r for r in found}
    rows = []
    for begun, epochs in sorted({key[:2] for key in by}, key=lambda key: (epochs_before(key[0]) + key[1], key[1])):
        plain, vgp = (by.get((begun, epochs, row)) for row in ("draw-sketch", "draw-sketch-vgp"))
        if plain and vgp:
            rows.append([epochs_before(begun) + epochs, epochs, *_pair(plain, vgp)])
    return table(["epochs", "of them apart", *PAIR], rows)


PAIR = ("plain DRAW", "DRAW + VGP", "the VGP is ahead by, in the bound", "in −log p")


def _pair(plain, vgp) -> list[str]:
    figures = [" · ".join(f"{r[key]:.2f}" for key in SIDES) for r in (plain, vgp)]
    return figures + [f"{plain[key] - vgp[key]:.2f}" for key in SIDES[:2]]


def alone() -> str:
    """Runs on sketches as plain DRAW and with a VGP, each from its own start: bound · −log p · training bound."""
    found = [r for r in read(ROOT / "results", "sketch") if not r["configuration"]["begun"]]
    by = {(r["configuration"]["optimizer"], r["epochs"], r["row"]): r for r in found}
    rows = []
    for optimizer, epochs in sorted({key[:2] for key in by}):
        plain, vgp = (by.get((optimizer, epochs, row)) for row in ("draw-sketch", "draw-sketch-vgp"))
        if plain and vgp:
            rates = " and ".join(dict.fromkeys(f"{r['configuration']['rate']:g}" for r in (plain, vgp)))
            rows.append([optimizer.capitalize(), rates, _kind(vgp), epochs, *_pair(plain, vgp)])
    return table(["optimiser", "rate, plain and VGP", "the VGP", "epochs", *PAIR], rows)


def _kind(vgp) -> str:
    own = vgp["configuration"]
    network = "r a network" if own["auxiliary_width"] else "r without a network"
    return f"rank {own['rank']}, {network}, K = {own['inner'][-1][1]}"


def apart() -> str:
    """DRAW on MNIST after each stage of training: bound, −log p, training bound, and what the paper has."""
    found = read(ROOT / "results", "mnist")
    published = {entry.row: float(entry.paper[0].printed) for entry in MNIST.entries if entry.paper}
    names = ("draw", "draw-vgp")
    by = {(epochs_before(r["configuration"]["begun"]) + r["epochs"], r["row"]): r for r in found if r["row"] in names}
    rows = []
    for epochs in sorted({epochs for epochs, _ in by if all((epochs, name) in by for name in names)}):
        plain, vgp = (by[epochs, name] for name in names)
        for r in (plain, vgp):
            own, figures = r["configuration"], [f"{r[key]:.2f}" for key in SIDES]
            ahead = f"{plain['bound'] - vgp['bound']:.2f}" if r is vgp else ""
            how = f"{own['optimizer'].capitalize()}, {own['rate']:g}" + (f", {_kind(r)}" if r is vgp else "")
            more = [r["bound"] - r["train_bound"], r["bound"] - published[r["row"]]]
            rows.append([epochs, r["row"], how, *figures, ahead, *(f"{gap:.2f}" for gap in more)])
    head = ["epochs", "row", "this stage by", "bound", "−log p", "training bound", "ahead of `draw` by"]
    return table([*head, "bound less training bound", "bound less the paper's"], rows)


def _literal() -> list[tuple[str, dict]]:
    """The runs of the literal configuration: the paper's row, and a mean-field by either optimiser."""
    found = [r for r in read(ROOT / "results", "mnist") if r["configuration"].get("architecture") == "literal"]
    told = {
        ("dlgm1-vgp-paper", "rmsprop"): "`dlgm1-vgp-paper`",
        ("dlgm1-vae", "rmsprop"): "`dlgm1-vae`, the same optimiser",
        ("dlgm1-vae", "adam"): "`dlgm1-vae`, Adam",
    }
    longest = {}
    for r in sorted(found, key=lambda r: r["epochs"]):
        longest[r["row"], r["configuration"]["optimizer"]] = r
    return [(word, longest[key]) for key, word in told.items()]


def paper() -> str:
    """The validation bound of the paper's row as it was trained, and of a mean-field in its place."""
    runs = [(word, dict(r["validation"])) for word, r in _literal()]
    shown = [epoch for epoch in runs[0][1] if epoch % 10 == 0]
    rows = [[word, *(f"{looks[e]:.1f}" if e in looks else "—" for e in shown)] for word, looks in runs]
    return table(["validation bound at epoch", *shown], rows)


def literal() -> str:
    """What they were worth at their ends."""
    rows = [
        [word, r["epochs"], *(f"{r[key]:.2f}" for key in SIDES), r["estimate_samples"], r["hardware"].split(",")[0]]
        for word, r in _literal()
    ]
    return table(["row", "epochs", "test bound", "−log p", "training bound", "samples of −log p", "on"], rows)


def kept() -> str:
    """The kept runs on training and on test images: the bound of one draw, −log p, and the distance between them."""
    rows = record("kept")["figures"]

    def told(row, key):
        return f"{row[key]:.2f} ± {row[f'{key}_stderr']:.2f}"

    out = []
    for name in dict.fromkeys(row["run"] for row in rows):
        own = {row["images"]: row for row in rows if row["run"] == name}
        first = own["test"]
        cells = [f"{own[side][key]:.2f}" for key in ("bound", "estimate") for side in ("training", "test")]
        apart = [told(own[side], "distance") for side in ("training", "test")]
        out.append([first["row"], first["trained_with"], first["samples"], *cells, *apart])
    head = ["row", "draws in training", "samples of −log p", "bound, training", "bound, test", "−log p, training"]
    return table([*head, "−log p, test", "distance, training", "distance, test"], out)


def matched() -> str:
    """Belief networks with a VGP and with a factorised q, at matched steps and at matched cost; leads seed by seed."""
    timed = {r["name"]: r for r in record("sbn")["figures"]}
    found, rows = read(ROOT / "results", "discrete"), []
    groups = [  # the row, the weight of dreams, the VGP's reach, its epochs, and those of the factorised runs
        ("sbn1-linear", 0.0, 1.0, (105,), (105,), (175,)),
        ("sbn2", 0.0, 1.0, (75,), (75, 76), (100, 105)),
        ("sbn2", 0.0, 0.2, (75, 76), (75, 76), (100, 105)),
        ("sbn1", 0.0, 1.0, (75,), (75,), (100,)),
        ("sbn1", 1.0, 0.2, (90,), (90,), (118,)),
    ]
    for name, dreams, reach, ours, *theirs in groups:
        vgp = f"{name}-vgp"
        cost = {vgp: timed[vgp]["ms"] / timed[name]["ms"], name: 1.0}
        by_seed: dict[int, dict] = {}
        for row, epochs in ((vgp, ours), *((name, them) for them in theirs)):
            own = [r for r in found if r["row"] == row and r["epochs"] in epochs]
            asked = {"gradient": "LocalExpectations", "dreams": dreams} | ({"reach": reach} if row == vgp else {})
            own = [r for r in own if all(r["configuration"].get(key, 0.0) == value for key, value in asked.items())]
            if row == vgp:
                by_seed = {r["seed"]: r for r in own}
            leads = ["" if row == vgp else _lead(own, by_seed, side) for side in ("bound", "train_bound")]
            # A step with dreams has not been timed.
            spent = "—" if dreams else f"{cost[row] * statistics.fmean(r['epochs'] for r in own):.0f}"
            seconds = f"{statistics.fmean(r['seconds'] for r in own):.0f}"
            figures = (f"{Group(own).mean(key):.2f}" for key in SIDES)
            word = f"{row}, dreams" if dreams else row
            word += f", reach {reach:g}" if row == vgp else ""
            size = f"{timed[row]['parameters'] / 1e6:.2f}"
            rows.append([word, size, " or ".join(map(str, epochs)), spent, seconds, len(own), *figures, *leads])
    head = ["row", "parameters, millions", "epochs", "cost", "seconds", "seeds", "test bound", "−log p"]
    return table([*head, "training bound", "the VGP is ahead by", "in training by"], rows)


def _lead(own, by_seed, side: str) -> str:
    # By how much the runs of `by_seed` have the lower figure, with the standard error over the seeds.
    leads = [r[side] - by_seed[r["seed"]][side] for r in own]
    return f"{statistics.fmean(leads):.2f} ± {statistics.stdev(leads) / len(leads) ** 0.5:.2f}"


def dlgm() -> str:
    """The cost of a training step of each row, beside the VAE's."""
    found = record("dlgm")
    turn = found["configuration"]["turn"]  # an epoch of 50,000 images
    rows = [r for r in found["figures"] if not r["name"].startswith("sbn")]  # they have a record of their own

    def least(row):
        floor = row.get("floor")
        if not floor:
            return "—"
        told = f"{floor['gigaflops']:.1f} GFLOP, {floor['megabytes']:.0f} MB"
        return f"{told}: {floor['ratio']:.1f} times {floor['ms']:.3f} ms" if "ratio" in floor else told

    return table(
        ["step", "ms", "VAE steps", "1000 epochs", "parameters", "operations and bytes it cannot do without"],
        [
            [r["name"], f"{r['ms']:.3f}", f"{r['ratio']:.1f}", f"{r['ms'] * turn:.0f} s", r["parameters"], least(r)]
            for r in rows
        ],
    )


def steps() -> str:
    """The same of rows that were not timed again, and of the VAE beside them."""
    again = {r["name"] for r in record("dlgm")["figures"]} - {"vae"}
    rows = [r for r in record("dlgm-rivals")["figures"] if r["name"] not in again]
    return table(["step", "ms", "VAE steps"], [[r["name"], f"{r['ms']:.3f}", f"{r['ratio']:.1f}"] for r in rows])


def launches() -> str:
    """Operations that a training step of each row starts on a GPU."""
    rows = record("launches")["figures"]
    return table(
        ["row", "batch", "K", "launches a step"],
        [[r["row"], r["batch"], r["inner"], f"{r['launches']:.0f}"] for r in rows],
    )


def draw() -> str:
    """Milliseconds of a training step of DRAW."""
    return _steps(record("draw")["figures"])


def tried() -> str:
    """The same of what was tried to make it quicker, in a run of its own."""
    return _steps(record("draw-tried")["figures"])


def _steps(rows) -> str:
    head = ["step", "ms", "of plain DRAW's", "launches"]
    out = [[r["name"], f"{r['ms']:.2f}", f"{r['ratio']:.2f}", f"{r['launches']:.0f}"] for r in rows]
    if any("floor" in r for r in rows):  # no step has one in records of before it was counted
        head += ["operations and bytes it cannot do without", "its launches in a chain, ms"]
        for cells, row in zip(out, rows, strict=True):
            cells += _floor(row.get("floor"))
    return table(head, out)


def _floor(floor) -> list[str]:
    if not floor:
        return ["—", "—"]
    told = f"{floor['gigaflops']:.0f} GFLOP, {floor['megabytes']:.0f} MB: {floor['ms']:.2f} ms"
    return [told, f"{floor['launches_ms']:.2f}"]


def ablation() -> str:
    """Families with the same networks on 14 × 14 MNIST: means over seeds, and the range of the bound."""
    return _small(record("ablation")["figures"], lambda row: row["family"])


def dreams() -> str:
    """Families that learn on few images, without and with what the model draws."""
    return _small(record("dreams")["figures"], lambda row: row["family"] + (", dreams" if row["dreams"] else ""))


def objectives() -> str:
    """The paper's row taken apart, on 14 × 14 MNIST."""
    return _small(record("objectives")["figures"], lambda row: row["family"])


def choices() -> str:
    """What the settings of `dlgm1-vgp` were chosen by, on 14 × 14 MNIST."""
    return _small(record("choices")["figures"]["rows"], lambda row: row["family"])


def noise() -> str:
    """The variance of the gradient by bound and estimator, in units of the quietest."""
    rows = record("choices")["figures"]["noise"]
    stages = list(dict.fromkeys(row["epochs"] for row in rows))
    least = {epochs: min(row["variance"] for row in rows if row["epochs"] == epochs) for epochs in stages}
    out: dict[tuple, list[str]] = {}
    for row in rows:
        key = row["inner"], row["split"], row["gradient"]
        out.setdefault(key, []).append(f"{row['variance'] / least[row['epochs']]:.2f}")
    head = ["", "", "gradient", *(f"after {epochs} epoch{'s' if epochs > 1 else ''}" for epochs in stages)]
    return table(head, [[*key, *cells] for key, cells in out.items()])


def layers() -> str:
    """Two layers of latents, with one family over both or one for each."""
    return _small(record("layers")["figures"], lambda row: row["family"])


def _small(rows, named) -> str:
    out = []
    for name in dict.fromkeys(map(named, rows)):
        mine = [row for row in rows if named(row) == name]
        bounds = [row["bound"] for row in mine]
        mean = {key: statistics.fmean(row[key] for row in mine) for key in ("bound", "estimate", "train", "seconds")}
        spread = f"{mean['bound']:.2f} ({min(bounds):.2f} to {max(bounds):.2f})"
        out.append([name, spread, f"{mean['estimate']:.2f}", f"{mean['train']:.2f}", f"{mean['seconds']:.0f}"])
    return table(["q(z \\| x)", "test bound (seeds)", "−log p, 500 samples", "training bound", "seconds"], out)


def solvers() -> str:
    """Time and memory of the grids' algebra against m, with exponents."""
    rows = []
    for name, found in record("solvers")["figures"]["growth"].items():
        for row in found["rows"]:
            cells = [f"{row[kind]['ms']:.3g} ms, {row[kind]['megabytes']:.3g} MB" for kind in ("forward", "gradient")]
            rows.append([name, row["size"], *cells])
        powers = [found["exponents"][kind] for kind in ("forward", "gradient")]
        rows.append([name, "exponent", *(f"{each['ms']:.2f}, {each['megabytes']:.2f}" for each in powers)])
    return table(["algebra", "m", "mean and variance", "their gradients"], rows)


def million() -> str:
    """A step on a million inputs, and where Toeplitz algebra becomes quicker than dense."""
    figures = record("solvers")["figures"]
    step, largest = figures["step"], figures["crossing"][0]["rows"][-1]["size"]
    rows = [
        [
            f"a step of `vgp.fit` on {step['size']} inputs, c = 3, {step['draws']} draws",
            f"{step['ms']:.0f} ms, {step['peak_megabytes']:.0f} MB of the whole process",
        ]
    ]
    device = record("solvers-gpu-step")
    step, hardware = device["figures"]["step"], device["hardware"].split(",")[0]
    rows.append([f"the same on an {hardware}", f"{step['ms']:.1f} ms, {step['peak_megabytes']:.0f} MB of the device"])
    for found in figures["crossing"]:
        crossing = found["crossing"]
        told = f"above {largest}" if crossing is None else f"{crossing:.0f}"
        rows.append([f"inputs from which Toeplitz is quicker than dense, {found['points']} points", told])
    return table(["what", "measured"], rows)


def grid() -> str:
    """The sandwich on a grid and with free inputs, each seed."""
    names = list(dict.fromkeys(row["name"] for row in record("grid")["figures"]))
    rows = [[row for row in record("grid")["figures"] if row["name"] == name] for name in names]
    head = ["inputs", *(f"seed {row['seed']}" for row in rows[0]), "seconds a fit"]
    body = [
        [
            name,
            *(f"{row['lower']:.2f} to {row['upper']:.2f} ± {row['stderr']:.2f}" for row in own),
            f"{sum(row['seconds'] for row in own) / len(own):.0f}",
        ]
        for name, own in zip(names, rows, strict=True)
    ]
    return table(head, body)


def gpytorch() -> str:
    """Conditional mean and variance beside GPyTorch's, in one run."""
    found = record("solvers")["figures"]["gpytorch"]
    rows = [
        [r["size"], f"{r['our_ms']:.3g}", f"{r['their_ms']:.4g}", f"{r['ratio']:.0f}"]
        + [f"{r[key]:.0e}" for key in ("our_error", "their_error")]
        for r in found["rows"]
    ]
    return table(["m", "ours, ms", f"GPyTorch {found['version']}, ms", "ratio", "our error", "its error"], rows)


def gradients() -> str:
    """Factors by which estimators for discrete variables lower the variance, early and late, and their means."""
    figures = record("gradients")["figures"]
    stages = {name: list(found["variances"].values()) for name, found in figures.items()}
    rows = []
    for label in next(iter(stages.values()))[0]["rows"]:
        each = {name: [stage["rows"][label] for stage in mine] for name, mine in stages.items()}
        cells = [", ".join(f"{row['factor']:.3g}" for row in mine) for mine in each.values()]
        rows.append([label, *cells, _share([mine[0] for mine in each.values()])])
    floors = [", ".join(f"{stage['floor']:.3g}" for stage in mine) for mine in stages.values()]
    return table(["variance lower by", *stages, "mean / exact"], [*rows, ["z summed out", *floors, "—"]])


def _share(rows) -> str:
    # All of them as one, by the inverse of their variances, early in training; what is its own measure has none.
    if any(row["share"] is None for row in rows):
        return "—"
    weights = [row["share_stderr"] ** -2 for row in rows]
    mean = sum(w * row["share"] for w, row in zip(weights, rows, strict=True)) / sum(weights)
    return f"{mean:.2f} ± {sum(weights) ** -0.5:.2f}"


def enumerated() -> str:
    """KL(q || p) at the end of training with each estimator, and of a factorised q."""
    figures = record("gradients")["figures"]
    ends = {
        label: [[kl[-1] for kl in found["curves"][label]["kl"]] for found in figures.values()]
        for label in next(iter(figures.values()))["curves"]
    }
    rows = [
        [label, *(f"{statistics.median(end):.3f} ({min(end):.3f} to {max(end):.3f})" for end in mine)]
        for label, mine in ends.items()
    ]
    *ours, factorised = ends
    ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(ends[ours[0]], ends[factorised], strict=True)]
    return table(["KL(q ‖ p)", *figures], [*rows, [f"{ours[0]} / {factorised}", *(f"{ratio:.3f}" for ratio in ratios)]])


TABLES = {
    "gradients": gradients,
    "enumerated": enumerated,
    "solvers": solvers,
    "million": million,
    "gpytorch": gpytorch,
    "grid": grid,
    "ablation": ablation,
    "dreams": dreams,
    "mnist": mnist,
    "sketch": sketch,
    "launches": launches,
    "draw": draw,
    "tried": tried,
    "discrete": discrete,
    "dlgm": dlgm,
    "families": families,
    "evaluation": evaluation,
    "layers": layers,
    "choices": choices,
    "noise": noise,
    "objectives": objectives,
    "paper": paper,
    "literal": literal,
    "kept": kept,
    "steps": steps,
    "branched": branched,
    "alone": alone,
    "apart": apart,
    "matched": matched,
    "posteriordb": posteriordb,
    "demo": demo,
    "shapes": shapes,
    "race": race,
    "step": step,
}


def main() -> None:
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()

        def fill(match):
            return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

        new = re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)
        if new != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale and "--check" in sys.argv:
        sys.exit(f"The tables of {', '.join(stale)} differ from results/; run: python benchmarks/tables.py")
    print("written: " + (", ".join(stale) or "nothing, all tables are up to date"))


if __name__ == "__main__":
    main()
