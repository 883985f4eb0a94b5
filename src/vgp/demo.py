"""`vgp demo`: a VGP and its rivals on built-in posteriors, compared in a table, in pictures and in a record."""

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.random as jr
import numpy as np
import numpyro
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from . import __version__, diagnostics, families, plots, rivals
from .compiled import sample as draw
from .fit import fit
from .summary import khat_word, sandwich
from .target import Target
from .targets.shapes import SHAPES

QUICK_TARGETS = ("banana", "eight-schools")
NORMALISED = ("banana", "x-shape", "two-modes", "funnel")
FAMILIES = ("VGP", "MeanField", "FullRank", "AutoIAFNormal", "AutoBNAFNormal")
GAUSSIANS = ("MeanField", "FullRank")
COLOURS = {"good": "green", "usable": "yellow"}


@dataclass(frozen=True)
class Effort:
    """How much work a demo does. `steps` of None are `vgp.fit`'s own; the flows have no stopping rule."""

    steps: int | None
    flow_steps: int
    measured: int  # fresh draws for the ELBO and k-hat,
    inner: int  # and samples of ξ for each of them


FULL = Effort(steps=None, flow_steps=6000, measured=16384, inner=200)
QUICK = Effort(steps=100, flow_steps=100, measured=2048, inner=20)


@dataclass(frozen=True)
class Row:
    """One family fitted to one target, as the record keeps it."""

    target: str
    family: str
    elbo_lower: float
    elbo_upper: float
    elbo_stderr: float
    khat: float
    steps: int
    status: str
    seconds: float  # of the fit, its compilation included
    measuring_seconds: float  # of the ELBO and k-hat
    from_cache: int  # compiled programs that an earlier run had left


class Interrupted(Exception):
    """Ctrl-C: raised between runs, so that what is done is kept."""


def run(out: Path, targets: Sequence[str] | None = None, *, quick: bool = False, seed: int = 0) -> bool:
    """Runs the demo into the folder `out`. False if Ctrl-C ended it before the last run."""
    console, effort = Console(), QUICK if quick else FULL
    names = list(dict.fromkeys(targets or (QUICK_TARGETS if quick else SHAPES)))
    for name in names:
        if name not in SHAPES:
            raise ValueError(f"There is no target '{name}'; take one of {', '.join(SHAPES)}.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"The folder '{out}' cannot be made ({error.strerror}); pass another with --out.") from error
    started, hits, rows, complete = time.monotonic(), CacheHits(), [], False
    try:
        for name in names:
            _one_target(name, effort, seed, out, console, rows, hits)
        complete = True
    except (Interrupted, KeyboardInterrupt):
        pass
    finally:
        seconds = time.monotonic() - started
        _write_record(out / "demo.json", rows, seconds, seed, quick, complete)
    if not complete:
        console.print(f"Stopped by Ctrl-C after {len(rows)} of {len(names) * len(FAMILIES)} runs; these are kept.")
    for sentence in _findings(rows, quick):
        console.print(sentence)
    console.print(
        f"The pictures are in {out}, beside the record demo.json: good draws fill the black contours and nothing else. "
        f"All of it took {seconds:.0f} s."
    )
    return complete


def _one_target(name, effort, seed, out, console, rows, hits):
    target = SHAPES[name]()
    draws, notes, here = {}, {}, []
    try:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            for family in FAMILIES:
                spinner = Spinner("dots", f"fitting {family} to {name}")
                live.update(Group(_table(name, target.dim, here, effort), spinner))
                key = jr.fold_in(jr.fold_in(jr.key(seed), list(SHAPES).index(name)), FAMILIES.index(family))
                row, points = _one_run(name, target, family, key, effort, hits, out)
                here.append(row)
                rows.append(row)
                if points is not None:
                    draws[family], notes[family] = points, f"ELBO {row.elbo_lower:.3f}"
                if row.status == "interrupted":
                    raise Interrupted
    finally:
        if here:
            console.print(_table(name, target.dim, here, effort), "")
        if draws:
            plots.compare(target, draws, notes).savefig(out / f"{name}.png", dpi=130)


def _one_run(name, target: Target, family, key, effort, hits, out) -> tuple[Row, np.ndarray | None]:
    # The row, and where there is a picture to draw the draws for it.
    fit_key, measure_key, draw_key = jr.split(key, 3)
    before, started = hits.count, time.monotonic()
    if family in rivals.GUIDES:
        result = rivals.fit_guide(target, family, key=fit_key, steps=effort.flow_steps, measured=effort.measured)
        elbo, khat, steps, status, seconds = result.elbo, result.khat, result.steps, "max_steps", result.seconds
        measuring, from_cache = time.monotonic() - started - seconds, hits.count - before
        draws = result.sample(draw_key, plots.DRAWS) if target.dim == 2 else None
    else:
        chosen = None if family == "VGP" else getattr(families, family)(target.dim, key=jr.fold_in(fit_key, 1))
        # The search for a start is part of the VGP's default; its rivals begin as they usually do, at the origin.
        start = "auto" if family == "VGP" else None
        result = fit(target, chosen, key=fit_key, steps=effort.steps, start=start, progress=False)
        seconds, from_cache = time.monotonic() - started, hits.count - before
        ratios = diagnostics.log_ratios(target, result.family, measure_key, effort.measured, effort.inner)
        elbo, khat = ratios.elbo, diagnostics.pareto_khat(ratios.lower)
        measuring = time.monotonic() - started - seconds
        steps, status = len(result.histories), result.status.name
        draws = draw(result.family, draw_key, plots.DRAWS) if target.dim == 2 else None
        if family == "VGP":
            plots.plot(result).savefig(out / f"{name}-vgp.png", dpi=130)
    row = Row(name, family, *elbo, khat, steps, status, seconds, measuring, from_cache)
    return row, None if draws is None else np.asarray(draws)


class CacheHits:
    """Counts the compiled programs that JAX took from an earlier run, which make the seconds smaller."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_listener(self._listen)

    def _listen(self, event: str, **_):
        self.count += event == "/jax/compilation_cache/cache_hits"


# ---------------------------------------------------------------- what is shown and written


def _table(name: str, dim: int, rows: Sequence[Row], effort: Effort) -> Table:
    caption = "Normalised, so an ELBO of 0 is exact. " if name in NORMALISED else "Not normalised: higher is closer. "
    caption += f"Flows: {effort.flow_steps} steps of {rivals.guides.DRAWS} draws. Seconds of fitting, "
    cached = any(row.from_cache for row in rows)
    caption += "partly compiled by an earlier run." if cached else "compilation included."
    table = Table(title=f"{name}, {dim} dimensions", caption=caption, box=SIMPLE_HEAD, pad_edge=False)
    table.title_justify = table.caption_justify = "left"
    table.add_column("family", no_wrap=True)
    table.add_column("ELBO", no_wrap=True)
    table.add_column("k-hat", no_wrap=True)
    table.add_column("seconds", justify="right")
    for row in rows:
        word = khat_word(row.khat)
        khat = Text(f"{row.khat:5.2f} {word}", COLOURS.get(word, "red"))
        family = f"{row.family} (cut)" if row.status == "interrupted" else row.family
        table.add_row(family, Text(_shown(row)), khat, f"{row.seconds:.1f}")
    return table


def _shown(row: Row) -> str:
    # Both sides of the sandwich, or the one value of a family whose density is exact.
    text = sandwich(row.elbo_lower, row.elbo_upper, row.elbo_stderr)
    if row.elbo_lower != row.elbo_upper:
        return text
    value, error = text.split("] ± ")
    return f" {value.split(', ')[1]} ± {error}"


def _findings(rows: Sequence[Row], quick: bool) -> list[str]:
    if quick:
        return ["A quick run: everything works, and the few steps say nothing about the families."]
    rows = [row for row in rows if row.status != "interrupted"]
    lost = {(row.target, row.family): -row.elbo_lower for row in rows if row.target in NORMALISED}
    vgp = [lost[key] for key in lost if key[1] == "VGP"]
    gaussian = [lost[key] for key in lost if key[1] in GAUSSIANS]
    if not vgp or not gaussian:
        return []
    best: dict[str, Row] = {}
    for row in rows:
        best[row.target] = max(best.get(row.target, row), row, key=lambda r: r.elbo_lower)
    won = {family: ", ".join(name for name, row in best.items() if row.family == family) for family in FAMILIES}
    winners = "; ".join(f"{family} on {names}" for family, names in won.items() if names)
    return [
        f"Where 0 is exact, a Gaussian loses {min(gaussian):.2f} to {max(gaussian):.2f} nats, because it cannot bend "
        f"or split; the VGP bends one by a Gaussian process and loses at most {max(vgp):.3f}.",
        f"Highest ELBO: {winners}. Each family had one start, and flows depend on theirs: "
        "another --seed may change that.",
    ]


def _write_record(path: Path, rows: Sequence[Row], seconds: float, seed: int, quick: bool, complete: bool):
    record = {
        "versions": {"vgp": __version__, "jax": jax.__version__, "numpyro": numpyro.__version__},
        "seed": seed,
        "quick": quick,
        "complete": complete,
        "seconds": round(seconds, 1),
        "rows": [{key: _plain(value) for key, value in asdict(row).items()} for row in rows],
    }
    # Replaced as a whole, so that a full disk does not leave half a record.
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, path)


def _plain(value):
    # JSON has no NaN.
    return None if isinstance(value, float) and not math.isfinite(value) else value
