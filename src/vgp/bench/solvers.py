"""`vgp bench solvers`: what dense, Toeplitz and Kronecker algebra cost, and how that grows with m."""

from pathlib import Path

from rich.console import Console

from .step import measure_step

PARTS = ("step",)


def run(out: Path, only: str | None = None, *, quick: bool = False) -> None:
    console = Console()
    if only is not None and only not in PARTS:
        raise ValueError(f"There is no part '{only}' of this benchmark; take one of {', '.join(PARTS)}.")
    if only in (None, "step"):
        console.print(measure_step(6 if quick else 100, 2 if quick else 3))
