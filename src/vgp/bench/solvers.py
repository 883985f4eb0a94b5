"""`vgp bench solvers`: what dense, Toeplitz and Kronecker algebra cost, how that grows with m, and GPyTorch beside it.

Parts, in this order: `step`, one optimisation step on a million inputs, first so that the peak of the process is its
own; `growth`, time and memory against m; `crossing`, from where on Toeplitz algebra is quicker than dense; `gpytorch`.
Memory is that of the compiled program (`measure.held`), and for the step the peak of the process or device.
"""

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..experiments.records import setting, text
from ..plots import BLUE, GREY, ORANGE, Picture
from . import rival
from .growth import ALGEBRAS, POINTS, crossing, exponents, measure_crossing, measure_growth
from .step import measure_step

PARTS = ("step", "growth", "crossing", "gpytorch")
COLOURS = {"dense": GREY, "Toeplitz": BLUE, "Kronecker": ORANGE}


def run(out: Path, only: str | None = None, *, quick: bool = False) -> None:
    """Measures all parts or one; a table to the terminal, solvers.png and solvers.json to the folder `out`.

    A single part has a record of its own name, and a quick run none.
    """
    if only is not None and only not in PARTS:
        raise ValueError(f"There is no part '{only}' of this benchmark; take one of {', '.join(PARTS)}.")
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    wanted = PARTS if only is None else (only,)
    measure = {"step": _step, "growth": _growth, "crossing": _crossing, "gpytorch": _gpytorch}
    figures = {}
    for part in wanted:
        with console.status(f"measuring: {part}" + (" (some minutes)" if not quick else "")):
            figures[part] = measure[part](console, quick)
    for table in _tables(figures):
        console.print(table)
    if "growth" in figures:
        _picture(figures).savefig(out / "solvers.png", dpi=130)
        console.print(f"The picture is solvers.png in {out}.")
    if not quick:
        name = "solvers" if only is None else f"solvers-{only}"
        configuration = {"points_per_lengthscale": POINTS, "points": {k: a.points for k, a in ALGEBRAS.items()}}
        record = {"name": name, "configuration": configuration, "figures": figures, **setting()}
        (out / f"{name}.json").write_text(text(record))
        console.print(f"The record is {name}.json in {out}.")


def _step(console: Console, quick: bool) -> dict[str, Any]:
    return measure_step(6, 2, 2) if quick else measure_step(100, 3)


def _growth(console: Console, quick: bool) -> dict[str, Any]:
    found: dict[str, list] = {name: [] for name in ALGEBRAS}
    for name, row in measure_growth(quick):
        found[name].append(row)
        console.print(f"{name}, m = {row['size']}: forward {_ms(row['forward'])}, gradient {_ms(row['gradient'])}")
    return {name: {"rows": rows, "exponents": exponents(rows)} for name, rows in found.items()}


def _crossing(console: Console, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for row in measure_crossing(quick):
        rows.append(row)
        told = f"dense {row['dense']:.3g} ms, Toeplitz {row['Toeplitz']:.3g} ms"
        console.print(f"{row['points']} points, m = {row['size']}: {told}")
    each = {points: [row for row in rows if row["points"] == points] for points in {row["points"]: 0 for row in rows}}
    return [{"points": points, "rows": mine, "crossing": crossing(mine)} for points, mine in each.items()]


def _gpytorch(console: Console, quick: bool) -> dict[str, Any] | None:
    version = rival.installed()
    if version is None:
        console.print("GPyTorch is not installed: no comparison.")
        return None
    rows = []
    for row in rival.compare(quick):
        rows.append(row)
        console.print(f"GPyTorch, m = {row['size']}: {row['their_ms']:.4g} ms, ours {row['our_ms']:.3g} ms")
    return {"version": version, "tolerance": rival.TOLERANCE, "points": rival.COUNT, "rows": rows}


# ---------------------------------------------------------------- what is shown


def _ms(cell: dict[str, float]) -> str:
    return f"{cell['ms']:.3g} ms and {cell['megabytes']:.3g} MB"


def _tables(figures: dict[str, Any]) -> list[Table]:
    tables = []
    if step := figures.get("step"):
        cells = [
            str(step["size"]),
            f"{step['ms']:.3g}",
            f"{step['peak_megabytes']:.0f}",
            f"{step['first_seconds']:.0f}",
        ]
        tables.append(_table("One optimisation step", ["m", "ms", "peak, MB", "compilation, s"], [cells]))
    if growth := figures.get("growth"):
        rows = []
        for name, found in growth.items():
            for row in found["rows"]:
                cells = [f"{row[kind][unit]:.3g}" for unit in ("ms", "megabytes") for kind in ("forward", "gradient")]
                rows.append([name, str(row["size"]), *cells])
            powers = found["exponents"]
            cells = [f"{powers[kind][unit]:.2f}" for unit in ("ms", "megabytes") for kind in ("forward", "gradient")]
            rows.append([name, "exponent", *cells])
        tables.append(_table("Growth", ["algebra", "m", "ms", "gradient ms", "MB", "gradient MB"], rows))
    if found := figures.get("crossing"):
        rows = [[str(one["points"]), f"{one['crossing']:.0f}"] for one in found]
        tables.append(_table("Crossing", ["points", "Toeplitz is quicker from m"], rows))
    if rival_figures := figures.get("gpytorch"):
        rows = [
            [str(r["size"]), f"{r['our_ms']:.3g}", f"{r['their_ms']:.4g}", f"{r['ratio']:.3g}"]
            + [f"{r[key]:.0e}" for key in ("our_error", "their_error")]
            for r in rival_figures["rows"]
        ]
        head = ["m", "ours, ms", "GPyTorch, ms", "ratio", "our error", "its error"]
        tables.append(_table(f"GPyTorch {rival_figures['version']}", head, rows))
    return tables


def _table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name in head:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _picture(figures: dict[str, Any]) -> Picture:
    figure = Picture(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, unit, label in zip(axes, ("ms", "megabytes"), ("milliseconds", "megabytes"), strict=True):
        for name, found in figures["growth"].items():
            sizes = [row["size"] for row in found["rows"]]
            for kind, style in (("forward", "-"), ("gradient", "--")):
                values = [row[kind][unit] for row in found["rows"]]
                told = f"{name}, {kind}: m^{found['exponents'][kind][unit]:.2f}"
                axis.loglog(sizes, values, style, marker="o", markersize=3, color=COLOURS[name], label=told)
        axis.set(xlabel="m", ylabel=label)
    if theirs := figures.get("gpytorch"):
        sizes = [row["size"] for row in theirs["rows"]]
        axes[0].loglog(
            sizes, [row["their_ms"] for row in theirs["rows"]], "x", color="black", label="GPyTorch, forward"
        )
    for axis in axes:
        axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure
