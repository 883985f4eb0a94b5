"""When a noisy bound has stopped rising."""

import equinox as eqx
import numpy as np


class Plateau(eqx.Module):
    """Has the bound risen between the last two quarters of the history?

    The windows grow with the history, so that slow progress still shows, and the difference of their means
    is held against its own standard error: it must exceed both `sigmas` of those and `tolerance` nats for
    the run to go on. Checked every `every` steps from step `first` on.
    """

    every: int = 250
    first: int = 2000
    sigmas: float = 2.0
    tolerance: float = 1e-3

    def __call__(self, history: np.ndarray) -> bool:
        """`history` is (steps, restarts); steps that were skipped are NaN and do not count."""
        steps = len(history)
        if steps < self.first or steps % self.every:
            return False
        quarter = steps // 4
        before, after = history[-2 * quarter : -quarter], history[-quarter:]
        return all(self._flat(before[:, i], after[:, i]) for i in range(history.shape[1]))

    def _flat(self, before, after):
        before, after = before[np.isfinite(before)], after[np.isfinite(after)]
        if min(len(before), len(after)) < 10:
            return False
        rise = after.mean() - before.mean()
        stderr = np.sqrt(before.var() / len(before) + after.var() / len(after))
        return bool(rise < max(self.sigmas * stderr, self.tolerance))
