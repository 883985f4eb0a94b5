"""The universal approximation theorem, running: `python examples/universal_approximation.py`.

The proof conditions the Gaussian process on D_k = {(s, f*(s))}, pairs of the map f* that turns a standard
normal into the posterior, on a grid that grows. Here f* is known: conditional quantiles, one coordinate at a
time. Nothing is optimised; q(z) = E_ξ N(z; A(ξ)t, v(ξ)) with t = f*(s) is compared with p(z) by quadrature.

How to read the figure: one column for each target, the number m of variational data along the bottom, KL,
Kolmogorov-Smirnov and Wasserstein-1 distance up the side, both logarithmic; the dashed line is the fitted power
of m. The theorem says that the lines go down. For Matérn-5/2 they do; for the proof's own kernel (ARD with
σ² = 1, ω = 1) they do not, because at these m its matrix K_ss is singular in float64.

The full run takes under a minute on two cores and writes docs/images/universal_approximation.png,
results/universal_approximation.json and the tables of docs/theorem.md. `--quick` takes seconds and only prints.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax.scipy.linalg import solve
from jax.scipy.special import erf, logsumexp, ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from vgp.gp import ARD, AbstractKernel, Conditioner, Matern52

ROOT = Path(__file__).resolve().parent.parent
REACH = 4.5  # evenly spaced inputs end here: 7e-6 of a standard normal lies outside
SPAN = 6.5  # ξ is integrated over ±SPAN: 8e-11 lies outside
NU = 2.5
KERNELS: dict[str, Callable[[], AbstractKernel]] = {
    "Matérn-5/2": lambda: Matern52(variance=1.0, weights=1.0),
    "proof's ARD": lambda: ARD(variance=1.0, weights=1.0),
}
DISTANCES = {"kl": "KL(q ‖ p)", "ks": "Kolmogorov-Smirnov", "w1": "Wasserstein-1", "rms": "RMS error of the map"}


# The targets: each coordinate given those before it is a mixture of normals, [(weight, mean, sd), ...].


class Target(NamedTuple):
    name: str
    words: str
    conditionals: tuple[Callable, ...]


def two_normals(sd):
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


def cdf(x, components):
    return sum(weight * ndtr((x - mean) / sd) for weight, mean, sd in components)


def log_density(target: Target, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """log p(z)."""
    total = jnp.zeros(z.shape[0])
    for j, conditional in enumerate(target.conditionals):
        terms = [jnp.log(weight) + norm.logpdf(z[:, j], mean, sd) for weight, mean, sd in conditional(z[:, :j].T)]
        total += logsumexp(jnp.stack(terms), axis=0)
    return total


def quantile(xi: Float[Array, " n"], components) -> Float[Array, " n"]:
    """The z with cdf(z) = Φ(ξ), by bisection. It lies between the components' own quantiles."""
    quantiles = jnp.stack([jnp.broadcast_to(mean + sd * xi, xi.shape) for _, mean, sd in components])
    sign = jnp.where(xi > 0, -1.0, 1.0)  # work in the smaller tail: 1 − Φ(6) has no digits left

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        tail = sum(weight * ndtr(sign * (middle - mean) / sd) for weight, mean, sd in components)
        below = sign * (tail - ndtr(sign * xi)) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 60, halve, (quantiles.min(0), quantiles.max(0)))
    return (low + high) / 2


@partial(jax.jit, static_argnums=0)
def true_map(target: Target, xi: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """f* = P⁻¹ ∘ Φ: conditional quantiles, one coordinate at a time."""
    z = []
    for j, conditional in enumerate(target.conditionals):
        z.append(quantile(xi[:, j], conditional(z)))
    return jnp.stack(z, axis=1)


# The variational data and the distribution that it makes.


def product(points: Float[Array, " n"], c: int) -> Float[Array, "n^c c"]:
    return jnp.stack(jnp.meshgrid(*[points] * c, indexing="ij"), axis=-1).reshape(-1, c)


def variational_inputs(grid: str, side: int, c: int) -> Float[Array, "m c"]:
    """The grid S_k in latent space. The proof's own has f*(0) = −∞ on its edge; these points are all inner."""
    if grid == "even":
        return product(jnp.linspace(-REACH, REACH, side), c)
    return product(ndtri((jnp.arange(side) + 0.5) / side), c)


@jax.jit
def condition(kernel, s, t, xi):
    """A(ξ)t and v(ξ) at `xi` of shape (rows, n, c), a row at a time, and the jitter that K_ss needed."""
    conditioner = Conditioner(kernel, s)
    # Two triangular solves: at a condition number of 1e13 the product with an explicit inverse loses all digits.
    gram = kernel.gram(s) + conditioner.jitter * jnp.eye(s.shape[0])
    alpha = solve(gram, t, assume_a="pos")
    mean, v = jax.lax.map(lambda row: conditioner(row, alpha), xi)
    return mean, v, conditioner.jitter


class Cells(NamedTuple):
    """q(z | ξ) on a regular grid of n^c points ξ, each standing for the cell around it."""

    xi: Float[Array, "*n c"]
    mean: Float[Array, "*n d"]
    v: Float[Array, "*n"]

    def coarser(self) -> "Cells":
        every = (slice(None, None, 2),) * self.v.ndim
        return Cells(self.xi[every], self.mean[every], self.v[every])


def push_forward(kernel: AbstractKernel, s, t, nodes: int) -> tuple[Cells, float]:
    """The VGP with variational data (s, t) on `nodes`^c points ξ, and the jitter."""
    c = s.shape[1]
    xi = product(jnp.linspace(-SPAN, SPAN, nodes), c)
    mean, v, jitter = condition(kernel, s, t, xi.reshape(-1, nodes, c))
    shape = (nodes,) * c
    return Cells(xi.reshape(*shape, c), mean.reshape(*shape, -1), v.reshape(shape)), float(jitter)


def bin_masses(mean, sd, weight, edges) -> Float[Array, "*bins"]:
    """The mass of q in every bin: Σ_ξ w(ξ) Π_j [Φ at the upper edge − Φ at the lower], a row of ξ at a time."""

    def add(total, row):
        row_mean, row_sd, row_weight = row
        scaled = [(e[:, None] - row_mean[:, j]) / row_sd[:, j] for j, e in enumerate(edges)]
        inside = [jnp.diff(erf(x * 0.5**0.5) / 2, axis=0) for x in scaled]
        first = inside[0] * row_weight
        return total + (first.sum(1) if len(edges) == 1 else first @ inside[1].T), None

    return jax.lax.scan(add, jnp.zeros([e.shape[0] - 1 for e in edges]), (mean, sd, weight))[0]


def log_bin_density(target: Target, edges) -> Float[Array, "*bins"]:
    """log of the mean of p over every bin, by two Gauss-Legendre points a side."""
    nodes = []
    for e in edges:
        half = jnp.diff(e) / 2
        nodes.append(jnp.stack([e[:-1] + half * (1 - 3**-0.5), e[:-1] + half * (1 + 3**-0.5)], axis=1).ravel())
    z = jnp.stack(jnp.meshgrid(*nodes, indexing="ij"), axis=-1)
    log_p = log_density(target, z.reshape(-1, len(edges)))
    pairs = log_p.reshape([size for e in edges for size in (e.shape[0] - 1, 2)])
    axes = tuple(range(1, 2 * len(edges), 2))
    return logsumexp(pairs, axis=axes) - len(edges) * jnp.log(2.0)


@partial(jax.jit, static_argnums=(0, 2))
def distances(target: Target, cells: Cells, bins: int) -> dict[str, Float[Array, ""]]:
    """KL(q ‖ p), KS and W1 from the masses of q in bins, and the RMS distance of the random map from f*.

    v may be 1e-12, far below any spacing of ξ, so every cell is widened by the distance that A(ξ)t moves across
    it: Gaussians with sd half their spacing add up to a density flat to 1 %, without blurring it by more than
    the spacing. KL is of the joint distribution; KS is the largest over the marginals and W1 their mean.
    """
    d = cells.mean.shape[-1]
    f_star = true_map(target, cells.xi.reshape(-1, d)).reshape(cells.mean.shape)
    weight = jnp.prod(norm.pdf(cells.xi), axis=-1)
    weight /= weight.sum()
    moves = sum(jnp.gradient(cells.mean, axis=i) ** 2 for i in range(d))
    sd = jnp.sqrt(cells.v[..., None] + 0.25 * moves)

    edges = []
    for j in range(d):
        truth, low, high = f_star[..., j], cells.mean[..., j] - 8 * sd[..., j], cells.mean[..., j] + 8 * sd[..., j]
        centre = jnp.sum(weight * truth)
        scale = jnp.sqrt(jnp.sum(weight * (truth - centre) ** 2))
        ends = jnp.stack([jnp.minimum(low.min(), truth.min()), jnp.maximum(high.max(), truth.max())])
        # Even near the target, logarithmic far away: a map that is wrong can reach to 1e5.
        start, stop = jnp.arcsinh((ends - centre) / scale)
        edges.append(centre + scale * jnp.sinh(jnp.linspace(start, stop, bins + 1)))

    rows = (-1, cells.v.shape[-1])
    mass = bin_masses(cells.mean.reshape(*rows, d), sd.reshape(*rows, d), weight.reshape(rows), edges)
    log_volume = sum(jnp.log(width) for width in jnp.meshgrid(*[jnp.diff(e) for e in edges], indexing="ij"))
    log_q = jnp.log(jnp.maximum(mass, 1e-300)) - log_volume  # a bin without mass counts nothing
    figures = {"kl": jnp.sum(mass * (log_q - log_bin_density(target, edges))), "mass": mass.sum()}

    apart, before = [], []
    first = norm.pdf(jnp.linspace(-SPAN, SPAN, f_star.shape[0]))
    for j, e in enumerate(edges):
        q = jnp.concatenate([jnp.zeros(1), jnp.cumsum(mass.sum(tuple(i for i in range(d) if i != j)))])
        given = cdf(e, target.conditionals[j](before))  # for z₂ the average over z₁ = f*₁(ξ₁)
        apart.append(jnp.abs(q - (first @ given / first.sum() if given.ndim == 2 else given)))
        before.append(f_star[(slice(None), *[0] * (d - 1), j)][:, None])
    figures["ks"] = jnp.max(jnp.stack(apart))
    figures["w1"] = sum(jnp.trapezoid(gap, e) for gap, e in zip(apart, edges, strict=True)) / d
    error = jnp.sum((cells.mean - f_star) ** 2, axis=-1) + d * cells.v
    return figures | {"rms": jnp.sqrt(jnp.sum(weight * error))}


# The experiment.


class Setting(NamedTuple):
    target: Target
    grid: str
    sides: tuple[int, ...]
    nodes: int
    bins: int


SETTINGS = [
    Setting(BIMODAL, "even", (9, 17, 33, 65, 129, 257), 4097, 4096),
    Setting(TWO_MODES, "even", (5, 9, 13, 17, 25), 321, 192),
    Setting(BANANA, "even", (5, 9, 13, 17, 25), 321, 192),
    Setting(BIMODAL, "quantile", (9, 17, 33, 65, 129, 257), 4097, 4096),
]
QUICK = [
    Setting(BIMODAL, "even", (9, 17, 33, 65), 2049, 1024),
    Setting(BANANA, "even", (5, 9, 13), 161, 96),
]


def measure(setting: Setting, kernel: str, side: int) -> dict:
    """All figures of one kernel on one D_k; `kl_check` is KL at half the resolution in ξ and in z."""
    c = len(setting.target.conditionals)
    s = variational_inputs(setting.grid, side, c)
    t = true_map(setting.target, s)
    cells, jitter = push_forward(KERNELS[kernel](), s, t, setting.nodes)
    figures = {name: float(x) for name, x in distances(setting.target, cells, setting.bins).items()}
    figures["kl_check"] = float(distances(setting.target, cells.coarser(), setting.bins // 2)["kl"])
    condition_number = float(np.linalg.cond(np.asarray(KERNELS[kernel]().gram(s))))
    row = {"target": setting.target.name, "grid": setting.grid, "kernel": kernel, "c": c, "m": side**c}
    return row | figures | {"jitter": jitter, "condition_number": condition_number}


def fit_slopes(rows: list[dict]) -> list[dict]:
    """The power of m in every distance, by least squares on the logarithms, beside the rates of the theory."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["target"], row["grid"], row["kernel"], row["c"]), []).append(row)
    slopes = []
    for (target, grid, kernel, c), group in groups.items():
        m = np.log([row["m"] for row in group])
        fits = {name: np.polyfit(m, np.log([row[name] for row in group]), 1).tolist() for name in DISTANCES}
        matern = kernel.startswith("Matérn")
        rates = {"noisy": -NU / (2 * NU + c) if matern else None, "noise_free": -NU / c if matern else None}
        slopes.append({"target": target, "grid": grid, "kernel": kernel, "fits": fits, **rates})
    return slopes


def tables(record: dict) -> str:
    """The figures as two Markdown tables."""
    lines = ["| target | inputs | kernel | KL | KS | W1 | RMS | −ν/(2ν+c) | −ν/c |", "|" + "---|" * 9]
    for row in record["slopes"]:
        fitted = [f"{row['fits'][name][0]:+.2f}" for name in DISTANCES]
        rates = ["" if row[name] is None else f"{row[name]:+.2f}" for name in ("noisy", "noise_free")]
        lines.append("| " + " | ".join([row["target"], row["grid"], row["kernel"], *fitted, *rates]) + " |")
    lines += ["", "| target | inputs | kernel | m | KL | KL, half resolution | KS | W1 | RMS | condition number |"]
    lines += ["|" + "---|" * 10]
    for row in record["figures"]:
        numbers = [f"{row[name]:.3g}" for name in ("kl", "kl_check", "ks", "w1", "rms")] + [
            f"{row['condition_number']:.0e}"
        ]
        lines.append("| " + " | ".join([row["target"], row["grid"], row["kernel"], str(row["m"]), *numbers]) + " |")
    return "\n".join(lines)


def draw(record: dict, path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    targets = list(dict.fromkeys(row["target"] for row in record["figures"]))
    shown = {name: DISTANCES[name] for name in ("kl", "ks", "w1")}
    figure, axes = plt.subplots(3, len(targets), figsize=(4 * len(targets), 8.4), sharex="col", squeeze=False)
    styles = {"Matérn-5/2": ("o", "#1f5fa8"), "proof's ARD": ("s", "#c8502a")}
    for column, target in enumerate(targets):
        for axis, (name, label) in zip(axes[:, column], shown.items(), strict=True):
            for kernel, (marker, colour) in styles.items():
                same = {"target": target, "grid": "even", "kernel": kernel}.items()
                rows = [row for row in record["figures"] if same <= row.items()]
                slope, intercept = next(
                    row["fits"][name] for row in record["slopes"] if same <= {**row, "fits": 0}.items()
                )
                m = np.array([row["m"] for row in rows])
                axis.loglog(m, [row[name] for row in rows], marker, color=colour, label=f"{kernel}, slope {slope:+.2f}")
                axis.loglog(m, np.exp(intercept) * m**slope, "--", color=colour, linewidth=1)
            axis.set_ylabel(label if column == 0 else "")
            axis.grid(True, which="major", alpha=0.3)
            axis.legend(fontsize=8, framealpha=0.9)
        axes[0, column].set_title(f"{target}\n{record['configuration']['targets'][target]}", fontsize=10)
        axes[-1, column].set_xlabel("m, variational data")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def write(record: dict, out: Path) -> None:
    """The record, the figure, and the tables of docs/theorem.md where that page is there."""
    draw(record, out / "docs" / "images" / "universal_approximation.png")
    (out / "results").mkdir(parents=True, exist_ok=True)
    (out / "results" / "universal_approximation.json").write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    )
    page = out / "docs" / "theorem.md"
    if page.exists():
        marked = f"<!-- table -->\n{tables(record)}\n<!-- /table -->"
        page.write_text(re.sub(r"<!-- table -->.*<!-- /table -->", lambda _: marked, page.read_text(), flags=re.S))


def main() -> None:
    parser = argparse.ArgumentParser(description="The universal approximation theorem, running.")
    parser.add_argument(
        "--quick", action="store_true", help="small m and coarse quadrature; writes only where --out says"
    )
    parser.add_argument(
        "--out", type=Path, help="folder that receives docs/ and results/ (the repository, unless --quick)"
    )
    arguments = parser.parse_args()
    start = time.perf_counter()
    settings = QUICK if arguments.quick else SETTINGS
    rows = []
    with jax.enable_x64(True):
        for setting in settings:
            for kernel in KERNELS:
                for side in setting.sides:
                    rows.append(row := measure(setting, kernel, side))
                    print("{target:15s} {grid:9s} {kernel:12s} m={m:<4d}".format(**row), end=" ")
                    print("KL {kl:9.4g} (half resolution {kl_check:9.4g})  KS {ks:8.3g}".format(**row), end="  ")
                    print(
                        "W1 {w1:8.3g}  RMS {rms:8.3g}  |∫q − 1| {0:.0e}".format(abs(row["mass"] - 1), **row), end="  "
                    )
                    print("jitter {jitter:.0e}  cond {condition_number:.0e}".format(**row), flush=True)
    configuration = {
        "quick": arguments.quick,
        "reach": REACH,
        "span": SPAN,
        "targets": {setting.target.name: setting.target.words for setting in settings},
        "settings": [{**setting._asdict(), "target": setting.target.name} for setting in settings],
        "w1": "mean over the marginals",
        "ks": "largest over the marginals",
        "dtype": "float64",
    }
    record = {
        "program": "examples/universal_approximation.py",
        "jax": jax.__version__,
        "configuration": configuration,
        "seconds": round(time.perf_counter() - start, 1),
        "slopes": fit_slopes(rows),
        "figures": rows,
    }
    print(tables(record | {"figures": []}).split("\n\n")[0])
    out = arguments.out or (None if arguments.quick else ROOT)
    if out is not None:
        write(record, out)
    print(f"{record['seconds']} s")


if __name__ == "__main__":
    main()
