"""`vgp bench gradients`: estimators of the gradient for discrete variables, on posteriors that can be enumerated.

Cost is counted in evaluations of log p: ARM and DisARM take two for a draw, and have half the draws; local expectations
take two more for every variable. The variance is that of the whole gradient, the path through ξ included, on what
`vgp.fit`'s own estimator has trained: early, and at the end. `floor` is what there is to gain at most: the factor of
the gradient with z summed out, for as many ξ as the plain estimator has draws.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from rich.console import Console

from ..experiments.records import setting, text
from ..families import VGP, Factorised
from ..gradients import ARM, VIMCO, AbstractGradient, DisARM, LocalExpectations, ScoreFunction
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
    "local expectations": LocalExpectations(),
}
SEVERAL: dict[str, AbstractGradient] = {PLAIN: ScoreFunction("none", False), "VIMCO": VIMCO()}
FACTORISED = "mean-field q"
TRAINED = ("DisARM", "control variate", "control variate, Rao–Blackwell", PLAIN, FACTORISED)
COLOURS = dict(zip(TRAINED, (BLUE, "#4f9d69", "#8e6bb0", GREY, ORANGE), strict=True))


class Sizes(NamedTuple):
    """How much is measured."""

    estimators: tuple[str, ...]
    trained: tuple[str, ...]  # with these; the first is what `vgp.fit` takes
    outer: int  # draws for VIMCO; none without
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


FULL = Sizes(
    estimators=tuple(ESTIMATORS),
    trained=TRAINED,
    outer=4,
    variables=8,
    num_data=64,
    problems=3,
    seeds=3,
    marks=(125, 250, 500, 1000, 2000, 4000),
    cost=32,
    evaluations=64,
    batches=500,
    draws=2**16,
    inner=16,
)
QUICK = Sizes(
    estimators=(PLAIN, "baseline"),
    trained=TRAINED[:1],
    outer=0,
    variables=3,
    num_data=4,
    problems=1,
    seeds=1,
    marks=(2, 4),
    cost=8,
    evaluations=8,
    batches=8,
    draws=1024,
    inner=0,
)


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
        record = {"name": "gradients", "configuration": sizes._asdict(), "figures": figures, **setting()}
        (out / "gradients.json").write_text(text(record))
        console.print(f"The record is gradients.json in {out}.")


def _measured(console: Console, name: str, problem: Enumerable, sizes: Sizes) -> dict[str, Any]:
    curves, families = {}, []
    for label in sizes.trained:
        runs = [_curve(problem, label, seed, sizes) for seed in range(sizes.seeds)]
        curves[label] = {"evaluations": [mark * sizes.cost for mark in sizes.marks], "kl": [kl for kl, _ in runs]}
        families = families or runs[0][1]
        told = ", ".join(f"{kl[-1]:.3g}" for kl, _ in runs)
        console.print(f"{name}, {label}: KL(q ‖ p) {told} after {sizes.marks[-1] * sizes.cost} evaluations")
    stages = {}
    for stage, family in (("early", families[1]), ("late", families[-1])):
        stages[stage] = _variances(problem, family, sizes)
        console.print(f"{name}, variances {stage} in training: done")
    return {"curves": curves, "variances": stages}


def _curve(
    problem: Enumerable, label: str, seed: int, sizes: Sizes
) -> tuple[list[float], list[VGP] | list[Factorised]]:
    # The same family and the same noise to start from, whatever the estimator.
    start = jr.key(seed)
    family = factorised(problem.dim, start) if label == FACTORISED else vgp(problem.dim, sizes.num_data, start)
    gradient = ESTIMATORS[TRAINED[0] if label == FACTORISED else label]
    families = trained(
        problem.target, family, gradient, jr.key(100 + seed), sizes.marks, evaluations=sizes.cost, inner=sizes.inner
    )
    return [problem.divergence(one, jr.key(200 + seed), sizes.draws) for one in families], families


def _variances(problem: Enumerable, family: VGP | Factorised, sizes: Sizes) -> dict[str, Any]:
    def found(estimators: dict[str, AbstractGradient], outer: int) -> dict[str, Gradients]:
        same = {"evaluations": sizes.evaluations, "batches": sizes.batches, "inner": sizes.inner, "outer": outer}
        return {
            label: estimates(problem.target, family, gradient, jr.key(300), **same)
            for label, gradient in estimators.items()
        }

    exact = summed_out(problem.target, family, problem.states, jr.key(301), batches=sizes.batches, inner=sizes.inner)
    single = found({label: ESTIMATORS[label] for label in sizes.estimators}, 1)
    several = found(SEVERAL if sizes.outer else {}, sizes.outer)
    plain = single[PLAIN].variance
    rows = {label: _row(one, plain, exact) for label, one in single.items()}
    # With several outer draws the states are too many to sum over, and the means are held against each other.
    rows |= {
        f"{sizes.outer} outer draws: {label}": _row(one, several[PLAIN].variance, several["VIMCO"])
        for label, one in several.items()
    }
    return {"rows": rows, "floor": plain / (exact.variance / sizes.evaluations)}


def _row(found: Gradients, plain: float, reference: Gradients) -> dict[str, float]:
    share, stderr, off = (float("nan"),) * 3 if found is reference else found.along(reference)
    return {
        "variance": found.variance,
        "factor": plain / found.variance,
        "share": share,
        "share_stderr": stderr,
        "off": off,
    }


# ---------------------------------------------------------------- what is shown


def _tables(figures: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    tables = []
    for name, found in figures.items():
        early, late = (found["variances"][stage] for stage in ("early", "late"))
        rows = []
        for label, row in early["rows"].items():
            other = late["rows"][label]
            share = "" if np.isnan(row["share"]) else f"{row['share']:.2f} ± {row['share_stderr']:.2f}"
            off = "" if np.isnan(other["off"]) else f"{other['off']:.1f}"
            rows.append([label, f"{row['factor']:.3g}", f"{other['factor']:.3g}", share, off])
        rows.append(["z summed out", f"{early['floor']:.3g}", f"{late['floor']:.3g}", "", ""])
        head = ["", "early", "late", "mean / exact", "off, late"]
        tables.append((f"{name}: variance lower by", head, rows))
    rows = []
    for label in next(iter(figures.values()))["curves"]:
        ends = [[kl[-1] for kl in found["curves"][label]["kl"]] for found in figures.values()]
        rows.append([label, *(f"{min(end):.2g} – {max(end):.2g}" for end in ends)])
    return [*tables, ("KL(q ‖ p) after training, over the seeds", ["", *figures], rows)]


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
    axes[1, 0].legend(fontsize=7, loc="upper right")
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
