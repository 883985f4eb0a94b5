"""A fit as ArviZ reads it: InferenceData before version 1, a DataTree since."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Float, PRNGKeyArray

from .. import compiled, diagnostics
from ..result import Fit
from ..target import Target, Values

Group = dict[str, np.ndarray]


def to_arviz(fit: Fit, key: PRNGKeyArray | None = None, draws: int = 1000, resample: bool = False) -> Any:
    """Draws of the fit with their log densities and weights, the observed data and new data like it.

    The draws are those of `fit.sample(key, draws, resample)`, as one chain; without a key they are the same each time.
    Groups: `posterior`; `sample_stats` with `lp`, `log_q` and `log_weight` on the unconstrained scale; `observed_data`
    and `posterior_predictive` where the target knows them. How the run ended, its ELBO and k-hat are attributes.
    """
    try:
        import arviz as az
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ, which is not installed: pip install arviz.") from error
    target = fit._with_target("to_arviz")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws must be a whole number, 1 or more, got {draws!r}.")
    key = jr.fold_in(fit._key, 3) if key is None else key
    u = fit._draws(target, key, draws, resample)
    values = compiled.constrained(target, u)
    predicted = target.predict(jr.fold_in(key, 1), values)
    groups = {
        "posterior": _one_chain(named_leaves(values)),
        "sample_stats": _one_chain(_statistics(fit, target, u, jr.fold_in(key, 2), resample)),
        "posterior_predictive": _one_chain(named_leaves(predicted)),
        "observed_data": named_leaves(target.observed()),
    }
    groups = {name: group for name, group in groups.items() if group}
    about = _about(fit)
    coords, dims = target.labels()
    dims = {_plain(name): list(along) for name, along in dims.items()}
    attributes = {"posterior": about, "sample_stats": {"khat": about["khat"]}}
    if int(az.__version__.split(".")[0]) >= 1:
        return az.from_dict(
            groups, sample_dims=["chain", "draw"], coords=coords, dims=dims, attrs=attributes | {"/": dict(about)}
        )
    attributes = {f"{name}_attrs": attrs for name, attrs in attributes.items()}
    return az.from_dict(**groups, **attributes, coords=coords, dims=dims, attrs=dict(about))


def named_leaves(values: Values) -> Group:
    """The arrays of a pytree under the user's names."""
    paths, _ = tree_flatten_with_path(values)
    return {_plain(keystr(path, simple=True, separator=".") or "z"): np.asarray(leaf) for path, leaf in paths}


def _plain(name: str) -> str:
    # A slash, as NumPyro's scopes have it, would be a group of its own in a tree and in a NetCDF file.
    return name.replace("/", ".")


def _one_chain(group: Group) -> Group:
    return {name: array[None] for name, array in group.items()}


def _statistics(fit: Fit, target: Target, u: Float[Array, "n d"], key: PRNGKeyArray, resampled: bool) -> Group:
    log_p = compiled.log_probs(target, u)
    log_q = diagnostics.log_prob(fit._q, u, key, inner=200).value
    even = jnp.full(len(u), -jnp.log(len(u)))  # resampled draws have had their weights already
    log_weight = even if resampled else diagnostics.smoothed(log_p - log_q).log_weights
    return {"lp": np.asarray(log_p), "log_q": np.asarray(log_q), "log_weight": np.asarray(log_weight)}


def _about(fit: Fit) -> dict[str, str | float]:
    # Strings and floats only: NetCDF holds nothing richer.
    from .. import __version__

    elbo = fit.elbo
    return {
        "inference_library": "vgp",
        "inference_library_version": __version__,
        "status": str(fit.status),
        "elbo_lower": float(elbo.lower),
        "elbo_upper": float(elbo.upper),
        "elbo_stderr": float(elbo.stderr),
        "khat": float(fit.khat),
    }
