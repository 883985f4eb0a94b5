"""What all tables need: the records, and Markdown."""

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]


SIDES = ("bound", "estimate", "train_bound")  # of a record


def record(name: str):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def records(names: str) -> list:
    """All whose names are like this one, such as parting-*."""
    return [record(path.stem) for path in sorted((ROOT / "results").glob(f"{names}.json"))]


def table(head, rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def mean_and_error(values) -> str:
    """A mean over seeds, and its standard error if there are several."""
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


def small(rows, named) -> str:
    """Families on small images: means over the seeds, and the range of the bound."""
    out = []
    for name in dict.fromkeys(map(named, rows)):
        mine = [row for row in rows if named(row) == name]
        bounds = [row["bound"] for row in mine]
        mean = {key: statistics.fmean(row[key] for row in mine) for key in ("bound", "estimate", "train", "seconds")}
        spread = f" ({min(bounds):.2f} to {max(bounds):.2f})" if len(bounds) > 1 else ""
        out.append(
            [
                name,
                f"{mean['bound']:.2f}{spread}",
                f"{mean['estimate']:.2f}",
                f"{mean['train']:.2f}",
                f"{mean['seconds']:.0f}",
            ]
        )
    return table(["q(z \\| x)", "test bound (seeds)", "−log p, 500 samples", "training bound", "seconds"], out)
