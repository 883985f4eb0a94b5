"""Whether to trust a fit: what its diagnostics say, taken together, in a sentence or two."""

from typing import TYPE_CHECKING

import numpy as np

from .families import VGP

if TYPE_CHECKING:
    from .result import Fit

GOOD, USABLE = 0.5, 0.7  # Pareto k-hat, as in Vehtari et al.
DISAGREE = 0.1  # nats between restarts
FEW = 0.1  # effective sample size, as a share of the draws, below which draws as they are say little of the posterior
EVEN = 0.95  # effective sample size, as a share of the draws, above which weights are as good as equal
WIDE = 0.5  # nats between the sides of the sandwich


def known(fit: "Fit", name: str) -> bool:
    """Without its target nothing can be measured, and only what was saved is known."""
    return fit.target is not None or name in fit._measured


def verdict(fit: "Fit") -> str:
    """Whether to trust a fit, in a sentence or two: k-hat, the sandwich and the restarts taken together."""
    sentences = []
    combined = fit.stack is not None or "weights" in fit._measured
    if fit.settings.restarts > 1 and (combined or fit.spread > DISAGREE):
        lie = "" if fit._measured.get("apart", 0.0) <= DISAGREE else " and lie in different places"
        told = f"The {fit.settings.restarts} restarts disagree by {fit.spread:.2g} nats{lie}"
        if not combined:
            sentences.append(f"{told}; the best one is kept.")
        else:
            shares = ", ".join(f"{weight:.2f}" for weight in fit._measured["weights"])
            sentences.append(f"{told}; they are combined with the weights {shares}.")
    if not known(fit, "khat"):
        return " ".join(sentences)
    khat, richer = fit.khat, "raise num_data" if isinstance(fit.family, VGP) else "fit a vgp.VGP"
    if known(fit, "elbo") and not np.isfinite(fit.elbo.lower):
        told = "the approximation has draws where the log density is not finite, and cannot be trusted"
        advice = "; constrain the values, or give what is impossible a large finite penalty"
        diverged = fit._ended.name == "diverged"  # which has said what to do
        sentences.append(f"The ELBO is {fit.elbo.lower}: {told}{'' if diverged else advice}.")
        return " ".join(sentences)
    if np.isnan(khat):
        sentences.append("k-hat could not be measured: the log density is not finite at the fit's own draws.")
    elif khat > USABLE:
        sentences.append(
            f"k-hat {khat:.2f}: the approximation misses tail mass; {richer} or use fit.sample(..., resample=True)."
        )
    elif known(fit, "ess") and fit.ess < FEW:
        # A q that is wide where p is narrow hides nothing from k-hat, and yet most of its draws are not p's.
        sentences.append(
            f"k-hat {khat:.2f}, but the effective sample size is only {fit.ess:.2g} per draw: most draws lie where the "
            f"posterior has little mass; {richer}, choose a mean-field that can be as narrow as the posterior "
            "(vgp.meanfield), or use many draws of fit.sample(..., resample=True)."
        )
    elif khat > GOOD and known(fit, "ess") and fit.ess > EVEN:
        sentences.append(
            f"k-hat {khat:.2f}, of weights that are nearly equal (effective sample size {fit.ess:.2f} per draw): the "
            "draws can be trusted wherever the approximation has looked."
        )
    elif khat > GOOD:
        sentences.append(f"k-hat {khat:.2f}: usable, and fit.sample(..., resample=True) corrects what is left.")
    else:
        sentences.append(f"k-hat {khat:.2f}: the draws can be trusted wherever the approximation has looked.")
    if not known(fit, "elbo"):
        return " ".join(sentences)
    width = fit.elbo.upper - fit.elbo.lower
    if width > max(WIDE, 4 * fit.elbo.stderr):
        sentences.append(
            f"The sandwich on the ELBO is {width:.2g} nats wide, so the auxiliary model is poor; "
            "use bound=vgp.bounds.Importance(inner=64)."
        )
    return " ".join(sentences)
