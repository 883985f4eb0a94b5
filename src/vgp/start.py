"""Where a fit begins: at a Gaussian that already lies on the posterior.

Up to `FULL` dimensions the Gaussian that maximises the ELBO is found by natural gradients, from several points at once.
Each turn looks at the gradient of log p in d orthogonal directions, at the distance √d where draws of the Gaussian lie:
their mean is the natural gradient of its location and their differences, by Stein's identity, that of its precision.
Both are exact where the posterior is Gaussian, and neither changes if the values are measured in other units, so that
bad scaling and strong correlation cost nothing. In more dimensions Pathfinder (Zhang et al. 2022) gives a first
location and a scale for each coordinate, and turns of the same kind, with random signs for directions, improve them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .compiled import log_probs
from .compiling import alone
from .families.place import Place
from .target import Target, Values

FULL = 100  # dimensions up to which the covariance is a full matrix
PATHS = 8
TURNS = 200
RADIUS = 2.0  # paths begin uniformly within ±2 of zero, where Stan and NumPyro begin theirs
BUDGET = 2**26  # floats that the gradients of one turn may hold
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


def find_start(target: Target, key: PRNGKeyArray, values: Values | None = None, paths: int | None = None) -> Start:
    """Gaussians close to the target, found from random points or from the user's own `values`."""
    point_key, path_key = jr.split(key)
    if paths is None:  # a turn takes 2d gradients for each
        paths = max(2, min(PATHS, 200 // target.dim))
    points = _points(target, point_key, paths) if values is None else start_point(target, values)[None]
    if target.dim > FULL:
        return _pathfinder(target, points, path_key)
    rows = max((leaf.size for leaf in jax.tree.leaves(eqx.filter(target, eqx.is_array))), default=1)
    at_once = max(1, BUDGET // (rows * len(points)))
    locs, factors, elbos = (np.asarray(x) for x in _gaussians(target, points, path_key, at_once))
    return _ordered(locs, factors, elbos)


def start_point(target: Target, values: Values) -> Float[Array, " d"]:
    """The user's values as a point; in a dict, names that are left out begin at the centre of their support."""
    centre = target.constrain(jnp.zeros(target.dim))
    if isinstance(centre, dict):  # without deterministic sites, which follow from the others
        names = set(getattr(getattr(target, "layout", None), "names", centre))
        centre = {name: value for name, value in centre.items() if name in names} or centre
    if isinstance(values, dict) and isinstance(centre, dict):
        unknown = sorted(set(values) - set(centre))
        if unknown:
            raise ValueError(f"The start names {unknown}, and the values to start are {sorted(centre)}.")
        values = centre | {name: _leaf(value) for name, value in values.items()}
    values = jax.tree.map(lambda x: jnp.asarray(x, float), values)
    if _shapes(values) != _shapes(centre):
        raise ValueError(f"The start must have the shapes {_shown(centre)}, and it has {_shown(values)}.")
    point = target.unconstrain(values)
    there = target.constrain(jnp.where(jnp.isfinite(point), point, 0.0))
    for value, back in zip(jax.tree.leaves(values), jax.tree.leaves(_like(there, centre)), strict=True):
        if not np.allclose(value, back, rtol=1e-2, atol=1e-2):
            raise ValueError("The start lies outside of the values' supports; move it inside.")
    return point


def _leaf(value):
    # A list of numbers is meant as an array.
    return jnp.asarray(value, float) if isinstance(value, (list, tuple)) else value


def _like(values, centre):
    return {name: values[name] for name in centre} if isinstance(centre, dict) else values


def _shapes(values) -> Any:
    return jax.tree.structure(values), [jnp.shape(leaf) for leaf in jax.tree.leaves(values)]


def _shown(values) -> Any:
    return jax.tree.map(jnp.shape, values)


def _points(target, key, paths):
    # Uniform points, those at which the log density is finite first.
    points = jr.uniform(key, (8 * paths, target.dim), minval=-RADIUS, maxval=RADIUS)
    finite = np.isfinite(np.asarray(log_probs(target, points)))
    return points[np.argsort(~finite, kind="stable")[:paths]]


def _ordered(locs, factors, elbos) -> Start:
    elbos = np.where(np.isfinite(elbos), elbos, -np.inf)
    order = np.argsort(-elbos)
    return Start([Place(jnp.asarray(locs[i]), jnp.asarray(factors[i])) for i in order], elbos[order])


# ---------------------------------------------------------------- natural gradients


@alone
def _gaussians(target: Target, points: Float[Array, "p d"], key: PRNGKeyArray, at_once: int):
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
        paths, elbos = jax.vmap(lambda path, k: _turn(target, path, k, at_once))(paths, keys)
        # Done when the best path has stopped gaining: the others are only there to be chosen from.
        return i + 1, paths, (i > 40) & (paths.gain[jnp.argmax(elbos)] < 0.01)

    _, paths, _ = jax.lax.while_loop(going, turn, (jnp.zeros((), jnp.int32), begin, jnp.zeros((), bool)))
    noise = _antithetic(jr.fold_in(key, TURNS), 256, d)
    return paths.loc, paths.factor, jax.lax.map(lambda p: _elbo(target, p.loc, p.factor, noise, at_once), paths)


def _turn(target: Target, path: Path, key, at_once: int) -> tuple[Path, Float[Array, ""]]:
    d, eye = path.loc.shape[0], jnp.eye(path.loc.shape[0])
    turn_key, noise_key = jr.split(key)
    directions = jnp.linalg.qr(jr.normal(turn_key, (d, d)))[0]
    radius = d**0.5
    w = radius * jnp.concatenate([directions, -directions])
    slopes = _each(jax.grad(target.log_prob), path.loc + w @ path.factor.T, at_once) @ path.factor
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
    before, after = (_elbo(target, *q, noise, at_once) for q in ((path.loc, path.factor), (loc, factor)))
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


def _each(function, points: Float[Array, "n d"], at_once: int) -> Array:
    # At all points, as many at once as fit in memory with the target's data.
    if at_once >= len(points):
        return jax.vmap(function)(points)
    return jax.lax.map(function, points, batch_size=at_once)


def _antithetic(key, n, d):
    half = jr.normal(key, (n // 2, d))
    return jnp.concatenate([half, -half])


def _elbo(target, loc, factor, noise, at_once: int = 2**31) -> Float[Array, ""]:
    d = loc.shape[0]
    place = Place(loc, factor)
    entropy = 0.5 * d * jnp.log(2 * jnp.pi * jnp.e) + place.log_volume
    log_p = _each(target.log_prob, place(noise), at_once)
    return jnp.where(jnp.all(jnp.isfinite(log_p)), log_p.mean(), -jnp.inf) + entropy


# ---------------------------------------------------------------- Pathfinder


def _pathfinder(target, points, key) -> Start:
    locs, scales, elbos = (np.asarray(x) for x in _pathfinders(target, points, key))
    best = np.argsort(-np.where(np.isfinite(elbos), elbos, -np.inf))[: max(1, PATHS // 4)]
    found = _diagonal(target, jnp.asarray(locs[best]), jnp.asarray(scales[best]), key)
    return _ordered(*(np.asarray(x) for x in found))


@alone
def _diagonal(target, locs, scales, key):
    # Natural gradients of N(loc, scale²), with directions of random signs: their mean product with the slopes is the
    # diagonal of the curvature (Hutchinson), exact where it is diagonal.
    d = locs.shape[1]

    def one(args):
        loc, scale, key = args

        def turn(i, carry):
            loc, scale, rate = carry
            sign_key, noise_key = jr.split(jr.fold_in(key, i))
            signs = jr.rademacher(sign_key, (32, d), locs.dtype)
            w = jnp.concatenate([signs, -signs])
            slopes = jax.vmap(jax.grad(target.log_prob))(loc + scale * w) * scale
            slopes = jnp.where(jnp.isfinite(slopes), slopes, 0.0)
            change = rate * (-jnp.mean(signs * (slopes[:32] - slopes[32:]), axis=0) / 2 - 1)
            precision = jnp.clip(1 + change + 0.5 * change**2, 0.05, 1e6)
            step = jnp.clip(rate * slopes.mean(0) / precision, -3.0, 3.0)
            new_loc, new_scale = loc + scale * step, scale / jnp.sqrt(precision)
            noise = _antithetic(noise_key, 32, d)
            before, after = (_elbo(target, *q, noise) for q in ((loc, scale), (new_loc, new_scale)))
            better = jnp.isfinite(after) & ~(after < before - 1e-2 - 1e-6 * jnp.abs(before))
            rate = jnp.clip(jnp.where(better, 1.5 * rate, 0.4 * rate), 1e-3, 1.0)
            return jnp.where(better, new_loc, loc), jnp.where(better, new_scale, scale), rate

        loc, scale, _ = jax.lax.fori_loop(0, TURNS, turn, (loc, scale, jnp.asarray(0.5)))
        return loc, scale, _elbo(target, loc, scale, _antithetic(jr.fold_in(key, TURNS), 64, d))

    return jax.lax.map(one, (locs, scales, jr.split(key, locs.shape[0])))


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
