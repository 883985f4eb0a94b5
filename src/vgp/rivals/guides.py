"""NumPyro's automatic guides, fitted to a `vgp.Target` with NumPyro's own SVI: normalizing flows and a Gaussian."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
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
    dim: int
    params: dict[str, Array]

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n draws, flat and unconstrained."""
        return _sample(self.name, self.dim, self.params, key, n)


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
    started = time.monotonic()
    params = jax.block_until_ready(_train(target, name, _start(name, target.dim, fit_key), steps, draws, step_size))
    seconds = time.monotonic() - started
    chunks = [_log_ratios(target, name, params, k) for k in jr.split(measure_key, -(-measured // CHUNK))]
    ratios = np.concatenate(chunks)[:measured]
    return GuideFit(name, _elbo(ratios), pareto_khat(ratios), seconds, steps, target.dim, params)


def _model(dim: int, log_prob: Callable[[Array], Array]) -> Callable[[], None]:
    def model():
        # The improper site has log density 0 everywhere, so the factor is the whole log density of u. The real
        # line needs no transform, and so no Jacobian beside the one that the target adds itself.
        support = constraints.independent(constraints.real, 1)
        u: Any = numpyro.sample("u", dist.ImproperUniform(support, (), (dim,)))
        numpyro.factor("log_p", log_prob(u))

    return model


def _hasty(function: Callable[..., Any]) -> Callable[..., Any]:
    # For what runs once: compiling it well would take longer than running it.
    jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit
    return jit(function, compiler_options={"xla_backend_optimization_level": 0})


def _svi(dim: int, log_prob, name: str, steps: int, draws: int, step_size: float) -> SVI:
    model = _model(dim, log_prob)
    # A constant step size leaves the parameters wandering around the optimum, in proportion to it: measured on the
    # built-in targets, a fall to zero is worth about 0.01 nats in two dimensions and 0.1 on the funnel. `vgp.fit`
    # lets its own step size fall too, so the comparison is even.
    optimizer = optax.adam(optax.cosine_decay_schedule(step_size, steps))
    return SVI(model, GUIDES[name](model), optimizer, Trace_ELBO(num_particles=draws))


# A guide sets itself up in hundreds of small operations, which one by one take longer to compile than all the steps
# take to run. So the start is compiled whole, in haste, and once for all targets of a size: no guide's start depends
# on them.
@_hasty
def _start(name: str, dim: int, key: PRNGKeyArray) -> Any:
    return _svi(dim, jnp.sum, name, STEPS, DRAWS, STEP_SIZE).init(key)


@eqx.filter_jit
def _train(target: Target, name: str, start, steps: int, draws: int, step_size: float) -> dict[str, Array]:
    svi = _svi(target.dim, target.log_prob, name, steps, draws, step_size)
    svi.init(start.rng_key)  # only for what it notes down in `svi`; the values are not used, and so not computed
    return svi.run(start.rng_key, steps, progress_bar=False, init_state=start).params


def _posterior(name: str, dim: int, params: dict[str, Array]) -> dist.TransformedDistribution:
    # q(u). A guide knows its size only once it has seen its model, and its networks only by their parameters' names;
    # the model's density plays no part in that.
    guide = GUIDES[name](_model(dim, jnp.sum))
    handlers.substitute(handlers.seed(guide, 0), params)()
    return dist.TransformedDistribution(guide.get_base_dist(), guide.get_transform(params))


@_hasty
def _sample(name: str, dim: int, params: dict[str, Array], key: PRNGKeyArray, n: int) -> Any:
    return _posterior(name, dim, params).sample(key, (n,))


@eqx.filter_jit
def _log_ratios(target: Target, name: str, params: dict[str, Array], key: PRNGKeyArray) -> Float[Array, " n"]:
    # log p − log q at draws of q, with the density that comes with each draw: a flow's inverse is not needed, and
    # an inverse found by iteration would not be exact.
    posterior = _posterior(name, target.dim, params)
    u: Any = posterior.base_dist.sample(key, (CHUNK,))
    log_q = posterior.base_dist.log_prob(u)
    for transform in posterior.transforms:
        moved, between = transform.call_with_intermediates(u)
        log_q -= transform.log_abs_det_jacobian(u, moved, between)
        u = moved
    return target.log_probs(u) - log_q


def _elbo(ratios: np.ndarray) -> Elbo:
    mean, spread = ratios.mean(dtype=np.float64), ratios.std(dtype=np.float64)
    return Elbo(float(mean), float(mean), float(spread / np.sqrt(len(ratios))))
