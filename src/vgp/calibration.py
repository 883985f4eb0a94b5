"""Simulation-based calibration (Talts et al. 2018): are the posteriors right on average over data from the model?

Values drawn from the prior, data drawn given them, a posterior fitted to that data: if it is right, the rank of the
true value among its draws is uniform. This asks of the whole procedure what k-hat cannot see, at the price of many
fits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray
from numpyro import handlers
from numpyro.primitives import Messenger

from .fit import fit
from .progress import Bar
from .result import Fit
from .summary import named_columns
from .target import Values
from .targets import from_numpyro

LEVEL = 0.05  # of the test, over all values together


@dataclass(frozen=True)
class Calibration:
    """Ranks of the true values among `draws` posterior draws: for each value, one per simulation."""

    ranks: dict[str, np.ndarray]
    draws: int

    @property
    def simulations(self) -> int:
        """How many simulations there were."""
        return len(next(iter(self.ranks.values())))

    @property
    def bins(self) -> int:
        """Bins of a histogram of the ranks: at least five simulations each, and equally many ranks."""
        most = max(2, min(20, self.simulations // 5))
        return next(bins for bins in range(most, 0, -1) if (self.draws + 1) % bins == 0)

    def histogram(self, name: str) -> np.ndarray:
        """How many ranks of a value fall into each bin."""
        return np.bincount(self.ranks[name] * self.bins // (self.draws + 1), minlength=self.bins)

    @property
    def pvalues(self) -> dict[str, float]:
        """The p-value of uniform ranks for each value, by a χ² test."""
        from scipy.stats import chisquare

        return {name: float(chisquare(self.histogram(name)).pvalue) for name in self.ranks}

    @property
    def failed(self) -> list[str]:
        """The values whose ranks are not uniform, at 5 % over all of them (Holm)."""
        ordered, failed = sorted(self.pvalues.items(), key=lambda item: item[1]), []
        for i, (name, p) in enumerate(ordered):
            if p > LEVEL / (len(ordered) - i):
                break
            failed.append(name)
        return failed

    def __str__(self) -> str:
        count, total = len(self.failed), len(self.ranks)
        if not count:
            return (
                f"Calibrated as far as {self.simulations} simulations can tell: the ranks of all {total} values are "
                f"uniform (smallest p-value {min(self.pvalues.values()):.2g})."
            )
        told = "; ".join(f"{name} is {self._fault(name)} (p = {self.pvalues[name]:.1g})" for name in self.failed[:5])
        more = f"; and {count - 5} more" if count > 5 else ""
        return f"Not calibrated: {told}{more}, in {self.simulations} simulations."

    def _fault(self, name: str) -> str:
        share = (self.ranks[name] + 0.5) / (self.draws + 1)
        error = (1 / 12 / len(share)) ** 0.5
        if abs(share.mean() - 0.5) > 3 * error:
            return "too low" if share.mean() > 0.5 else "too high"
        return "too narrow" if share.var() > 1 / 12 else "too wide"

    def plot(self):
        """A figure: a histogram of ranks for each value, with the band that holds 95 % of uniform ones."""
        from .plots import ranks

        return ranks(self)


def sbc(
    simulate: Callable[[PRNGKeyArray], tuple[Values, Any]],
    posterior: Callable[[Any, PRNGKeyArray], Fit | Values],
    *,
    key: PRNGKeyArray,
    simulations: int = 100,
    draws: int = 127,
    progress: bool = True,
) -> Calibration:
    """Calibrates a procedure on simulated data.

    **Main arguments:** `simulate(key)` returns values drawn from the prior, and data drawn given them;
    `posterior(data, key)` returns a fit, or posterior draws like the values with a leading axis; `key`.

    **Other arguments:** `simulations`, how many; `draws`, of each posterior. Ctrl-C ends it with what is done.
    """
    for name, number in (("simulations", simulations), ("draws", draws)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more, got {number!r}.")
    ranks: dict[str, list[int]] = {}
    done = 0
    with Bar(simulations, progress) as bar:
        try:
            for done in range(1, simulations + 1):
                simulate_key, fit_key, draw_key = jr.split(jr.fold_in(key, done), 3)
                values, data = simulate(simulate_key)
                drawn = posterior(data, fit_key)
                if isinstance(drawn, Fit):
                    if drawn.status.name == "interrupted":
                        break
                    drawn = drawn.sample(draw_key, draws)
                for name, rank in _ranks(values, drawn):
                    ranks.setdefault(name, []).append(rank)
                bar.update(done, simulations, "simulations")
        except KeyboardInterrupt:
            pass
    if not ranks:
        raise ValueError("No simulation was finished, so there is nothing to say about calibration.")
    whole = min(map(len, ranks.values()))
    return Calibration({name: np.asarray(each[:whole]) for name, each in ranks.items()}, draws)


def _ranks(values: Values, drawn: Values):
    # Values that the posterior does not know, and draws without a true value, are left out.
    truth = dict(named_columns(_leading(values)))
    for name, column in named_columns(drawn):
        if name in truth:
            yield name, int(np.sum(column < truth[name][0]))


def _leading(values: Values) -> Values:
    import jax

    return jax.tree.map(lambda x: np.asarray(x)[None], values)


def sbc_numpyro(
    model: Callable[..., Any],
    *args: Any,
    key: PRNGKeyArray,
    simulations: int = 100,
    draws: int = 127,
    options: dict[str, Any] | None = None,
    progress: bool = True,
    **kwargs: Any,
) -> Calibration:
    """Calibrates `vgp.fit` on a NumPyro model, called with its arguments and real data.

    Data is simulated at the model's observed sites; priors must be proper. `options` go to `vgp.fit`. The arrays in
    the arguments keep their shapes, so nothing is compiled again after the first simulation.
    """
    observed = [
        name
        for name, site in handlers.trace(handlers.seed(model, jr.key(0))).get_trace(*args, **kwargs).items()
        if site["type"] == "sample" and site["is_observed"]
    ]
    if not observed:
        raise ValueError("The model has no observed sites here; call it with data, whose shapes are then simulated.")

    def replaced(data, *args, **kwargs):
        return _Observed(model, data)(*args, **kwargs)

    def simulate(key):
        free = handlers.seed(handlers.uncondition(model), key)
        trace = handlers.trace(free).get_trace(*args, **kwargs)
        sites = {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
        values = {name: value for name, value in sites.items() if name not in observed}
        return values, {name: sites[name] for name in observed}

    _, data = simulate(jr.key(0))
    target = from_numpyro(replaced, data, *args, **kwargs)

    def posterior(data, key):
        here = eqx.tree_at(lambda t: t.positional[0], target, data)
        return fit(here, key=key, progress=False, **(options or {}))

    return sbc(simulate, posterior, key=key, simulations=simulations, draws=draws, progress=progress)


class _Observed(Messenger):
    """Gives observed sites other data."""

    def __init__(self, fn, data: dict[str, Any]):
        super().__init__(fn)
        self.data = data

    def process_message(self, msg):
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.data:
            msg["value"] = self.data[msg["name"]]
