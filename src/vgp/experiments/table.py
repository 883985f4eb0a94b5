"""`vgp table`: the paper's tables, with what was published and what the records of our own runs say.

Our figures come only from the records, one JSON file per evaluated run in the folder `train` of the results.
"""

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .begun import epochs_before
from .published import PAPER, SIGNS, SOURCES, TABLES, Entry, Published

PROTOCOLS = ("fixed", "dynamic")
SHOWN = (  # what --json prints of a record, with `epochs` those of all runs behind it
    *("row", "data", "protocol", "seed", "bound", "bound_stderr", "bound_samples", "sandwich"),
    *("estimate", "estimate_stderr", "estimate_samples"),
    *("epochs", "seconds", "hardware", "commit", "configuration"),
)
NUMBER, NULL = (int, float), type(None)
KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    **dict.fromkeys(("row", "data", "protocol", "hardware", "commit"), ("text", (str,))),
    **dict.fromkeys(("seed", "bound_samples", "epochs"), ("a whole number", (int,))),
    **dict.fromkeys(("bound", "bound_stderr", "estimate", "estimate_stderr"), ("a number or null", (*NUMBER, NULL))),
    "estimate_samples": ("a whole number or null", (int, NULL)),
    "seconds": ("a number", NUMBER),
    "configuration": ("an object", (dict,)),
    "sandwich": ("a list of two numbers or null", (list, NULL)),
}
USUAL_SAMPLES = 5000
WORDS = {  # keys of a configuration that describe an architecture
    **{"latents": "z {}", "hidden": "hidden {}", "glimpses": "{} glimpses", "length": "length {}", "m": "m {}"},
    **{"num_data": "m {}", "latent_dim": "c {}", "rank": "rank {}", "inner": "K {}", "outer": "M {}"},
}

Record = dict[str, Any]
Cell = list[str]  # its lines


@dataclass(frozen=True)
class Grid:
    """A table before it is printed: below `rule` stand the rows that the paper does not have."""

    title: str
    head: list[str]
    rows: list[list[Cell]]
    rule: int
    notes: list[str]


@dataclass(frozen=True)
class Group:
    """The seeds of one configuration that was trained for one number of epochs."""

    records: list[Record]

    def mean(self, key: str) -> float | None:
        """The mean over the seeds; None if a seed has no figure.

        It serves for standard errors too: all seeds meet the same test images, so their errors do not average out.
        """
        values = [record[key] for record in self.records]
        return None if None in values else statistics.fmean(values)

    @property
    def score(self) -> float:
        estimate = self.mean("estimate")
        score = self.mean("bound") if estimate is None else estimate
        return math.inf if score is None else score

    def figures(self) -> Cell:
        """The bound and the estimate, each with what is unusual about it; a dash for one that is not finite."""
        first, out = self.records[0], []
        for key, usual in (("bound", 1), ("estimate", USUAL_SAMPLES)):
            value, error, samples = self.mean(key), self.mean(f"{key}_stderr"), first[f"{key}_samples"]
            if value is None and samples is None:  # never measured
                continue
            many = "" if samples in (usual, None) else f", k={samples}"
            spread = "" if value is None else f" ± {_shown(error)}"
            out.append(SIGNS[key] + _shown(value) + spread + many)
        return out


def show(name: str, results: Path, *, as_json: bool = False, as_markdown: bool = False, every: bool = False) -> None:
    """Prints the table `name` from the records in the folder `results`."""
    if as_json and as_markdown:
        raise ValueError("Expected one of --json and --markdown, got both; leave one out.")
    published, records = _published(name), read(results, name)
    if not records:
        where = Path(results) / "train"
        print(f"vgp: There are no records of '{name}' in '{where}'; --results names another folder.", file=sys.stderr)
    if as_json:
        told = [record | {"epochs": _in_all(record)} for record in records]
        print(json.dumps([{key: record[key] for key in SHOWN} for record in told], indent=2))
        return
    grid = every_record(published, records) if every else paper_table(published, records)
    print(_markdown(grid)) if as_markdown else _print(grid)


def markdown(name: str, results: Path) -> str:
    """The table `name` in GitHub's Markdown, for the docs."""
    return _markdown(paper_table(_published(name), read(results, name)))


def _published(name: str) -> Published:
    if name not in TABLES:
        raise ValueError(f"There is no table '{name}'; take one of {', '.join(TABLES)}.")
    return TABLES[name]


# ---------------------------------------------------------------- records


def read(results: Path, name: str) -> list[Record]:
    """The records of the table `name`, in the order of their files' names; a malformed file raises, whatever it is."""
    records = [_checked(path) for path in sorted((Path(results) / "train").glob("*.json"))]
    return [record for record in records if _published(name).holds(record)]


def _checked(path: Path) -> Record:
    todo = "evaluate that run again or remove the file"
    try:
        # A figure that is not finite is no figure.
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected JSON in the record '{path}', got something else ({error}); {todo}.") from error
    if not isinstance(record, dict):
        raise ValueError(f"Expected a JSON object in the record '{path}', got {type(record).__name__}; {todo}.")
    for key, (expected, types) in KINDS.items():
        if key not in record:
            raise ValueError(f"Expected the key '{key}' in the record '{path}', and it is missing; {todo}.")
        if not isinstance(record[key], types) or isinstance(record[key], bool):
            raise ValueError(f"Expected {expected} as '{key}' in the record '{path}', got {record[key]!r}; {todo}.")
    if record["protocol"] not in PROTOCOLS:
        took = f"got '{record['protocol']}'"
        raise ValueError(f"Expected 'fixed' or 'dynamic' as 'protocol' in the record '{path}', {took}; {todo}.")
    return record | {"file": path.name}


def grouped(records: Iterable[Record]) -> list[Group]:
    """Groups of like runs, the best estimate first. Of two records of one seed the newer counts."""
    groups: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=lambda record: (str(record.get("date", "")), record["file"])):
        configuration = {key: value for key, value in record["configuration"].items() if key != "seed"}
        same = [record[key] for key in ("row", "protocol", "epochs", "bound_samples", "estimate_samples")]
        groups.setdefault(json.dumps([*same, configuration], sort_keys=True), {})[record["seed"]] = record
    return sorted((Group(list(seeds.values())) for seeds in groups.values()), key=lambda group: group.score)


# ---------------------------------------------------------------- tables


def paper_table(published: Published, records: Sequence[Record]) -> Grid:
    """The paper's rows in its order, then the rows that only we have; of every row the best group by protocol."""
    groups, entries = grouped(records), list(published.entries)
    for group in sorted(groups, key=lambda group: (group.records[0]["row"], group.records[0]["epochs"])):
        if not any(_belongs(group, entry) for entry in entries):
            entries.append(_other(published, group.records[0]))
    columns = {"paper": "paper", **{protocol: f"published, {protocol}" for protocol in PROTOCOLS}}
    quoted = [column for column in columns if any(getattr(entry, column) for entry in published.entries)]
    rows = []
    for entry in entries:
        source = "" if entry.source is None else f" [{entry.source}]"
        cells = [[entry.model + source, *([entry.row] if entry.row != entry.model else [])]]
        cells += [[str(figure) for figure in getattr(entry, column)] or ["—"] for column in quoted]
        mine = [group for group in groups if _belongs(group, entry)]
        cells += [_ours(entry, [g for g in mine if g.records[0]["protocol"] == protocol]) for protocol in PROTOCOLS]
        rows.append(cells)
    head = ["model", *(columns[column] for column in quoted), *(f"ours, {p}" for p in PROTOCOLS)]
    return Grid(published.title, head, rows, len(published.entries), _notes(published, entries, records))


def _belongs(group: Group, entry: Entry) -> bool:
    record = group.records[0]
    return record["row"] in (entry.row, *entry.also) and entry.epochs in (None, _in_all(record))


def _in_all(record: Record) -> int:
    # With the epochs of the run that it began with.
    return record["epochs"] + epochs_before(record["configuration"].get("begun"))


def _other(published: Published, record: Record) -> Entry:
    by_epochs = any(entry.epochs for entry in published.entries)
    mine = Entry(record["row"], record["row"], epochs=_in_all(record) if by_epochs else None)
    return next((entry for entry in published.others if entry.row == record["row"]), mine)


def _ours(entry: Entry, groups: Sequence[Group]) -> Cell:
    if not groups:
        return ["not yet run"]
    best, first = groups[0], groups[0].records[0]
    count, key = len(best.records), "bound" if best.mean("estimate") is None else "estimate"
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    if count > 1 and math.isfinite(best.score):
        values = [record[key] for record in best.records]
        seeds += f", range {max(values) - min(values):.2f}"
    lines = [*best.figures(), first["row"] if first["row"] != entry.row else "", architecture(first["configuration"])]
    lines += [f"{first['epochs']} epochs, {statistics.fmean(r['seconds'] for r in best.records):.0f} s", seeds]
    begun = first["configuration"].get("begun")
    lines += [f"begun with {begun}"] if begun else []
    lines += [f"best of {len(groups)} settings"] if len(groups) > 1 else []
    return [line for line in lines if line]


def architecture(configuration: dict[str, Any]) -> str:
    """A configuration in a few words, such as "z 100-50, hidden 200-200 / 100-100, m 32"."""
    values = {key: configuration[key] for key in WORDS if configuration.get(key)}  # without None and 0
    if not str(configuration.get("family") or "vgp").startswith("vgp"):
        values = {key: value for key, value in values.items() if key not in ("m", "num_data", "rank")}
    while isinstance(values.get("inner"), list):  # pairs of a share of the run and its K: the last K counts
        values["inner"] = values["inner"][-1] if values["inner"] else None
    words = [
        WORDS[key].format(_short(value)) for key, value in values.items() if value and (key, value) != ("outer", 1)
    ]
    words += ["inputs per x"] if configuration.get("inputs") == "network" else []
    words += ["windows on a ring"] if configuration.get("path") == "ring" else []
    words += [configuration["gradient"]] if configuration.get("model") == "sbn" else []  # the figure depends on it
    words += [f"{configuration['flip']:.0%} flipped"] if configuration.get("flip") else []
    words += [f"dreams {configuration['dreams']:g}"] if configuration.get("dreams") else []
    words += ["Muon"] if configuration.get("optimizer") == "muon" else []
    return ", ".join(words)


def _short(value) -> str:
    if not isinstance(value, list):
        return str(value)
    return (" / " if any(isinstance(part, list) for part in value) else "-").join(map(_short, value))


def every_record(published: Published, records: Sequence[Record]) -> Grid:
    """Every record on its own, in the order of the paper's rows."""
    order = [entry.row for entry in published.entries]
    place = lambda row: (order.index(row) if row in order else len(order), row)  # noqa: E731
    ordered = sorted(records, key=lambda r: (place(r["row"]), r["protocol"], r["epochs"], Group([r]).score, r["file"]))
    rows = []
    for record in ordered:
        run = [record["row"], f"{record['protocol']}, seed {record['seed']}"]
        effort = [f"{record['epochs']} epochs", f"{record['seconds']:.0f} s", record["hardware"]]
        figures = Group([record]).figures()
        if record["sandwich"]:
            figures.append("[" + ", ".join(map(_shown, record["sandwich"])) + "]")
        rows.append([run, figures, effort, [architecture(record["configuration"])], [record["file"]]])
    rule = sum(record["row"] in order for record in ordered)
    notes = [_legend() + " In brackets: the two sides of a sandwich, of which only the larger is a bound."]
    return Grid(published.title, ["run", "figures", "effort", "architecture", "record"], rows, rule, notes)


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, NUMBER) else "—"


def _legend() -> str:
    return (
        "Lower is better. ≤ a bound, of one sample unless k says otherwise; ≈ an estimate, ours of "
        f"{USUAL_SAMPLES} importance samples; = exact; no sign: not stated. ± is the standard error over test images."
    )


def _notes(published: Published, entries: Sequence[Entry], records: Sequence[Record]) -> list[str]:
    notes = [_legend()]
    if records:
        hardware = "; ".join(sorted({record["hardware"] for record in records}))
        notes.append(
            "Ours are means over seeds, of the setting whose estimate is best on the test images. "
            "z: latent variables; m: variational pairs; c: dimensions of ξ; K, M: inner and outer training samples. "
            f"Seconds on: {hardware}."
        )
    used = sorted({entry.source for entry in entries if entry.source is not None})
    paper = [f"{PAPER}, the paper"] if any(entry.paper for entry in entries) else []
    sources = "; ".join([*paper, *(f"[{number}] {SOURCES[number]}" for number in used)])
    return [*notes, *published.notes, f"Quoted: {sources}."]


# ---------------------------------------------------------------- printing


def _print(grid: Grid) -> None:
    from rich.box import HORIZONTALS
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # In a pipe rich would take 80 columns, too few for these.
    piped = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    console = Console(width=100 if piped else None, highlight=False)
    table = Table(title=grid.title, title_justify="left", box=HORIZONTALS, padding=(0, 1, 0, 0), show_edge=False)
    for name in grid.head:
        narrow = name == "paper" or name.startswith("published")
        table.add_column(name.replace(", ", "\n"), no_wrap=narrow)
    for number, row in enumerate(grid.rows, 1):
        table.add_row(*(Text("\n".join(cell)) for cell in row), end_section=number == grid.rule)
        if number != len(grid.rows) and number != grid.rule and max(map(len, row)) > 2:
            table.add_row()
    console.print(table)
    console.print()
    for note in grid.notes:
        console.print(note, markup=False)


def _markdown(grid: Grid) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    lines = [line(grid.head), line(["---"] * len(grid.head))]
    for number, row in enumerate(grid.rows):
        if 0 < number == grid.rule:
            lines.append(line(["*not in the paper:*", *[""] * (len(grid.head) - 1)]))
        lines.append(line("<br>".join(cell).replace("|", "\\|") for cell in row))
    return "\n".join([*lines, "", "\n\n".join(grid.notes)])
