"""Where a fit begins: at a Gaussian that already lies on the posterior.

Up to `FULL` dimensions the Gaussian that maximises the ELBO is found by natural gradients, from several points at once.
Each turn looks at the gradient of log p in d orthogonal directions, at the distance √d where draws of the Gaussian lie:
their mean is the natural gradient of its location and their differences, by Stein's identity, that of its precision.
Both are exact where the posterior is Gaussian, and neither changes if the values are measured in other units, so that
bad scaling and strong correlation cost nothing. In more dimensions Pathfinder (Zhang et al. 2022) gives the location
and a scale for each coordinate.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .compiling import alone
from .families.place import Place
from .target import Target, Values

FULL = 100  # dimensions up to which the covariance is a full matrix
PATHS = 8
TURNS = 200
RADIUS = 2.0  # paths begin uniformly within ±2 of zero, where Stan and NumPyro begin theirs
ROWS = 10_000  # of data that a start looks at, where the fit itself takes batches


class Path(eqx.Module):
    """A Gaussian N(loc, L Lᵀ) on its way, or several."""

    loc: Float[Array, "*p d"]
    factor: Float[Array, "*p d d"]
    rate: Float[Array, "*p"]  # of the next step, 1 being Newton's
    reach: Float[Array, "*p"]  # the longest step it may take, in its own standard deviations
    gain: Float[Array, "*p"]  # of the ELBO, averaged over the last few turns


class Start(NamedTuple):
    """Places from best to worst, with the ELBO of the Gaussian at each."""

    places: list[Place]
    elbos: np.ndarray


def find_start(target: Target, key: PRNGKeyArray, values: Values | None = None, paths: int = PATHS) -> Start:
    """Gaussians close to the target, found from random points or from the user's own `values`."""
    point_key, path_key = jr.split(key)
    points = _points(target, point_key, paths) if values is None else start_point(target, values)[None]
    if target.dim > FULL:
        return _pathfinder(target, points, path_key)
    locs, factors, elbos = (np.asarray(x) for x in _gaussians(target, points, path_key))
    return _ordered(locs, factors, elbos)


def start_point(target: Target, values: Values) -> Float[Array, " d"]:
    """The user's values as a point; in a dict, names that are left out begin at the centre of their support."""
    centre = target.constrain(jnp.zeros(target.dim))
    if isinstance(values, dict) and isinstance(centre, dict):
        unknown = sorted(set(values) - set(centre))
        if unknown:
            raise ValueError(f"The start names {unknown}, and the target has {sorted(centre)}.")
        values = centre | {name: jnp.asarray(value, float) for name, value in values.items()}
    try:
        point = target.unconstrain(values)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"The start must look like the target's values, for example {_shape(centre)}.") from error
    if point.shape != (target.dim,):
        raise ValueError(f"The start must have the shapes {_shape(centre)}, and it has {_shape(values)}.")
    if not bool(jnp.all(jnp.isfinite(point))):
        raise ValueError("The start lies outside of the values' supports; move it inside.")
    return point


def _shape(values) -> Any:
    return jax.tree.map(jnp.shape, values)


def _points(target, key, paths):
    # Uniform points, those at which the log density is finite first.
    points = jr.uniform(key, (8 * paths, target.dim), minval=-RADIUS, maxval=RADIUS)
    finite = np.isfinite(np.asarray(_log_probs(target, points)))
    return points[np.argsort(~finite, kind="stable")[:paths]]


def _ordered(locs, factors, elbos) -> Start:
    elbos = np.where(np.isfinite(elbos), elbos, -np.inf)
    order = np.argsort(-elbos)
    return Start([Place(jnp.asarray(locs[i]), jnp.asarray(factors[i])) for i in order], elbos[order])


@alone
def _log_probs(target, points):
    return target.log_probs(points)


# ---------------------------------------------------------------- natural gradients


@alone
def _gaussians(target: Target, points: Float[Array, "p d"], key: PRNGKeyArray):
    count, d = points.shape
    begin = Path(
        points,
        jnp.broadcast_to(0.1 * jnp.eye(d), (count, d, d)),
        jnp.full(count, 0.5),
        jnp.full(count, 2.0),
        jnp.full(count, jnp.inf),
    )

    def going(carry: tuple[Int[Array, ""], Path, Bool[Array, ""]]):
        return (carry[0] < TURNS) & ~carry[2]

    def turn(carry):
        i, paths, _ = carry
        keys = jr.split(jr.fold_in(key, i), count)
        paths, elbos = jax.vmap(lambda path, k: _turn(target, path, k))(paths, keys)
        # Done when the best path has stopped gaining: the others are only there to be chosen from.
        return i + 1, paths, (i > 40) & (paths.gain[jnp.argmax(elbos)] < 0.01)

    _, paths, _ = jax.lax.while_loop(going, turn, (jnp.zeros((), jnp.int32), begin, jnp.zeros((), bool)))
    noise = _antithetic(jr.fold_in(key, TURNS), 256, d)
    return paths.loc, paths.factor, jax.vmap(lambda p: _elbo(target, p.loc, p.factor, noise))(paths)


def _turn(target: Target, path: Path, key) -> tuple[Path, Float[Array, ""]]:
    d, eye = path.loc.shape[0], jnp.eye(path.loc.shape[0])
    turn_key, noise_key = jr.split(key)
    directions = jnp.linalg.qr(jr.normal(turn_key, (d, d)))[0]
    radius = d**0.5
    w = radius * jnp.concatenate([directions, -directions])
    slopes = jax.vmap(jax.grad(target.log_prob))(path.loc + w @ path.factor.T) @ path.factor
    slopes = jnp.where(jnp.isfinite(slopes), slopes, 0.0)
    gradient = slopes.mean(0)
    curvature = directions.T @ (slopes[:d] - slopes[d:]) / (2 * radius)
    # The precision in whitened coordinates, now the identity, steps towards minus the curvature. The second-order
    # term keeps it positive whatever the step (Lin et al. 2020).
    change = path.rate * (-0.5 * (curvature + curvature.T) - eye)
    precision, axes = jnp.linalg.eigh(eye + change + 0.5 * change @ change)
    precision = jnp.clip(precision, 0.05, 1e6)
    step = path.rate * axes.T @ gradient / precision
    length = jnp.sqrt(jnp.sum(step**2 * precision))
    step = axes @ (step * jnp.minimum(1.0, path.reach / jnp.maximum(length, 1e-6)))
    loc = path.loc + path.factor @ step
    factor = jnp.linalg.qr((path.factor @ (axes / jnp.sqrt(precision))).T)[1].T
    factor = factor * jnp.where(jnp.diagonal(factor) < 0, -1.0, 1.0)
    # Taken only if it is no step back, on the same noise.
    noise = _antithetic(noise_key, max(16, min(64, 2 * d)), d)
    before, after = (_elbo(target, *gaussian, noise) for gaussian in ((path.loc, path.factor), (loc, factor)))
    better = jnp.isfinite(after) & ~(after < before - 1e-3 - 1e-6 * jnp.abs(before))
    lost = ~jnp.isfinite(before) & ~better  # nothing to hold on to: draw in, and look again
    gain = jnp.where(better & jnp.isfinite(before), jnp.abs(after - before), jnp.where(lost, jnp.inf, 0.0))
    moved = Path(
        jnp.where(better, loc, path.loc),
        jnp.where(better, factor, jnp.where(lost, 0.5 * path.factor, path.factor)),
        jnp.clip(jnp.where(better, 1.5 * path.rate, 0.4 * path.rate), 1e-3, 1.0),
        jnp.clip(jnp.where(better, 2.0 * path.reach, 0.25 * path.reach), 0.1, 1e6),
        jnp.where(jnp.isinf(path.gain), gain, 0.8 * path.gain + 0.2 * gain),
    )
    return moved, jnp.where(better, after, jnp.where(jnp.isnan(before), -jnp.inf, before))


def _antithetic(key, n, d):
    half = jr.normal(key, (n // 2, d))
    return jnp.concatenate([half, -half])


def _elbo(target, loc, factor, noise) -> Float[Array, ""]:
    d = loc.shape[0]
    entropy = 0.5 * d * jnp.log(2 * jnp.pi * jnp.e) + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
    log_p = target.log_probs(loc + noise @ factor.T)
    return jnp.where(jnp.all(jnp.isfinite(log_p)), log_p.mean(), -jnp.inf) + entropy


# ---------------------------------------------------------------- Pathfinder


def _pathfinder(target, points, key) -> Start:
    locs, scales, elbos = (np.asarray(x) for x in _pathfinders(target, points, key))
    return _ordered(locs, scales, elbos)


@eqx.filter_jit
def _pathfinders(target, points, key):
    import blackjax.vi.pathfinder

    pathfinder: Any = blackjax.vi.pathfinder

    def log_density(u):
        value = target.log_prob(u)
        return jnp.where(jnp.isfinite(value), value, -1e10)

    def one(args):
        point, k = args
        path_key, draw_key = jr.split(k)
        state, _ = pathfinder.approximate(path_key, log_density, point, 32, maxiter=60, maxls=50)
        draws, _ = pathfinder.sample(draw_key, state, 200)
        return draws.mean(0), draws.std(0), state.elbo

    return jax.lax.map(one, (points, jr.split(key, points.shape[0])))
