"""`Fit`: what `vgp.fit` returns."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from . import checkpoint, compiled, diagnostics
from .bounds import AbstractBound
from .diagnostics import Elbo, LogProb, LogRatios
from .families import AbstractFamily, Stack
from .families.stack import apart, stacked
from .gradients import AbstractGradient
from .loop import State
from .meanfield import Normal
from .meanfield.matching import check
from .target import Target, Values
from .trust import DISAGREE, verdict

CHECK = "Check the log density there, or use a smaller learning rate: optimizer=optax.adam(1e-3)."
# A step of another size cannot help where q draws what is impossible: only a penalty has a slope to learn from.
PENALISE = "Give values that are impossible a large finite penalty instead, such as a log density of -1000."


class Settings(eqx.Module):
    """How a fit was made: what a resumed run must share with the one that was saved."""

    bound: AbstractBound
    gradient: AbstractGradient
    optimizer: str | None  # a name, or None for one that the user passed
    draws: int
    restarts: int
    batch_size: int | None
    steps: int
    tail: bool


@dataclass(frozen=True)
class Status:
    """How a run ended and whether to trust it: `name` in {converged, max_steps, interrupted, diverged}.

    `str()` says what happened and what to try. It measures k-hat the first time, which takes some seconds; `ending`
    alone costs nothing.
    """

    name: str
    ending: str
    verdict: Callable[[], str] = lambda: ""

    def __str__(self) -> str:
        return f"{self.ending} {self.verdict()}".strip()


class Fit:
    """A fitted family, with an honest word on how good it is.

    `status`, `elbo` (the sandwich), `khat` and `khat_extended`, `ess`, `history`, `sample`, `log_prob`,
    `summary`, `plot`, `to_arviz`, `save` and `resume`. Diagnostics are measured when first asked for, then kept.

    Restarts that disagree are combined: draws and diagnostics are then of `stack`, their weighted mixture, and
    `family` is the best of them alone.
    """

    def __init__(
        self,
        target: Target | None,
        family: AbstractFamily,
        settings: Settings,
        state: State | None,
        history: np.ndarray,
        status: Status,
        seconds: float,
        measured: dict[str, Any] | None = None,
    ):
        self.target = target
        self.family = family
        self.settings = settings
        self.state = state
        self.histories = history
        self._ended = status
        self.seconds = seconds
        self._measured = measured or {}
        self.key_impl = "threefry2x32"
        self._arrays: dict[str, np.ndarray] | None = None

    @classmethod
    def make(cls, target, assemble, settings: Settings, state: State, history, ending: str, seconds: float) -> "Fit":
        """The result of a run: the best restart, and a sentence on how it ended."""
        best = _best(history)
        params = (
            state.params
            if settings.restarts == 1
            else jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[best]), state.params)
        )
        status = _status(ending, settings, state, history)
        return cls(target, assemble(params), settings, state, history, status, seconds)

    def because(self, reason: str, advice: str) -> "Fit":
        """The same fit, with the reason of its divergence in the status, and what to do about it."""
        ended = self._ended
        ending = ended.ending.replace("something was not finite", reason).replace(CHECK, advice)
        self._ended = Status(ended.name, ending)
        return self

    # ------------------------------------------------------------ diagnostics

    @property
    def status(self) -> Status:
        """How the run ended and whether to trust what came of it."""
        return Status(self._ended.name, self._ended.ending, lambda: verdict(self))

    @cached_property
    def spread(self) -> float:
        """By how many nats the bounds of the restarts differ at the end; 0 for a single run."""
        return float(np.ptp(_recent(self.histories)))

    @cached_property
    def stack(self) -> Stack | None:
        """The restarts as one weighted mixture, where they disagree in their bounds or lie in different places."""
        if self.settings.restarts == 1 or self.target is None:
            return None
        from .fit import members

        found = members(self)
        pool = diagnostics.pooled(self.target, found, jr.fold_in(self._key, 4))
        self._measured["apart"] = apart(pool)
        if max(self.spread, self._measured["apart"]) <= DISAGREE:
            return None
        stack = stacked(found, pool)
        self._measured["weights"] = np.asarray(stack.weights).tolist()
        return stack

    @property
    def _q(self) -> AbstractFamily:
        return self.family if self.stack is None else self.stack

    @property
    def history(self) -> np.ndarray:
        """The bound at every step of the best restart; NaN where a step was skipped."""
        return self.histories[:, _best(self.histories)]

    @property
    def _key(self) -> PRNGKeyArray:
        # Diagnostics draw from a stream of their own, the same whenever they are asked for.
        return jr.fold_in(jr.key(0), len(self.histories))

    @cached_property
    def log_ratios(self) -> LogRatios:
        """log p − log q̂ at draws of the fit (16,384 of them, inner=200)."""
        return diagnostics.log_ratios(self._with_target("diagnostics"), self._q, self._key)

    @property
    def elbo(self) -> Elbo:
        """The sandwich on the ELBO, constants included, measured afresh whatever the training bound was."""
        return self._measure("elbo", lambda: self.log_ratios.elbo, lambda saved: Elbo(*saved))

    @property
    def khat(self) -> float:
        """Pareto k̂ of log p − log q̂, the ξ that generated z included: below 0.7, weights can be trusted."""
        return self._measure("khat", lambda: diagnostics.pareto_khat(self.log_ratios.lower))

    @property
    def khat_extended(self) -> float:
        """Pareto k̂ on the extended space (z, ξ), K = 0: what the auxiliary model misses counts as well."""
        return self._measure("khat_extended", lambda: diagnostics.pareto_khat(self.log_ratios.extended))

    @property
    def ess(self) -> float:
        """The effective sample size of importance weights p / q̂, as a share of the draws: 1 if q is p."""
        return self._measure(
            "ess", lambda: diagnostics.smoothed(self.log_ratios.lower).ess / len(self.log_ratios.lower)
        )

    def _measure(self, name, measure, read=lambda saved: saved):
        if name not in self._measured:
            self._measured[name] = measure()
        return read(self._measured[name])

    # ------------------------------------------------------------ use

    def sample(self, key: PRNGKeyArray, n: int, resample: bool = False) -> Values:
        """n draws in the user's pytree, constrained, with a leading axis n.

        With `resample` they are drawn again from five times as many, by Pareto-smoothed weights
        p / q̂: closer to the posterior where `khat` is below 0.7, and usually above it, without a promise.
        """
        target = self._with_target("sample")
        return compiled.constrained(target, self._draws(target, key, n, resample))

    def _draws(self, target: Target, key: PRNGKeyArray, n: int, resample: bool) -> Float[Array, "n d"]:
        return _resampled(target, self._q, key, n) if resample else compiled.sample(self._q, key, n)

    def log_prob(self, z: Values, key: PRNGKeyArray) -> LogProb:
        """log q of constrained values with a leading batch axis: `.value`, and `.stderr` of its estimate."""
        target = self._with_target("log_prob")
        u = jax.vmap(target.unconstrain)(z)
        value, stderr = diagnostics.log_prob(self._q, u, key)
        layout = getattr(target, "layout", None)
        inside = jnp.ones(len(u), bool) if layout is None else jax.vmap(layout.inside)(u)
        value = jnp.where(inside, value - jax.vmap(target.log_jacobian)(u), -jnp.inf)
        return LogProb(value, jnp.where(inside, stderr, 0.0))

    def summary(self) -> "Text":
        """A page of text: how the run ended, whether to trust it, and the posterior of each value."""
        from .summary import summary

        return summary(self)

    def plot(self):
        """A figure: the bound's history; in two dimensions the draws on the target's contours and the warp."""
        from .plots import plot

        return plot(self)

    def to_arviz(self, key: PRNGKeyArray | None = None, draws: int = 1000, resample: bool = False) -> Any:
        """The fit as ArviZ keeps it: draws with log p, log q and weights, observed data, posterior predictive.

        An InferenceData under arviz 0.x, a DataTree under 1.x.
        """
        from .interop.arviz import to_arviz

        return to_arviz(self, key, draws, resample)

    def resume(self, steps: int | None = None, *, optimizer=None, progress: bool = True, checkpoint=None) -> "Fit":
        """Goes on from where the run stopped, bit for bit; with `steps`, for that many more.

        An optimiser that was passed to `vgp.fit` has to be passed again.
        """
        from .fit import resume

        return resume(self, steps, optimizer, progress, checkpoint)

    # ------------------------------------------------------------ files

    def save(self, path: str | os.PathLike) -> None:
        """Writes the fit with its optimiser's state to one file, or leaves the old file as it was."""
        arrays: dict[str, np.ndarray] = {"history": self.histories}
        meta = {
            "family": checkpoint.describe(self.family, "family", arrays),
            "settings": checkpoint.describe(self.settings, "settings", arrays),
            "status": [self._ended.name, self._ended.ending],
            "seconds": self.seconds,
            "measured": self._measured,
            "key": self.key_impl if self.state is None else str(jr.key_impl(self.state.key)),
        }
        if self.state is not None:
            arrays |= checkpoint.flatten(self.state, "state")
        elif self._arrays is not None:
            arrays |= {name: array for name, array in self._arrays.items() if name.startswith("state")}
        checkpoint.write(path, arrays, meta)

    def _with_target(self, what: str) -> Target:
        if self.target is None:
            raise ValueError(f"This fit was loaded without its target, which {what} needs; use vgp.load(path, target).")
        return self.target

    def __repr__(self) -> str:
        return f"Fit({type(self.family).__name__}, {self._ended.name}, {len(self.histories)} steps)"


def read_run(path, family: AbstractFamily, like: State, settings: Settings) -> tuple[State, np.ndarray, float]:
    """State, history and seconds of a saved run, refused if it was made with other settings or another family."""
    arrays, meta = checkpoint.read(path)
    saved = checkpoint.rebuild(meta["settings"], arrays)
    for name in Settings.__dataclass_fields__:
        old, new = getattr(saved, name), getattr(settings, name)
        if not bool(eqx.tree_equal(old, new)):
            raise checkpoint.CheckpointError(
                f"The checkpoint '{path}' is of a run with {name}={old}, and this one has {name}={new}; "
                "use the same arguments, or another file."
            )
    checkpoint.restore(family, arrays, "family")
    return checkpoint.restore(like, arrays, "state"), arrays["history"], float(meta["seconds"])


def load(path: str | os.PathLike, target: Target | None = None, family: AbstractFamily | None = None) -> Fit:
    """A fit that `fit.save` wrote. With its target it can draw, be measured and be resumed.

    `family` is needed only for a family that is not vgp's own: one like it, to read the arrays into.
    """
    arrays, meta = checkpoint.read(path)
    settings = checkpoint.rebuild(meta["settings"], arrays)
    rebuilt = family is None
    family = checkpoint.rebuild(meta["family"], arrays) if rebuilt else checkpoint.restore(family, arrays, "family")
    if not isinstance(family, AbstractFamily):
        raise checkpoint.CheckpointError(f"'{path}' does not hold a family; it is not a saved fit of vgp.")
    if target is not None and target.dim != family.dim:
        raise ValueError(
            f"The saved family has {family.dim} dimensions and the target {target.dim}; "
            "pass the target it was fitted to."
        )
    if target is not None:
        check(getattr(family, "meanfield", Normal(family.dim)), target.supports(), "pass the target it was fitted to")
    loaded = Fit(
        target, family, settings, None, arrays["history"], Status(*meta["status"]), meta["seconds"], meta["measured"]
    )
    loaded._arrays, loaded.key_impl = arrays, meta["key"]
    return loaded


class Text(str):
    """A string that shows itself, not its quotes, in a notebook or a shell."""

    def __repr__(self) -> str:
        return str(self)


def _resampled(target, family, key, n):
    draw_key, weigh_key, key = jr.split(key, 3)
    u = compiled.sample(family, draw_key, 5 * n)
    log_q = diagnostics.log_prob(family, u, weigh_key, inner=200).value
    log_weights = diagnostics.smoothed(compiled.log_probs(target, u) - log_q).log_weights
    return u[jr.categorical(key, log_weights, shape=(n,))]


def _recent(history: np.ndarray) -> np.ndarray:
    # The mean bound of each restart over the last tenth of the run.
    if not len(history):
        return np.zeros(history.shape[1])
    tail = history[-max(1, len(history) // 10) :]
    with np.errstate(all="ignore"):
        counts = np.maximum(np.isfinite(tail).sum(0), 1)
        means = np.nansum(tail, axis=0) / counts
    return np.where(np.isfinite(tail).any(0), means, -np.inf)


def _best(history: np.ndarray) -> int:
    return int(np.argmax(_recent(history)))


def _status(ending: str, settings: Settings, state: State, history: np.ndarray) -> Status:
    steps, skipped = len(history), int(np.asarray(state.skipped).max())
    sentences = {
        "converged": f"Converged: the bound stopped rising and the run ended after {steps} steps.",
        "max_steps": f"Stopped at the limit of {steps} steps before the bound had settled; "
        "raise steps, or go on with fit.resume(steps=...).",
        "interrupted": f"Interrupted after {steps} steps; this is what was learned until then, "
        "and fit.resume() goes on.",
        "diverged": f"Diverged after {steps} steps: something was not finite; the last good state is kept. {CHECK}",
    }
    sentence = sentences[ending]
    if skipped and ending != "diverged":
        sentence += f" {skipped} steps were skipped because the bound or its gradient was not finite."
    return Status(ending, sentence)
