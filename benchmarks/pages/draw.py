"""Tables of docs/draw.md."""

import re
from statistics import fmean

from vgp.experiments.begun import epochs_before
from vgp.experiments.published import MNIST, SKETCH
from vgp.experiments.table import markdown, read

from .common import ROOT, SIDES, mean_and_error, record, records, table


def sketch() -> str:
    """Table 2 of the paper, with our records."""
    return markdown("sketch", ROOT / "results")


def branched() -> str:
    """Sketches by plain DRAW and by a VGP that left the same one: bound · −log p · training bound, means over seeds."""
    return table(["epochs", "of them apart", "seeds", *PAIR], _branches("none"))


def rounds() -> str:
    """The same where the windows of both begin on a ring and both learn from the start, beside the paper's figures."""
    printed = {(entry.row, entry.epochs): str(entry.paper[0]) for entry in SKETCH.entries}
    paired = {r["epochs"]: r for r in record("paired-sketch-ring")["figures"] if r["images"] == "test"}
    rows = []
    for epochs, apart, seeds, plain, vgp, *leads in _branches("ring"):
        if apart < epochs:
            continue
        if seeds == 1:  # else the error is that over seeds
            leads[0] += f" ± {paired[epochs]['stderr']:.2f}"
        theirs = [printed[row, epochs] for row in ("draw-sketch", "draw-sketch-vgp")]
        rows.append([epochs, *theirs, seeds, plain, vgp, *leads])
    return table(["epochs", "paper: DRAW", "paper: DRAW + VGP", "seeds", *PAIR], rows)


def _branches(path: str) -> list[list]:
    found = [r for r in read(ROOT / "results", "sketch") if r["configuration"].get("tail") == 1.0]
    found = [r for r in found if r["configuration"].get("path", "none") == path]
    plain = {_stage(r): r for r in found if r["row"] == "draw-sketch"}
    pairs: dict[tuple, list] = {}
    for r in found:
        if r["row"] == "draw-sketch-vgp" and _stage(r) in plain:
            epochs = epochs_before(r["configuration"]["begun"]) + r["epochs"]
            left = int((re.findall(r"draw-sketch at epoch (\d+)", r["configuration"]["begun"]) or [0])[-1])
            pairs.setdefault((epochs, epochs - left), []).append((plain[_stage(r)], r))
    return [[*when, len(both), *_pair(*zip(*both, strict=True))] for when, both in sorted(pairs.items())]


def _stage(r) -> tuple:
    # What two branches have in common that end at the same epoch.
    own = r["configuration"]
    return r["seed"], own["rate"], r["epochs"], epochs_before(own["begun"])


PAIR = ("plain DRAW", "DRAW + VGP", "the VGP is ahead by, in the bound", "in −log p")


def _pair(plain, vgp) -> list[str]:
    # Means over seeds, and by how much the VGP is ahead with the same ones.
    figures = [" · ".join(f"{fmean(r[key] for r in mine):.2f}" for key in SIDES) for mine in (plain, vgp)]
    leads = ([a[key] - b[key] for a, b in zip(plain, vgp, strict=True)] for key in SIDES[:2])
    return figures + [mean_and_error(lead) for lead in leads]


def alone() -> str:
    """Runs on sketches as plain DRAW and with a VGP, each from its own start: bound · −log p · training bound."""
    found = [r for r in read(ROOT / "results", "sketch") if not r["configuration"]["begun"]]
    by = {(r["configuration"]["optimizer"], r["epochs"], r["row"]): r for r in found}
    rows = []
    for optimizer, epochs in sorted({key[:2] for key in by}):
        plain, vgp = (by.get((optimizer, epochs, row)) for row in ("draw-sketch", "draw-sketch-vgp"))
        if plain and vgp:
            rates = " and ".join(dict.fromkeys(f"{r['configuration']['rate']:g}" for r in (plain, vgp)))
            rows.append([optimizer.capitalize(), rates, _kind(vgp), epochs, *_pair([plain], [vgp])])
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
            rows.append([epochs, r["protocol"], r["row"], how, *figures, ahead, *(f"{gap:.2f}" for gap in more)])
    head = ["epochs", "images", "row", "this stage by", "bound", "−log p", "training bound", "ahead of `draw` by"]
    return table([*head, "bound less training bound", "bound less the paper's"], rows)


def refined() -> str:
    """What q of a kept run lacks on single images: shifts of its own, and correlations within a glimpse beside them."""
    by: dict[tuple, dict[str, dict]] = {}
    for measured in records("refined-*"):
        for r in measured["figures"]:
            by.setdefault((r["run"], r["images"]), {})[r["q"]] = r
    rows = []
    for (run, images), q in by.items():
        shifted, correlated = q["shifted"], q.get("shifted and correlated")
        gains = [shifted["less than as the encoder says"], correlated["less than shifted"] if correlated else None]
        told = ["{:.2f} ± {:.2f}".format(*gain) if gain else "" for gain in gains]
        rows.append([f"`{run}`", images, f"{q['as the encoder says']['bound']:.2f}", *told])
    return table(["kept run", "images", "bound", "a shift gains", "correlations beside it gain"], rows)


def warped() -> str:
    """What the warp of trained VGPs does: the share of ξ in z's variance, and how far q is from a mean-field."""
    runs = {f"warps-sketch-ring-{n}": f"from the start on sketches, on a ring, {n} epochs" for n in (100, 200, 300)}
    runs |= {"warps-sketch-100": "from the start on sketches, no path, 100 epochs"}
    runs |= {"warps-sketch-late": "from epoch 260 on, on sketches, no path, 300 epochs"}
    runs |= {"warps-draw-vgp-mnist-fixed": "`draw-vgp-mnist-fixed`"}
    rows = []
    for name, told in runs.items():
        for r in record(name)["figures"]:
            rows.append([told, r["seed"], f"{r['share']:.4f}", f"{r['upper']:.2f}", f"{r['divergence']:.1f}"])
    return table(["run", "seed", "share of ξ", "q from a mean-field", "q from the prior"], rows)


def seeds() -> str:
    """Sketches at 100 epochs, each row from its own start by Muon: bound · −log p · training bound."""
    found = {}
    for r in read(ROOT / "results", "sketch"):
        own = r["configuration"]
        settings = own.get("tail"), own.get("path", "none"), own["rate"], epochs_before(own["begun"]) + r["epochs"]
        alone = own["begun"].startswith(r["row"] + " ") and "that with" not in own["begun"]
        if alone and settings == (1.0, "none", 1.2e-3, 100):
            found[r["seed"], r["row"]] = " · ".join(f"{r[key]:.2f}" for key in SIDES)
    rows = [
        [seed, *(found.get((seed, row), "—") for row in ("draw-sketch", "draw-sketch-vgp"))]
        for seed in sorted({seed for seed, _ in found})
    ]
    return table(["seed", *PAIR[:2]], rows)


def places() -> str:
    """Training bounds of plain DRAW on sketches from several places of its windows, a column for each seed."""
    by = {}
    for measured in (record("paths-sketch"), record("paths-sketch-3")):
        for r in measured["figures"]:
            by.setdefault(r["path"], {})[r["seed"]] = f"{r['train'][-1]:.2f}"
    seeds = sorted({seed for each in by.values() for seed in each})
    rows = [[path, *(each.get(seed, "—") for seed in seeds)] for path, each in by.items()]
    return table(["the windows begin", *(f"seed {seed}" for seed in seeds)], rows)


def parting() -> str:
    """By how much a way is ahead of the first plain DRAW on small sketches: means over seeds and their errors."""
    return _ways("none", 1.2e-3)


def ringed() -> str:
    """The same where the windows begin on a ring."""
    return _ways("ring", 1.2e-3)


def quicker() -> str:
    """The same on a ring at a higher rate."""
    return _ways("ring", 2e-3)


def _ways(path: str, rate: float) -> str:
    by: dict[tuple, dict] = {}
    for measured in records("parting-*"):
        own = measured["configuration"]
        if (own.get("path", "none"), own["rate"], own.get("data", "sketch")) == (path, rate, "sketch"):
            by |= {(r["epochs"], r["way"], own["seed"]): r for r in measured["figures"]}
    leads: dict[tuple, list[tuple[float, float]]] = {}
    for (epochs, way, seed), r in by.items():
        plain = by[epochs, "plain", seed]
        leads.setdefault((epochs, way), []).append((plain["bound"] - r["bound"], plain["train"] - r["train"]))
    rows = []
    for epochs, way in sorted(leads, key=lambda key: (key[0], [*WAYS, key[1]].index(key[1]))):
        bounds = [r["bound"] for key, r in by.items() if key[:2] == (epochs, way)]
        test, train = zip(*leads[epochs, way], strict=True)
        if way == "plain":
            rows.append([epochs, WAYS[way], mean_and_error(bounds), "", "", ""])
        else:
            first = f"{sum(lead > 0 for lead in test)} of {len(test)}"
            rows.append(
                [epochs, WAYS.get(way, way), mean_and_error(bounds), *map(mean_and_error, (test, train)), first]
            )
    head = ["epochs", "row", "test bound", "ahead of plain DRAW by", "in training by", "seeds ahead"]
    return table(head, rows)


WAYS = {
    "plain": "plain DRAW",
    "again": "plain DRAW that left it at epoch 10",
    "late": "a VGP, from the branch on",
    "early": "a VGP, from epoch 10 on",
    "from the start": "a VGP, from the start",
    "without ξ": "its network from the start, ξ at zero",
}  # what to call the ways of benchmarks/parting.py


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


def least() -> str:
    """What a training step of DRAW cannot do without, beside what it takes."""
    return _steps(record("draw-floor")["figures"])


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
