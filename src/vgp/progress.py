"""A progress bar on the host, fed between chunks."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Steps, the bound, the speed and the time left. Silent with `show=False` or without a terminal."""

    def __init__(self, total: int, show: bool = True, label: str = "fit"):
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn(label),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not show or not (console.is_terminal or console.is_jupyter),
        )
        self._task = self._progress.add_task(label, total=total, note="compiling")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_):
        self._progress.stop()

    def update(self, step: int, total: int, note: str):
        """Moves the bar to `step` of `total`."""
        self._progress.update(self._task, completed=step, total=total, note=note)
