"""Tables of docs/deep_models.md."""

import itertools
import json
from datetime import datetime

import equinox as eqx
import jax
import numpy as np

from vgp.experiments.rows import build, find
from vgp.experiments.table import Group, markdown, read

from .common import ROOT, SIDES, record, records, small, table


def mnist() -> str:
    """Table 1 of the paper, with our records."""
    return markdown("mnist", ROOT / "results")


def families() -> str:
    """One layer of latents, the same networks, epochs and seeds: bound · estimate · training bound of each family."""
    names = {
        "mean-field": {"row": "dlgm1-vae", "split": None},
        "mean-field, sampled, StickingTheLanding": {"row": "dlgm1-vae", "split": False},
        "perceptron": {"row": "dlgm1-hvm"},
        "planar flow": {"row": "dlgm1-nf80"},
        "VGP": {"row": "dlgm1-vgp"},
    }
    found = read(ROOT / "results", "mnist")
    usual = {"architecture": "deep", "epochs": 300, "rate": 1e-3, "flip": 0.0, "dreams": 0.0}
    columns = {
        "dynamic": usual | {"protocol": "dynamic"},
        "fixed": usual | {"protocol": "fixed"},
        "fixed, 1 % flipped": usual | {"protocol": "fixed", "flip": 0.01},
        "fixed, with dreams": usual | {"protocol": "fixed", "dreams": 1.0},
        "and twice the rate, 220 epochs": usual | {"protocol": "fixed", "dreams": 1.0, "rate": 2e-3, "epochs": 220},
    }

    def cell(asked):
        own = [r for r in found if all((r["configuration"] | r).get(k, 0.0) == v for k, v in asked.items())]
        return " · ".join(f"{Group(own).mean(key):.2f}" for key in SIDES) if own else "—"

    return table(
        ["q(z \\| x)", "parameters", *columns],
        [[word, _parameters(own["row"]), *(cell(own | c) for c in columns.values())] for word, own in names.items()],
    )


def _parameters(name: str) -> int:
    learner = build(find(name), (28, 28), np.full(784, 0.1), jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_inexact_array)))


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
    rows = [row for measured in records("kept-*") for row in measured["figures"]]

    def told(row, key):
        return f"{row[key]:.2f} ± {row[f'{key}_stderr']:.2f}"

    out = []
    for name in dict.fromkeys(row["run"] for row in rows):
        own = {row["images"]: row for row in rows if row["run"] == name}
        first = own["test"]
        cells = [f"{own[side][key]:.2f}" for key in ("bound", "estimate") for side in ("training", "test")]
        apart = [told(own[side], "distance") for side in ("training", "test")]
        row = first["row"] + (", path=ring" if first.get("path") == "ring" else "")
        out.append([row, first["trained_with"], first["samples"], *cells, *apart])
    head = ["row", "draws in training", "samples of −log p", "bound, training", "bound, test", "−log p, training"]
    return table([*head, "−log p, test", "distance, training", "distance, test"], out)


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


def ablation() -> str:
    """Families with the same networks on 14 × 14 MNIST: means over seeds, and the range of the bound."""
    return small(record("ablation")["figures"], lambda row: row["family"])


def choices() -> str:
    """What the settings of `dlgm1-vgp` were chosen by, on 14 × 14 MNIST."""
    return small(record("choices")["figures"], lambda row: row["family"])


def noise() -> str:
    """The variance of the gradient by bound and estimator, in units of the quietest."""
    rows = record("noise")["figures"]
    stages = list(dict.fromkeys(row["epochs"] for row in rows))
    least = {epochs: min(row["variance"] for row in rows if row["epochs"] == epochs) for epochs in stages}
    out: dict[tuple, list[str]] = {}
    for row in rows:
        key = row["inner"], row["split"], row["gradient"]
        out.setdefault(key, []).append(f"{row['variance'] / least[row['epochs']]:.2f}")
    head = ["", "", "gradient", *(f"after {epochs} epoch{'s' if epochs > 1 else ''}" for epochs in stages)]
    return table(head, [[*key, *cells] for key, cells in out.items()])


def objectives() -> str:
    """The paper's row taken apart, on 14 × 14 MNIST."""
    return small(record("objectives")["figures"], lambda row: row["family"])


def dreams() -> str:
    """Families that learn on few images, without and with what the model draws."""
    return small(record("dreams")["figures"], lambda row: row["family"] + (", dreams" if row["dreams"] else ""))


def layers() -> str:
    """Two layers of latents, with one family over both or one for each."""
    return small(record("layers")["figures"], lambda row: row["family"])
