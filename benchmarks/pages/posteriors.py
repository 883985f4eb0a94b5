"""Tables of fits of posteriors: README.md and docs/benchmarks.md."""

import statistics

from .common import record, table


def demo() -> str:
    """ELBO of every family on every target of `vgp demo`, with the VGP's k-hat and seconds."""
    rows = record("demo")["rows"]
    families = list(dict.fromkeys(row["family"] for row in rows))
    targets = list(dict.fromkeys(row["target"] for row in rows))
    cells = {(row["target"], row["family"]): row for row in rows}

    def show(row):
        lower, upper = row["elbo_lower"], row["elbo_upper"]
        elbo = f"{lower:.3f}" if lower == upper else f"[{lower:.3f}, {upper:.3f}]"
        return f"{elbo} · {row['khat']:.2f} · {row['seconds']:.0f} s"

    return table(["target", *families], [[t, *(show(cells[t, f]) for f in families)] for t in targets])


def shapes() -> str:
    """The worst of the seeds of the default fit on each normalised shape."""
    rows = record("shapes")["figures"]
    names = list(dict.fromkeys(row["shape"] for row in rows))
    out = []
    for name in reversed(names):
        worst = min((row for row in rows if row["shape"] == name), key=lambda row: row["lower"])
        best = max((row for row in rows if row["shape"] == name), key=lambda row: row["lower"])
        show = lambda row: f"[{row['lower']:.4f}, {row['upper']:.4f}] ± {row['stderr']:.4f}"  # noqa: E731
        out.append([name, show(worst), show(best), worst["steps"]])
    return table(["shape", "worst seed", "best seed", "steps"], out)


def race() -> str:
    """Seconds until AutoBNAFNormal's final ELBO on the X-shape, medians over the rounds."""
    columns = (("elbo", ".3f"), ("seconds", ".1f"), ("process", ".1f"))
    rounds = record("race")["figures"]["rounds"]
    runs = {"AutoBNAFNormal, 6000 steps": [r["AutoBNAFNormal"] for r in rounds]}
    for name in rounds[0]["VGP"]:
        label = "VGP, defaults" if name == "default" else f"VGP, defaults, steps={name}"
        runs[label] = [r["VGP"][name] for r in rounds]
    rows = [
        [label, *(f"{statistics.median(run[key] for run in mine):{form}}" for key, form in columns)]
        for label, mine in runs.items()
    ]
    return table(["X-shape", "ELBO", "seconds of the fit", "seconds of the whole process"], rows)


def step() -> str:
    """The cost of a step and its growth."""
    figures = record("step")["figures"]
    flat = figures["two_dimensions"]
    middle = sorted(flat["rounds"], key=lambda r: r["vgp_ms"])[len(flat["rounds"]) // 2]
    data, latent = figures["variational_data"]["exponents"], figures["latent_variables"]["exponents"]
    rows = [
        ["VGP step, num_data 64, inner 16, 64 draws", f"{middle['vgp_ms']:.2f} ms"],
        ["the same with the GP-driven scale", f"{middle['vgp_driven_scale_ms']:.2f} ms"],
        ["AutoIAFNormal step, 64 particles", f"{middle['iaf_ms']:.3f} ms"],
        ["ratio of steps, compiled and warm", f"{flat['ratio']:.1f}"],
        ["ratio of whole fits of 6000 steps, compilation included", f"{flat['whole_fit_ratio']:.1f}"],
        ["floor of the VGP step: its two large products and its exponentials alone", f"{flat['floor_ms']:.2f} ms"],
        ["exponent in d, 10³ to 10⁵: time, memory", f"{latent['ms']:.2f}, {latent['megabytes']:.2f}"],
        ["exponent in m, 64 to 1024: time, memory", f"{data['ms']:.2f}, {data['megabytes']:.2f}"],
    ]
    return table(["what", "measured"], rows)


def posteriordb() -> str:
    """The worst seed of every method on every posterior: errors of means and standard deviations, and k-hat."""
    rows = record("posteriordb")["figures"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    names = list(dict.fromkeys(row["posterior"] for row in rows))

    def show(name, method):
        mine = [row for row in rows if (row["posterior"], row["method"]) == (name, method)]
        if not mine:
            return "failed"
        if any(row["mean_error"] is None for row in mine):
            return "diverged"
        mean, sd = (max(row[key] for row in mine) for key in ("mean_error", "sd_error"))
        khats = [row["khat"] for row in mine]
        khat = "—" if None in khats else f"{max(khats):.2f}"
        good = mean <= 0.1 and sd <= 0.1 and khat != "—" and max(khats) < 0.7
        text = f"{_short(mean)} · {100 * sd:.0f} % · {khat}"
        return f"**{text}**" if good else text

    return table(
        ["posterior", *methods],
        [[name.split("-", 1)[-1], *(show(name, method) for method in methods)] for name in names],
    )


def _short(number: float) -> str:
    return f"{number:.2f}" if number < 100 else f"{number:.0e}"
