"""`Fit.summary`: one page of text on how a run ended, whether to trust it, and the posterior of each value."""

import math
from collections.abc import Iterator

import jax
import jax.random as jr
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from .families import VGP, AbstractExact
from .gp import Conditioner, conditioned
from .gp.axis import JITTER
from .result import Fit, Text, _recent
from .target import Values
from .trust import GOOD, USABLE, known

DRAWS = 4000
ROWS = 40  # values in the table; a page holds no more


def summary(fit: Fit) -> Text:
    """A page of text; without the fit's target only what was measured before it was saved."""
    lines = [str(fit.status), ""]
    lines += [f"{label:<15} {text}" for label, text in _header(fit)]
    lines.append("")
    if fit.target is None:
        lines.append("Loaded without its target: for the rest and the posterior, use vgp.load(path, target).summary().")
    else:
        lines += _table(fit.sample(jr.fold_in(fit._key, 1), DRAWS))
    return Text("\n".join(lines))


def _header(fit: Fit) -> Iterator[tuple[str, str]]:
    family = fit.family

    if known(fit, "elbo"):
        yield "ELBO", sandwich(*fit.elbo)
    if known(fit, "khat"):
        finite = not known(fit, "elbo") or math.isfinite(fit.elbo.lower)
        told = "do not trust (the ELBO is not finite)"
        yield "k-hat", _verdict(fit.khat, isinstance(family, VGP)) if finite else f"{fit.khat:.2f}  {told}"
    if known(fit, "ess"):
        yield "sample size", f"{fit.ess:.2f} effective draws per draw, by importance weights"
    if known(fit, "khat_extended") and not isinstance(family, AbstractExact):
        yield (
            "k-hat, extended",
            f"{fit.khat_extended:.2f}  {khat_word(fit.khat_extended)} (weights on z and ξ jointly)",
        )
    yield "family", f"{type(family).__name__}, {family.dim} dimensions"
    if isinstance(family, VGP):
        yield "", f"num_data {family.num_data}, latent_dim {family.latent_dim}, {family.solver}"
        conditioner = conditioned(family.kernel, family.inputs)
        jitter = float(conditioner.jitter) if isinstance(conditioner, Conditioner) else JITTER
        yield "", f"effective dimension {float(family.effective_dim):.1f}, jitter {jitter:.1g}"
    yield "run", f"{len(fit.histories)} steps, {fit.seconds:.1f} s"
    if fit.settings.restarts > 1:
        bounds = ", ".join(f"{bound:.4g}" for bound in _recent(fit.histories))
        yield "restarts", f"bounds at the end: {bounds}"
        if fit.stack is not None:
            yield "", "weights " + ", ".join(f"{weight:.2f}" for weight in np.asarray(fit.stack.weights))


def sandwich(lower: float, upper: float, stderr: float) -> str:
    """The ELBO with as many decimals as its error supports: two figures of it."""
    if not all(map(math.isfinite, (lower, upper, stderr))):
        return f"[{lower:.4g}, {upper:.4g}] ± {stderr:.2g}"
    decimals = min(max(1 - math.floor(math.log10(stderr)), 0), 6) if stderr > 0 else 6
    return f"[{lower:.{decimals}f}, {upper:.{decimals}f}] ± {stderr:.{decimals}f}"


def khat_word(khat: float) -> str:
    """Below 0.5 good, to 0.7 usable, above it not to be trusted."""
    if math.isnan(khat):
        return "could not be measured"
    return "good" if khat < GOOD else "usable" if khat <= USABLE else "do not trust"


def _verdict(khat: float, is_vgp: bool) -> str:
    word = f"{khat:.2f}  {khat_word(khat)}"
    if khat < GOOD:
        return word
    resample = "fit.sample(key, n, resample=True)"
    if khat <= USABLE:
        return f"{word}; {resample} corrects the draws"
    richer = "raise num_data" if is_vgp else "fit a vgp.VGP"
    return f"{word}: {richer}, take more steps, or try {resample}"


def named_columns(values: Values) -> Iterator[tuple[str, np.ndarray]]:
    """The scalar values of a pytree of draws under the user's names, with their draws: theta[0], theta[1], ..."""
    for path, leaf in tree_flatten_with_path(values)[0]:
        name = keystr(path, simple=True, separator=".") or "z"
        leaf = np.asarray(leaf)
        for index in np.ndindex(leaf.shape[1:]):
            suffix = f"[{','.join(map(str, index))}]" if index else ""
            yield name + suffix, leaf[(slice(None), *index)]


def _table(values: Values) -> list[str]:
    total = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(values))
    rows = []
    for (name, column), _ in zip(named_columns(values), range(ROWS), strict=False):
        column = column.astype(np.float64)
        rows.append((name, column.mean(), column.std(), *np.quantile(column, (0.05, 0.5, 0.95))))
    width = max(5, *(len(row[0]) for row in rows))
    head = "".join(f"{title:>12}" for title in ("mean", "sd", "5%", "50%", "95%"))
    lines = [f"{'value':<{width}}{head}"]
    lines += [f"{name:<{width}}" + "".join(f"{number:>12.4g}" for number in numbers) for name, *numbers in rows]
    if total > ROWS:
        lines.append(f"… and {total - ROWS} more")
    return lines
