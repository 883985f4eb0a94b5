"""Figures: `Fit.plot`, and families side by side on one target in two dimensions."""

import io
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import compiled
from .families import VGP
from .result import Fit, _recent
from .summary import named_columns
from .target import Target

BLUE, ORANGE, GREY = "#2c6fbb", "#d1692e", "#8a8a8a"
MASS = (0.5, 0.8, 0.95, 0.99)  # what a contour holds of the target
DRAWS = 1500
INTERVALS = 20  # values in the panel of intervals


class Picture(Figure):
    """A figure that a notebook shows without pyplot, which would keep it alive and may open a window."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def plot(fit: Fit) -> Picture:
    """The bound's history, and the draws: in two dimensions on the target's contours, with the VGP's warp beside
    them; otherwise the first two coordinates and the interval of each value. Discrete values are spread out a little.
    """
    key, target, family = jr.fold_in(fit._key, 2), fit.target, fit.family
    draws = np.asarray(compiled.sample(fit._q, key, DRAWS))
    flat = isinstance(family, VGP) and family.dim == 2 and family.latent_dim <= 2
    warped = family if flat and family.placeable else None
    warps = warped is not None
    window = _window(draws, target)
    plain = family.dim == 2 and not _is_discrete(target)
    panels = 1 + (family.dim > 1) + (warps or (not plain and target is not None))
    figure = Picture(figsize=(4.2 * panels, 3.8), layout="constrained")
    axes = iter(figure.subplots(1, panels, squeeze=False)[0])
    _history(next(axes), fit)
    if family.dim > 1:
        axis = next(axes)
        _contours(axis, target, window)
        _scatter(axis, _spread(draws, target), window, BLUE)
        axis.set_title("draws" if family.dim == 2 else "draws, first two coordinates")
    if warped is not None:
        axis = next(axes)
        _contours(axis, target, window)
        _warp(axis, warped, window)
    elif not plain and target is not None:
        _intervals(next(axes), jax.vmap(target.constrain)(jnp.asarray(draws)))
    if plain and target is not None:
        _explain(figure)
    return figure


def compare(
    target: Target, draws: Mapping[str, Float[Array | np.ndarray, "n 2"]], notes: Mapping[str, str] | None = None
) -> Picture:
    """A row of panels, one per family: its draws, flat and unconstrained, on the contours of one 2-d target.

    `notes` gives a second line of a panel's title, such as its ELBO.
    """
    if target.dim != 2:
        raise ValueError(
            f"Contours need a target with 2 dimensions, got one with {target.dim}; use fit.plot() instead."
        )
    figure = Picture(figsize=(3.0 * len(draws), 3.5), layout="constrained")
    axes = figure.subplots(1, len(draws), sharex=True, sharey=True, squeeze=False)[0]
    window = _window(np.concatenate([np.asarray(points) for points in draws.values()]), target)
    for axis, (name, points) in zip(axes, draws.items(), strict=True):
        _contours(axis, target, window)
        _scatter(axis, _spread(np.asarray(points), target), window, BLUE if axis is axes[0] else ORANGE)
        note = (notes or {}).get(name)
        axis.set_title(name if note is None else f"{name}\n{note}", fontsize=10)
        axis.label_outer()
    if not _is_discrete(target):
        _explain(figure)
    return figure


# ---------------------------------------------------------------- panels


def _history(axis: Axes, fit: Fit):
    history = fit.histories
    best = int(np.argmax(_recent(history))) if len(history) else 0
    steps = np.arange(1, len(history) + 1)
    axis.set(title="bound", xlabel="step", ylabel="nats")
    if not np.isfinite(history).any():
        axis.text(0.5, 0.5, "no finite steps", ha="center", va="center", transform=axis.transAxes)
        return
    axis.plot(steps, history[:, best], color=BLUE, alpha=0.2, linewidth=0.5)
    for i in range(history.shape[1]):
        if i != best:
            axis.plot(steps, _running_mean(history[:, i]), color=GREY, linewidth=1)
    axis.plot(steps, _running_mean(history[:, best]), color=BLUE, linewidth=1.6)
    # The first steps are often thousands of nats below: the limits are those of the last four fifths.
    late = history[len(history) // 5 :]
    late = late[np.isfinite(late)]
    if late.size:
        low, high = np.percentile(late, (1, 99))
        margin = 0.15 * (high - low) + 1e-6 * (1 + abs(high))
        axis.set_ylim(low - margin, high + margin)


def _running_mean(history: np.ndarray) -> np.ndarray:
    # Over a fiftieth of the run up to each step; a skipped step is NaN and counts for nothing.
    width = max(1, len(history) // 50)
    finite = np.isfinite(history)
    sums = np.cumsum(np.where(finite, history, 0.0), dtype=np.float64)
    counts = np.cumsum(finite)
    sums[width:], counts[width:] = sums[width:] - sums[:-width], counts[width:] - counts[:-width]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _window(draws: np.ndarray, target: Target | None) -> np.ndarray:
    # Lower and upper end of either axis: nearly all draws, and in two dimensions nearly all of the target, or the
    # part that a poor fit misses would be cut off.
    points = draws[np.isfinite(draws).all(1), :2]
    if points.shape[0] == 0 or points.shape[1] < 2:
        return np.array([[-4.0, -4.0], [4.0, 4.0]])
    low, high = np.quantile(points, (0.003, 0.997), axis=0)
    margin = 0.15 * (high - low) + 1e-3
    margin = margin + 0.5 * _discrete(target, len(low))
    window = np.stack([low - margin, high + margin])
    for _ in range(12 if target is not None and target.dim == 2 and not _is_discrete(target) else 0):
        _, _, density = _density(target, window)
        inside = density[1:-1, 1:-1].max()
        edges = np.array([[density[:, 0].max(), density[0].max()], [density[:, -1].max(), density[-1].max()]])
        cut_off = edges > 0.01 * inside
        if not cut_off.any():
            break
        window += cut_off * np.array([[-0.25], [0.25]]) * (window[1] - window[0])
    return window


def _discrete(target: Target | None, count: int) -> np.ndarray:
    # Which of the first coordinates are discrete.
    supports = [] if target is None else target.supports()
    kinds = [support.is_discrete for _, support, size in supports for _ in range(size)]
    return np.asarray((kinds + [False] * count)[:count], bool)


def _is_discrete(target: Target | None) -> bool:
    return target is not None and bool(_discrete(target, target.dim).any())


def _spread(draws: np.ndarray, target: Target | None) -> np.ndarray:
    # Draws of discrete values would all lie on few points.
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, draws.shape)
    return draws + noise * _discrete(target, draws.shape[1])


def _density(target, window: np.ndarray, size: int = 160) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The density on a grid, up to a constant; zero where it is not a number.
    x, y = (np.linspace(window[0, i], window[1, i], size) for i in (0, 1))
    points = jnp.asarray(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2), float)
    log_p = np.asarray(compiled.log_probs(target, points), np.float64)
    log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
    top = log_p.max()
    density = np.exp(log_p - top) if np.isfinite(top) else np.zeros_like(log_p)
    return x, y, density.reshape(size, size)


def _contours(axis: Axes, target: Target | None, window: np.ndarray):
    if target is None or target.dim != 2 or _is_discrete(target):
        return
    x, y, density = _density(target, window)
    ordered = np.sort(density, axis=None)[::-1]
    if ordered[0] == 0:
        return
    held = np.cumsum(ordered) / ordered.sum()
    levels = np.unique([ordered[min(np.searchsorted(held, mass), held.size - 1)] for mass in MASS])
    axis.contour(x, y, density, levels, colors="black", linewidths=0.8, alpha=0.7)


def _explain(figure: Figure):
    shares = ", ".join(f"{mass:.0%}" for mass in MASS)
    figure.supxlabel(f"black: contours that hold {shares} of the target", fontsize=9, color=GREY)


def _scatter(axis: Axes, draws: np.ndarray, window: np.ndarray, colour: str):
    axis.scatter(draws[:, 0], draws[:, 1], s=4, color=colour, alpha=0.35, linewidths=0)
    axis.set(xlim=window[:, 0], ylim=window[:, 1], xlabel="$u_1$", ylabel="$u_2$")


def _warp(axis: Axes, family: VGP, window: np.ndarray, reach: float = 2.5):
    # Lines of a regular grid of ξ, pushed through the mean m(ξ) + A(ξ)t; z then scatters around it.
    along, across = np.linspace(-reach, reach, 200), np.linspace(-reach, reach, 11)
    if family.latent_dim == 1:
        axis.plot(*np.asarray(_push(family, along[:, None])).T, color=BLUE, linewidth=1.5)
    else:
        moving, still = np.broadcast_arrays(along[None, :], across[:, None])
        for lines, colour in (((moving, still), BLUE), ((still, moving), ORANGE)):
            for line in np.asarray(_push(family, np.stack(lines, -1))):
                axis.plot(*line.T, color=colour, linewidth=0.9)
    axis.set(xlim=window[:, 0], ylim=window[:, 1], xlabel="$u_1$", ylabel="$u_2$")
    axis.set_title(r"warp: mean of $u$ on a grid of $\xi$")


@eqx.filter_jit
def _push(family: VGP, xi):
    conditional: Any = family.view().conditional(jnp.asarray(xi, float))
    mean = conditional.base_dist.loc
    return mean if family.place is None else family.place(mean)


def _intervals(axis: Axes, values):
    columns = [pair for pair, _ in zip(named_columns(values), range(INTERVALS), strict=False)]
    rows = np.arange(len(columns))
    ends = np.array([np.nanquantile(column.astype(float), (0.05, 0.25, 0.5, 0.75, 0.95)) for _, column in columns])
    axis.hlines(rows, ends[:, 0], ends[:, 4], color=BLUE, linewidth=1.2)
    axis.hlines(rows, ends[:, 1], ends[:, 3], color=BLUE, linewidth=4)
    axis.plot(ends[:, 2], rows, "o", color="white", markeredgecolor=BLUE, markersize=5)
    axis.set_yticks(rows, [name for name, _ in columns])
    axis.invert_yaxis()
    axis.set_title("median, 50% and 90% intervals")


def ranks(calibration, most: int = 12) -> Picture:
    """A histogram of ranks for each value of a `vgp.calibration.Calibration`; uniform ones stay in the band."""
    from scipy.stats import binom

    names, bins = list(calibration.ranks)[:most], calibration.bins
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure = Picture(figsize=(3.2 * columns, 2.4 * rows), layout="constrained")
    band = binom.interval(0.95, calibration.simulations, 1 / bins)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=False):
        axis.axhspan(*band, color="0.88")
        axis.bar(np.arange(bins) + 0.5, calibration.histogram(name), width=0.95, color=BLUE)
        axis.set(title=f"{name}, p = {calibration.pvalues[name]:.2g}", xticks=[0, bins], xticklabels=["low", "high"])
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    figure.supxlabel(f"rank of the true value among {calibration.draws} draws")
    return figure
