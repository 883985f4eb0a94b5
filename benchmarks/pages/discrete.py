"""Tables of docs/discrete.md."""

import statistics

from vgp.experiments.table import Group, markdown, read

from .common import ROOT, SIDES, mean_and_error, record, table


def discrete() -> str:
    """Sigmoid belief networks, with our records."""
    return markdown("discrete", ROOT / "results")


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
        step = {row: timed.get(f"{row}, dreams" if dreams else row, {}).get("ms") for row in (vgp, name)}
        by_seed: dict[int, dict] = {}
        for row, epochs in ((vgp, ours), *((name, them) for them in theirs)):
            own = [r for r in found if r["row"] == row and r["epochs"] in epochs]
            asked = {"gradient": "LocalExpectations", "dreams": dreams} | ({"reach": reach} if row == vgp else {})
            own = [r for r in own if all(r["configuration"].get(key, 0.0) == value for key, value in asked.items())]
            if row == vgp:
                by_seed = {r["seed"]: r for r in own}
            leads = ["" if row == vgp else _lead(own, by_seed, side) for side in ("bound", "train_bound")]
            # A dash where such steps have not been timed.
            epochs_run = statistics.fmean(r["epochs"] for r in own)
            spent = f"{step[row] / step[name] * epochs_run:.0f}" if step[row] and step[name] else "—"
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
    return mean_and_error([r[side] - by_seed[r["seed"]][side] for r in own])


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
