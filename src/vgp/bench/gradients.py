"""`vgp bench gradients`: estimators of the gradient for discrete variables, on posteriors that can be enumerated.

Cost is counted in evaluations of log p: ARM and DisARM take two for a draw, and have half the draws. The variance is
that of the whole gradient, the path through ξ included, which is the same for all: `floor` is the variance with z summed
out, below which no estimator gets with as many draws. It is measured early in training and at its end.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from rich.console import Console

from ..experiments.records import setting, text
from ..families import VGP
from ..gradients import ARM, VIMCO, AbstractGradient, DisARM, ScoreFunction
from ..plots import BLUE, GREY, ORANGE, Picture
from .curves import trained
from .problems import Enumerable, factorised, problems, vgp
from .solvers import _table
from .variance import Gradients, estimates, summed_out

PLAIN = "score function"
ESTIMATORS: dict[str, AbstractGradient] = {
    PLAIN: ScoreFunction("none", False),
    "Rao–Blackwell": ScoreFunction("none", True),
    "baseline": ScoreFunction("mean", False),
    "baseline, Rao–Blackwell": ScoreFunction("mean", True),
    "control variate": ScoreFunction("optimal", False),
    "control variate, Rao–Blackwell": ScoreFunction("optimal", True),
    "ARM": ARM(),
    "DisARM": DisARM(),
}
SEVERAL: dict[str, AbstractGradient] = {PLAIN: ScoreFunction("none", False), "VIMCO": VIMCO()}
TRAINED = (PLAIN, "control variate", "control variate, Rao–Blackwell", "DisARM")
BEST = "DisARM"  # what `vgp.fit` takes; the variances are measured on what it has trained
FACTORISED = "mean-field q"
COLOURS = dict(zip(TRAINED, (GREY, "#4f9d69", "#8e6bb0", BLUE), strict=True)) | {FACTORISED: ORANGE}
OUTER = 4


class Sizes(NamedTuple):
    """How much is measured."""

    variables: int
    num_data: int
    problems: int
    seeds: int
    marks: tuple[int, ...]  # steps at which KL(q ‖ p) is measured; the second is early in training, the last its end
    cost: int  # evaluations of log p in a step of training
    evaluations: int  # and for a gradient whose variance is measured
    batches: int  # of such gradients
    draws: int  # of ξ, for q at all states
    inner: int


FULL = Sizes(8, 64, 3, 3, (125, 250, 500, 1000, 2000, 4000), 32, 64, 500, 2**16, 16)
QUICK = Sizes(3, 4, 1, 1, (2, 4), 8, 8, 8, 1024, 0)


def run(out: Path, *, quick: bool = False) -> None:
    """Trains and measures; tables to the terminal, gradients.png and gradients.json to the folder `out`.

    A quick run has no record.
    """
    out.mkdir(parents=True, exist_ok=True)
    console, sizes = Console(), QUICK if quick else FULL
    figures: dict[str, Any] = {}
    for name, problem in list(problems(sizes.variables).items())[: sizes.problems]:
        with console.status(f"{name}" + (" (some minutes)" if not quick else "")):
            figures[name] = _measured(console, name, Enumerable.of(problem), sizes)
    for title, head, rows in _tables(figures):
        console.print(_table(title, head, rows))
    picture(figures).savefig(out / "gradients.png", dpi=130)
    console.print(f"The picture is gradients.png in {out}.")
    if not quick:
        configuration = {**sizes._asdict(), "outer": OUTER}
        record = {"name": "gradients", "configuration": configuration, "figures": figures, **setting()}
        (out / "gradients.json").write_text(text(record))
        console.print(f"The record is gradients.json in {out}.")


def _measured(console: Console, name: str, problem: Enumerable, sizes: Sizes) -> dict[str, Any]:
    curves, families = {}, []
    for label in (*TRAINED, FACTORISED):
        runs = [_curve(problem, label, seed, sizes) for seed in range(sizes.seeds)]
        curves[label] = {"evaluations": [mark * sizes.cost for mark in sizes.marks], "kl": [kl for kl, _ in runs]}
        families = runs[0][1] if label == BEST else families
        told = ", ".join(f"{kl[-1]:.3g}" for kl, _ in runs)
        console.print(f"{name}, {label}: KL(q ‖ p) {told} after {sizes.marks[-1] * sizes.cost} evaluations")
    stages = {}
    for stage, family in (("early", families[1]), ("late", families[-1])):
        stages[stage] = _variances(problem, family, sizes)
        told = ", ".join(f"{label} {row['factor']:.3g}" for label, row in stages[stage]["rows"].items())
        console.print(f"{name}, {stage}, variance lower by: {told}")
    return {"curves": curves, "variances": stages}


def _curve(problem: Enumerable, label: str, seed: int, sizes: Sizes) -> tuple[list[float], list[VGP]]:
    # The same family and the same noise to start from, whatever the estimator.
    start = jr.key(seed)
    family = factorised(problem.dim, start) if label == FACTORISED else vgp(problem.dim, sizes.num_data, start)
    gradient = ESTIMATORS[BEST if label == FACTORISED else label]
    families = trained(
        problem.target, family, gradient, jr.key(100 + seed), sizes.marks, evaluations=sizes.cost, inner=sizes.inner
    )
    return [problem.divergence(one, jr.key(200 + seed), sizes.draws) for one in families], families


def _variances(problem: Enumerable, family: VGP, sizes: Sizes) -> dict[str, Any]:
    def found(estimators: dict[str, AbstractGradient], outer: int = 1) -> dict[str, Gradients]:
        same = {"evaluations": sizes.evaluations, "batches": sizes.batches, "inner": sizes.inner, "outer": outer}
        return {
            label: estimates(problem.target, family, gradient, jr.key(300), **same)
            for label, gradient in estimators.items()
        }

    exact = summed_out(problem.target, family, problem.states, jr.key(301), batches=sizes.batches, inner=sizes.inner)
    single, several = found(ESTIMATORS), found(SEVERAL, OUTER)
    plain = single[PLAIN].variance
    return {
        "rows": {label: _row(one, plain, exact) for label, one in single.items()},
        "floor": plain / (exact.variance / sizes.evaluations),
        # There all states are too many to enumerate, and the means are held against each other.
        "several": {label: _row(one, several[PLAIN].variance, several["VIMCO"]) for label, one in several.items()},
    }


def _row(found: Gradients, plain: float, reference: Gradients) -> dict[str, float]:
    share, stderr = (float("nan"),) * 2 if found is reference else found.share(reference)
    return {"variance": found.variance, "factor": plain / found.variance, "share": share, "share_stderr": stderr}


# ---------------------------------------------------------------- what is shown


def _tables(figures: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    columns = [(name, stage) for name in figures for stage in ("early", "late")]
    stages = {column: figures[column[0]]["variances"][column[1]] for column in columns}
    several = f"{OUTER} outer draws: "
    cells = {label: [_told(stage["rows"][label]) for stage in stages.values()] for label in ESTIMATORS}
    cells |= {several + label: [_told(stage["several"][label]) for stage in stages.values()] for label in SEVERAL}
    cells["z summed out"] = [f"{stage['floor']:.3g}" for stage in stages.values()]
    curves = []
    for label in next(iter(figures.values()))["curves"]:
        ends = [[kl[-1] for kl in found["curves"][label]["kl"]] for found in figures.values()]
        curves.append([label, *(f"{np.median(end):.3g} ({min(end):.3g} to {max(end):.3g})" for end in ends)])
    head = [f"{name}, {stage}" for name, stage in columns]
    return [
        ("Factor by which the variance is lower, and the mean's share of the exact one", ["", *head], _wide(cells)),
        ("KL(q ‖ p) at the end of training, over the seeds", ["", *figures], curves),
    ]


def _told(row: dict[str, float]) -> str:
    share = "" if np.isnan(row["share"]) else f" ({row['share']:.2f} ± {row['share_stderr']:.2f})"
    return f"{row['factor']:.3g}{share}"


def _wide(cells: dict[str, list[str]]) -> list[list[str]]:
    return [[label, *row] for label, row in cells.items()]


def picture(figures: dict[str, Any]) -> Picture:
    """Above KL(q ‖ p) against evaluations of log p, below the factors by which variances are lower."""
    figure = Picture(figsize=(4.2 * max(len(figures), 2), 7.6), layout="constrained")
    axes = figure.subplots(2, len(figures), squeeze=False, sharey="row")
    for column, (name, found) in enumerate(figures.items()):
        for label, curve in found["curves"].items():
            middle = np.median(curve["kl"], axis=0)
            axes[0, column].loglog(curve["evaluations"], middle, marker="o", ms=3, color=COLOURS[label], label=label)
            axes[0, column].fill_between(
                curve["evaluations"], *_range(curve["kl"]), color=COLOURS[label], alpha=0.2, lw=0
            )
        axes[0, column].set(title=name, xlabel="evaluations of log p")
        _bars(axes[1, column], found["variances"])
    axes[0, 0].set_ylabel("KL(q ‖ p)")
    axes[0, 0].legend(fontsize=7)
    axes[1, 0].legend(fontsize=7, loc="lower right")
    return figure


def _range(values: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.min(values, axis=0), np.max(values, axis=0)


def _bars(axis, stages: dict[str, Any]) -> None:
    for i, (stage, colour) in enumerate((("early", GREY), ("late", BLUE))):
        rows = stages[stage]["rows"]
        places = np.arange(len(rows))[::-1] + 0.2 - 0.4 * i
        axis.barh(places, [row["factor"] for row in rows.values()], 0.38, color=colour, label=f"{stage} in training")
        axis.axvline(stages[stage]["floor"], color=colour, ls=":", lw=1)
    axis.set_yticks(np.arange(len(rows))[::-1], list(rows), fontsize=7)
    axis.set(xscale="log", xlabel="variance lower by (dotted: z summed out)")
