"""Metrics for TensorBoard, where tensorboardX is installed."""

from pathlib import Path
from typing import Any

import numpy as np


class Writer:
    """Writes scalars of every seed to the run's folder; without tensorboardX it does nothing."""

    def __init__(self, folder: Path):
        self._writer: Any = None
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError:
            return
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def scalars(self, epoch: int, name: str, values: np.ndarray) -> None:
        """One number per seed at an epoch."""
        if self._writer is not None:
            for seed, value in enumerate(values):
                self._writer.add_scalar(f"{name}/{seed}" if len(values) > 1 else name, float(value), epoch)

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
