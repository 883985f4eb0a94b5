"""The universal approximation theorem, running: `python examples/universal_approximation.py`.

The proof conditions the Gaussian process on D_k = {(s, f*(s))}: pairs of the map f* that turns a standard normal
into the posterior, on a grid that grows. Here f* is known, as conditional quantiles one coordinate at a time.
Nothing is optimised: q(z) = E_ξ N(z; A(ξ)t, v(ξ)) with t = f*(s) is compared with p(z) by quadrature, in float64.

How to read the figure: one column for each target, the number m of variational data along the bottom, KL,
Kolmogorov-Smirnov and Wasserstein-1 distance up the side, all logarithmic; dashed lines are fitted powers of m.
The theorem says that the points go down. With Matérn-5/2 they do. With the proof's own kernel (ARD with σ² = 1,
ω = 1) it depends on f*: very fast for the banana, whose f* is a polynomial; not at all for the bimodal target,
where K_ss is singular in float64 long before the process can follow f*.

The full run takes about a minute on two free cores and writes docs/images/universal_approximation.png,
results/universal_approximation.json and the tables of docs/theorem.md. `--quick` only prints, in a third of the time.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax.scipy.linalg import solve
from jax.scipy.special import erf, logsumexp
from jaxtyping import Array, Float
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from vgp.gp import ARD, AbstractKernel, Conditioner, Matern52

REACH = 4.5  # evenly spaced inputs end here: 7e-6 of a standard normal lies outside
SPAN = 6.5  # ξ is integrated over ±SPAN: 8e-11 lies outside
SPREAD = 1.7  # points for KL are drawn wider than ξ, so that some lie beyond REACH
NU = 2.5
KERNELS: dict[str, Callable[..., AbstractKernel]] = {"Matérn-5/2": Matern52, "proof's ARD": ARD}  # with σ² = 1, ω = 1
DISTANCES = {"kl": "KL(q ‖ p)", "ks": "Kolmogorov-Smirnov", "w1": "Wasserstein-1", "rms": "RMS"}


class Target(NamedTuple):
    """A density whose every coordinate, given those before it, is a mixture [(weight, mean, sd), ...] of normals."""

    name: str
    words: str
    conditionals: tuple[Callable, ...]


def two_normals(sd: float) -> Callable:
    return lambda z: [(0.5, -2.0, sd), (0.5, 2.0, sd)]


BIMODAL = Target("bimodal, 1-d", "½ N(−2, ½) + ½ N(2, ½)", (two_normals(0.5),))
TWO_MODES = Target(
    "two modes, 2-d", "½ N((−2, 0), I) + ½ N((2, 0), I)", (two_normals(1.0), lambda z: [(1.0, 0.0, 1.0)])
)
BANANA = Target(
    "banana, 2-d",
    "z₁ ~ N(0, 2), z₂ ~ N(z₁²/4, 1)",
    (lambda z: [(1.0, 0.0, 2.0)], lambda z: [(1.0, z[0] ** 2 / 4, 1.0)]),
)


def cdf(z: np.ndarray, components) -> np.ndarray:
    return sum(weight * ndtr((z - mean) / sd) for weight, mean, sd in components)


def log_density(target: Target, z: np.ndarray) -> np.ndarray:
    """log p(z) for z of shape (n, d)."""
    total = np.zeros(len(z))
    for j, conditional in enumerate(target.conditionals):
        terms = [np.log(weight) + norm.logpdf(z[:, j], mean, sd) for weight, mean, sd in conditional(z[:, :j].T)]
        total += np.logaddexp.reduce(terms, axis=0)
    return total


def quantile(xi: np.ndarray, components) -> np.ndarray:
    """The z with cdf(z) = Φ(ξ), by bisection between the smallest and the largest of the components' quantiles."""
    quantiles = [mean + sd * xi for _, mean, sd in components]
    low, high = np.min(quantiles, axis=0), np.max(quantiles, axis=0)
    sign = np.where(xi > 0, -1.0, 1.0)  # compare the smaller tails: 1 − Φ(8) has no digits left
    for _ in range(60 if len(components) > 1 else 0):
        middle = (low + high) / 2
        tail = cdf(sign * middle, [(weight, sign * mean, sd) for weight, mean, sd in components])
        below = sign * (tail - ndtr(sign * xi)) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def true_map(target: Target, xi: np.ndarray) -> np.ndarray:
    """f* = P⁻¹ ∘ Φ on ξ of shape (n, d): conditional quantiles, one coordinate at a time."""
    z = []
    for j, conditional in enumerate(target.conditionals):
        z.append(quantile(xi[:, j], conditional(z)))
    return np.stack(z, axis=1)


def product(points: np.ndarray, c: int) -> np.ndarray:
    return np.stack(np.meshgrid(*[points] * c, indexing="ij"), axis=-1).reshape(-1, c)


def variational_inputs(grid: str, side: int, c: int) -> np.ndarray:
    """The grid S_k in latent space, inner points only: on the edge of the proof's own grid f* is infinite."""
    return product(np.linspace(-REACH, REACH, side) if grid == "even" else ndtri((np.arange(side) + 0.5) / side), c)


@jax.jit
def condition(kernel: AbstractKernel, s: Float[Array, "m c"], t: Float[Array, "m p"], xi: Float[Array, "rows n c"]):
    """A(ξ)t and v(ξ), a row of ξ at a time, and the jitter that K_ss needed."""
    conditioner = Conditioner(kernel, s)
    # Triangular solves: at a condition number of 1e13 the product with an explicit inverse loses every digit.
    alpha = solve(kernel.gram(s) + conditioner.jitter * jnp.eye(s.shape[0]), t, assume_a="pos")
    mean, v = jax.lax.map(lambda row: (kernel.correlation(row, s) @ alpha, conditioner.rows(row)[1]), xi)
    return mean, v, conditioner.jitter


class Cells(NamedTuple):
    """q(z | ξ) on a regular grid of points ξ, each standing for the cell around it."""

    xi: Float[Array, "*n c"]
    mean: Float[Array, "*n d"]
    v: Float[Array, "*n"]

    def coarser(self) -> "Cells":
        every = (slice(None, None, 2),) * self.v.ndim
        return Cells(self.xi[every], self.mean[every], self.v[every])

    def weight(self) -> Float[Array, "*n"]:
        density = jnp.exp(-jnp.sum(self.xi**2, axis=-1) / 2)
        return density / density.sum()

    def covariance(self) -> Float[Array, "*n d d"]:
        """v(ξ) I, and the spread of A(ξ)t within the cell.

        v may be 1e-12, far below any spacing of ξ: so a cell also covers the way to its neighbours, along every
        axis of ξ. Gaussians with an sd of 0.55 of their spacing add up to a density that is flat to half a percent,
        which is worth 1e-5 in KL.
        """
        total = self.v[..., None, None] * jnp.eye(self.mean.shape[-1])
        for axis in range(self.v.ndim):
            step = jnp.diff(self.mean, axis=axis)
            square = step[..., :, None] * step[..., None, :]
            square = jnp.pad(square, [(int(i == axis),) * 2 for i in range(square.ndim)], mode="edge")
            total += 0.55**2 * (jnp.delete(square, 0, axis) + jnp.delete(square, -1, axis)) / 2
        return total


@jax.jit
def log_q(cells: Cells, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log q(z) = log Σ_ξ w(ξ) N(z; A(ξ)t, covariance of the cell)."""
    d = z.shape[1]
    precision = jnp.linalg.inv(cells.covariance()).reshape(-1, d, d)
    mean = cells.mean.reshape(-1, d)
    pull = jnp.einsum("nij,nj->ni", precision, mean)
    constant = jnp.log(cells.weight().ravel()) + jnp.linalg.slogdet(precision / (2 * jnp.pi))[1] / 2
    # The exponent is quadratic in z: every pair of z and ξ comes from one matrix product.
    terms = [(constant - jnp.sum(pull * mean, axis=1) / 2)[:, None], pull, -precision.reshape(-1, d * d) / 2]
    terms = jnp.concatenate(terms, axis=1)

    def block(z):
        squares = (z[:, :, None] * z[:, None, :]).reshape(-1, d * d)
        return logsumexp(jnp.concatenate([jnp.ones((z.shape[0], 1)), z, squares], axis=1) @ terms.T, axis=1)

    return jax.lax.map(block, z.reshape(-1, 16, d)).ravel()


def divergence(target: Target, cells: Cells, z: Float[Array, "n d"], weight: np.ndarray) -> tuple[float, float]:
    """KL(q ‖ p) from points of q, and E_q[p/q], which is 1 where the quadrature has q normalised and q covers p.

    KL = E_q[log(q/p) + p/q − 1]: the added terms average to zero, and take most of the noise with them.
    """
    log_ratio = np.asarray(log_q(cells, z)) - log_density(target, np.asarray(z))
    inverse = np.exp(-log_ratio)
    return float(np.mean(weight * (log_ratio + inverse - 1))), float(np.mean(weight * inverse))


@jax.jit
def marginal_cdf(mean, sd, weight, z: Float[Array, " bins"]) -> Float[Array, " bins"]:
    """Σ_ξ w(ξ) Φ((z − A(ξ)t) / sd), a row of ξ at a time."""
    rows = tuple(x.reshape(-1, mean.shape[-1]) for x in (mean, 2**0.5 * sd, weight))
    return jax.lax.map(lambda row: (0.5 + 0.5 * erf((z[:, None] - row[0]) / row[1])) @ row[2], rows).sum(0)


def map_distances(target: Target, cells: Cells, f_star: np.ndarray, bins: int) -> dict[str, float]:
    """KS (the largest over the marginals), W1 (their mean), and the RMS distance of the random map from f*."""
    d = f_star.shape[-1]
    weight, sd = cells.weight(), jnp.sqrt(jnp.diagonal(cells.covariance(), axis1=-2, axis2=-1))
    first = norm.pdf(np.linspace(-SPAN, SPAN, len(f_star)))
    ks, w1, before = [], [], []
    for j in range(d):
        truth, mean, scale = f_star[..., j], cells.mean[..., j], sd[..., j]
        ends = [min(truth.min(), (mean - 8 * scale).min()), max(truth.max(), (mean + 8 * scale).max())]
        # Even near the target, logarithmic far away: a map that has gone wrong can reach to 1e5.
        z = np.sinh(np.linspace(*np.arcsinh(ends), bins))
        p = cdf(z, target.conditionals[j](before))
        p = first @ p / first.sum() if p.ndim == 2 else p  # for z₂ an average over z₁ = f*₁(ξ₁)
        gap = np.abs(np.asarray(marginal_cdf(mean, scale, weight, z)) - p)
        ks.append(gap.max())
        w1.append(np.sum((gap[1:] + gap[:-1]) / 2 * np.diff(z)))
        before.append(truth[(slice(None), *[0] * (d - 1))][:, None])
    error = jnp.sum((cells.mean - f_star) ** 2, axis=-1) + d * cells.v
    return {"ks": max(ks), "w1": np.mean(w1), "rms": jnp.sqrt(jnp.sum(weight * error))}


def low_discrepancy(n: int, dim: int) -> np.ndarray:
    """Points that fill the unit cube evenly: multiples of powers of the generalised golden ratio."""
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dim + 1))
    return (0.5 + np.arange(1, n + 1)[:, None] * ratio ** -np.arange(1.0, dim + 1)) % 1


class Setting(NamedTuple):
    targets: tuple[Target, ...]
    grid: str
    sides: tuple[int, ...]  # m = side^c
    nodes: int  # points ξ along each axis
    draws: int  # points z for KL, a multiple of nodes
    bins: int  # points z for the marginal CDFs


SETTINGS = [
    Setting((BIMODAL,), "even", (17, 33, 65, 129, 257), 4096, 16384, 2048),
    Setting((TWO_MODES, BANANA), "even", (5, 9, 13, 17, 25), 320, 2560, 192),
    Setting((BIMODAL,), "quantile", (17, 33, 65, 129, 257), 4096, 16384, 2048),
]
QUICK = [
    Setting((BIMODAL,), "even", (9, 17, 33), 1024, 4096, 512),
    Setting((TWO_MODES, BANANA), "even", (5, 9, 13), 128, 1024, 128),
]


@lru_cache
def quadrature(targets: tuple[Target, ...], nodes: int, draws: int):
    """ξ on a grid and in wide draws, as rows; the draws' noise and weights; f* on the grid for each target."""
    c = len(targets[0].conditionals)
    grid = product(np.linspace(-SPAN, SPAN, nodes), c)
    noise = ndtri(low_discrepancy(draws, 2 * c))
    wide, epsilon = SPREAD * noise[:, :c], noise[:, c:]
    weight = SPREAD**c * np.exp(np.sum(noise[:, :c] ** 2 - wide**2, axis=1) / 2)
    f_star = [true_map(target, grid).reshape(*[nodes] * c, c) for target in targets]
    return np.concatenate([grid, wide]).reshape(-1, nodes, c), epsilon, weight, f_star


def measure(setting: Setting, kernel_name: str, side: int) -> list[dict]:
    """The figures of one kernel on one D_k; `kl_half` is KL with half the points, of ξ along each axis and of z."""
    targets, nodes, half = setting.targets, setting.nodes, setting.draws // 2
    xi, epsilon, weight, f_star = quadrature(targets, nodes, setting.draws)
    c = xi.shape[-1]
    kernel = KERNELS[kernel_name](variance=1.0, weights=1.0)
    s = variational_inputs(setting.grid, side, c)
    t = np.concatenate([true_map(target, s) for target in targets], axis=1)
    mean, v, jitter = condition(kernel, s, t, xi)
    mean, v = mean.reshape(-1, c * len(targets)), v.ravel()
    shape = (nodes,) * c
    rows = []
    for i, target in enumerate(targets):
        own = mean[:, i * c : i * c + c]
        on_grid = (xi.reshape(-1, c)[: nodes**c], own[: nodes**c], v[: nodes**c])
        cells = Cells(*[x.reshape(*shape, *x.shape[1:]) for x in on_grid])
        z = own[nodes**c :] + jnp.sqrt(v[nodes**c :])[:, None] * epsilon
        kl, normalisation = divergence(target, cells, z, weight)
        kl_half, _ = divergence(target, cells.coarser(), z[:half], weight[:half])
        figures = {"kl": kl, "kl_half": kl_half, "normalisation": normalisation, "jitter": jitter}
        figures |= map_distances(target, cells, f_star[i], setting.bins)
        figures["condition_number"] = np.linalg.cond(np.asarray(kernel.gram(jnp.asarray(s))))
        row = {"target": target.name, "inputs": setting.grid, "kernel": kernel_name, "c": c, "m": side**c}
        rows.append(row | {name: float(value) for name, value in figures.items()})
    return rows


def same_line(row: dict) -> tuple:
    return row["target"], row["inputs"], row["kernel"]


def fit_slopes(figures: list[dict]) -> list[dict]:
    """The power of m in each distance, by least squares on the logarithms, beside the rates of the theory."""
    slopes = []
    for (target, inputs, kernel), group in groupby(figures, key=same_line):
        rows = list(group)
        m = np.log([row["m"] for row in rows])
        fits = {name: np.polyfit(m, np.log([row[name] for row in rows]), 1).tolist() for name in DISTANCES}
        rates = {"noisy": -NU / (2 * NU + rows[0]["c"]), "noise_free": -NU / rows[0]["c"]}
        last = np.log(rows[-1]["rms"] / rows[-2]["rms"]) / (m[-1] - m[-2])
        row = {"target": target, "inputs": inputs, "kernel": kernel, **fits, "rms_last": float(last)}
        slopes.append(row | (rates if kernel.startswith("Matérn") else {}))
    return slopes


COLUMNS = {"m": "d", "kl": ".3g", "kl_half": ".3g", "normalisation": ".3f", "ks": ".3g", "w1": ".3g", "rms": ".3g"}
COLUMNS |= {"jitter": ".0e", "condition_number": ".0e"}
HEADINGS = "m | KL | KL, half the points | E_q[p/q] | KS | W1 | RMS | jitter | condition number"


def figure_table(figures: list[dict]) -> str:
    head = f"| target | inputs | kernel | {HEADINGS} |\n|{'---|' * 12}\n"
    cells = [[*same_line(row), *(format(row[name], form) for name, form in COLUMNS.items())] for row in figures]
    return head + "\n".join(f"| {' | '.join(row)} |" for row in cells)


def slope_table(slopes: list[dict]) -> str:
    head = f"| target | inputs | kernel | KL | KS | W1 | RMS | RMS, last two m | −ν/(2ν+c) | −ν/c |\n|{'---|' * 10}\n"
    cells = [[*same_line(row), *(f"{row[name][0]:+.2f}" for name in DISTANCES)] for row in slopes]
    theory = ("rms_last", "noisy", "noise_free")
    rates = [[f"{row[name]:+.2f}" if name in row else "" for name in theory] for row in slopes]
    return head + "\n".join(f"| {' | '.join(row + rate)} |" for row, rate in zip(cells, rates, strict=True))


def draw(record: dict, path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    words = record["configuration"]["targets"]
    figure, axes = plt.subplots(3, len(words), figsize=(4 * len(words), 9), sharex="col", squeeze=False)
    styles = {"Matérn-5/2": ("o", "#1f5fa8"), "proof's ARD": ("s", "#c8502a")}
    for column, target in enumerate(words):
        axes[0, column].set_title(f"{target}\n{words[target]}", fontsize=11)
        axes[-1, column].set_xlabel("m, size of the variational data")
        for axis, name in zip(axes[:, column], ("kl", "ks", "w1"), strict=True):
            for kernel, (marker, colour) in styles.items():
                line = (target, "even", kernel)
                m, y = zip(*[(row["m"], row[name]) for row in record["figures"] if same_line(row) == line], strict=True)
                slope, start = next(row[name] for row in record["slopes"] if same_line(row) == line)
                axis.loglog(m, y, marker, color=colour, label=f"{kernel}, slope {slope:+.2f}")
                axis.loglog(m, np.exp(start) * np.array(m) ** slope, "--", color=colour, linewidth=1)
            axis.set_xticks(m, [str(x) for x in m])
            axis.set_xticks([], minor=True)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.set_yticks([], minor=True)
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize=9)
            if column == 0:
                axis.set_ylabel(DISTANCES[name], fontsize=11)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def write(record: dict, out: Path) -> None:
    """The record, the figure, and the tables of docs/theorem.md where that page is."""
    draw(record, out / "docs" / "images" / "universal_approximation.png")
    path = out / "results" / "universal_approximation.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    page = out / "docs" / "theorem.md"
    if page.exists():
        tables = {"slopes": slope_table(record["slopes"]), "figures": figure_table(record["figures"])}
        text = page.read_text()
        for name, table in tables.items():
            text = re.sub(f"(?s)<!-- {name} -->.*<!-- /{name} -->", f"<!-- {name} -->\n{table}\n<!-- /{name} -->", text)
        page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="The universal approximation theorem, running.")
    parser.add_argument("--quick", action="store_true", help="small m, few points; writes only where --out says")
    parser.add_argument("--out", type=Path, help="folder for docs/ and results/ (the repository, unless --quick)")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    start = time.perf_counter()
    settings = QUICK if arguments.quick else SETTINGS
    runs = [(setting, kernel, side) for setting in settings for kernel in KERNELS for side in setting.sides]
    figures = []
    for run in runs:
        figures += measure(*run)
        print(f"\r{len(figures)} rows, {time.perf_counter() - start:.0f} s", end="", flush=True)
    targets = {target.name: target.words for setting in settings for target in setting.targets}
    figures.sort(key=lambda row: (list(targets).index(row["target"]), row["inputs"], row["kernel"]))
    record = {
        "program": "examples/universal_approximation.py",
        "jax": jax.__version__,
        "seconds": round(time.perf_counter() - start, 1),
        "configuration": {
            "quick": arguments.quick,
            "dtype": "float64",
            "reach": REACH,
            "targets": targets,
            "settings": [s._asdict() | {"targets": [target.name for target in s.targets]} for s in settings],
        },
        "slopes": fit_slopes(figures),
        "figures": figures,
    }
    print(f"\n{figure_table(figures)}\n\nfitted powers of m\n{slope_table(record['slopes'])}\n{record['seconds']} s")
    out = arguments.out or (None if arguments.quick else Path(__file__).resolve().parent.parent)
    if out is not None:
        write(record, out)


if __name__ == "__main__":
    main()
