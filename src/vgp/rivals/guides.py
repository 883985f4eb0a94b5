"""NumPyro's automatic guides, fitted to a `vgp.Target` with NumPyro's own SVI: normalizing flows and a Gaussian."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoContinuous, AutoIAFNormal, AutoMultivariateNormal

from ..diagnostics import Elbo, pareto_khat
from ..target import Target

GUIDES: dict[str, Callable[[Callable[[], None]], AutoContinuous]] = {
    "AutoIAFNormal": lambda model: AutoIAFNormal(model, num_flows=3),
    "AutoBNAFNormal": lambda model: AutoBNAFNormal(model, num_flows=1),
    "AutoMultivariateNormal": AutoMultivariateNormal,
}

STEPS = 6000
DRAWS = 64  # particles of the bound per step, as many as `vgp.fit` takes
STEP_SIZE = 1e-2
MEASURED = 16384  # fresh draws for the bound and k-hat, as many as a `Fit` takes
CHUNK = 2048  # of them at a time, so that a wide flow fits in memory


@dataclass(frozen=True)
class GuideFit:
    """A fitted guide: its ELBO with constants (exact density, so lower == upper), k-hat, and draws.

    `seconds` is the wall time of the fit with its compilation, and without the measuring that follows it.
    """

    name: str
    elbo: Elbo
    khat: float
    seconds: float
    steps: int
    posterior: Any

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n draws, flat and unconstrained."""
        return self.posterior.sample(key, (n,))


def fit_guide(
    target: Target,
    name: str,
    *,
    key: PRNGKeyArray,
    steps: int = STEPS,
    draws: int = DRAWS,
    step_size: float = STEP_SIZE,
    measured: int = MEASURED,
) -> GuideFit:
    """Fits the guide called `name` in `GUIDES` to a target, and measures it on fresh draws."""
    if name not in GUIDES:
        raise ValueError(f"There is no guide {name!r}; take one of {', '.join(GUIDES)}.")
    if target.dim < 2 and name != "AutoMultivariateNormal":
        raise ValueError(
            f"{name} needs at least 2 dimensions, and this target has {target.dim}; use AutoMultivariateNormal."
        )
    fit_key, measure_key = jr.split(key)

    def model():
        # The improper site has log density 0 everywhere, so the factor is the whole log density of u. The real
        # line needs no transform, and so no Jacobian beside the one that the target adds itself.
        support = constraints.independent(constraints.real, 1)
        u: Any = numpyro.sample("u", dist.ImproperUniform(support, (), (target.dim,)))
        numpyro.factor("log_p", target.log_prob(u))

    guide = GUIDES[name](model)
    # A constant step size leaves the parameters wandering around the optimum, in proportion to it: measured on the
    # built-in targets, a fall to zero is worth about 0.01 nats in two dimensions and 0.1 on the funnel. `vgp.fit`
    # lets its own step size fall too, so the comparison is even.
    optimizer = optax.adam(optax.cosine_decay_schedule(step_size, steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=draws))
    started = time.monotonic()
    result = svi.run(fit_key, steps, progress_bar=False)
    params = jax.block_until_ready(result.params)
    seconds = time.monotonic() - started
    # Outside a compiled function: `get_transform` looks the networks' parameters up by name.
    posterior = dist.TransformedDistribution(guide.get_base_dist(), guide.get_transform(params))
    ratios = _log_ratios(target, posterior, measure_key, measured)
    return GuideFit(name, _elbo(ratios), pareto_khat(ratios), seconds, steps, posterior)


def _log_ratios(target, posterior, key, n) -> np.ndarray:
    # log p − log q at draws of q, with the density that comes with each draw: a flow's inverse is not needed, and
    # an inverse found by iteration would not be exact.
    @jax.jit
    def some(key):
        noise = posterior.base_dist.sample(key, (CHUNK,))
        u, log_q = noise, posterior.base_dist.log_prob(noise)
        for transform in posterior.transforms:
            moved, extra = transform.call_with_intermediates(u)
            log_q -= transform.log_abs_det_jacobian(u, moved, extra)
            u = moved
        return target.log_probs(u) - log_q

    chunks = [np.asarray(some(k)) for k in jr.split(key, -(-n // CHUNK))]
    return np.concatenate(chunks)[:n]


def _elbo(ratios: np.ndarray) -> Elbo:
    mean, spread = ratios.mean(dtype=np.float64), ratios.std(dtype=np.float64)
    return Elbo(float(mean), float(mean), float(spread / np.sqrt(len(ratios))))
