"""One JSON record per run of a benchmark, in `results/`: what was measured, on what, by which commit."""

from pathlib import Path
from typing import Any

from vgp.experiments.records import setting, text

RESULTS = Path(__file__).parent.parent / "results"


def write(name: str, configuration: dict[str, Any], figures: Any, out: Path | None = None) -> Path:
    """Writes `results/NAME.json` (or to `out`) and says so."""
    record = {"name": name, "configuration": configuration, "figures": figures, **setting()}
    path = (out or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(record))
    print(f"written: {path.name}")
    return path
