"""One JSON record per run of a benchmark, in `results/`: what was measured, on what, by which commit."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"


def write(name: str, configuration: dict[str, Any], figures: Any, out: Path | None = None) -> Path:
    """Writes `results/NAME.json` (or to `out`) and says so."""
    import jax

    record = {
        "name": name,
        "configuration": configuration,
        "figures": figures,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": f"{jax.devices()[0].device_kind}, {len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
    }
    path = (out or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {path.name}")
    return path


def _commit() -> str:
    try:
        where = Path(__file__).parent
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=where)
    except OSError:
        return "unknown"
    return asked.stdout.strip() or "unknown"
