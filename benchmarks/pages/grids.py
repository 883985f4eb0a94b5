"""Tables of docs/grids.md."""

from .common import record, table


def solvers() -> str:
    """Time and memory of the grids' algebra against m, with exponents."""
    rows = []
    for name, found in record("solvers")["figures"]["growth"].items():
        for row in found["rows"]:
            cells = [f"{row[kind]['ms']:.3g} ms, {row[kind]['megabytes']:.3g} MB" for kind in ("forward", "gradient")]
            rows.append([name, row["size"], *cells])
        powers = [found["exponents"][kind] for kind in ("forward", "gradient")]
        rows.append([name, "exponent", *(f"{each['ms']:.2f}, {each['megabytes']:.2f}" for each in powers)])
    return table(["algebra", "m", "mean and variance", "their gradients"], rows)


def million() -> str:
    """A step on a million inputs, and where Toeplitz algebra becomes quicker than dense."""
    figures = record("solvers")["figures"]
    step, largest = figures["step"], figures["crossing"][0]["rows"][-1]["size"]
    rows = [
        [
            f"a step of `vgp.fit` on {step['size']} inputs, c = 3, {step['draws']} draws",
            f"{step['ms']:.0f} ms, {step['peak_megabytes']:.0f} MB of the whole process",
        ]
    ]
    device = record("solvers-gpu-step")
    step, hardware = device["figures"]["step"], device["hardware"].split(",")[0]
    rows.append([f"the same on an {hardware}", f"{step['ms']:.1f} ms, {step['peak_megabytes']:.0f} MB of the device"])
    for found in figures["crossing"]:
        crossing = found["crossing"]
        told = f"above {largest}" if crossing is None else f"{crossing:.0f}"
        rows.append([f"inputs from which Toeplitz is quicker than dense, {found['points']} points", told])
    return table(["what", "measured"], rows)


def grid() -> str:
    """The sandwich on a grid and with free inputs, each seed."""
    names = list(dict.fromkeys(row["name"] for row in record("grid")["figures"]))
    rows = [[row for row in record("grid")["figures"] if row["name"] == name] for name in names]
    head = ["inputs", *(f"seed {row['seed']}" for row in rows[0]), "seconds a fit"]
    body = [
        [
            name,
            *(f"{row['lower']:.2f} to {row['upper']:.2f} ± {row['stderr']:.2f}" for row in own),
            f"{sum(row['seconds'] for row in own) / len(own):.0f}",
        ]
        for name, own in zip(names, rows, strict=True)
    ]
    return table(head, body)


def gpytorch() -> str:
    """Conditional mean and variance beside GPyTorch's, in one run."""
    found = record("solvers")["figures"]["gpytorch"]
    rows = [
        [r["size"], f"{r['our_ms']:.3g}", f"{r['their_ms']:.4g}", f"{r['ratio']:.0f}"]
        + [f"{r[key]:.0e}" for key in ("our_error", "their_error")]
        for r in found["rows"]
    ]
    return table(["m", "ours, ms", f"GPyTorch {found['version']}, ms", "ratio", "our error", "its error"], rows)
