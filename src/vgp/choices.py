"""What `vgp.fit` chooses where nothing is said: the family and its restarts, where it begins, the gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from numpyro.distributions import constraints as constraint

from .bounds import Collapsed, Importance
from .compiling import once
from .families import VGP, AbstractExact, AbstractFamily, Flow, Place
from .gradients import (
    VIMCO,
    AbstractGradient,
    DisARM,
    DoublyReparameterised,
    Pathwise,
    ScoreFunction,
    StickingTheLanding,
)
from .meanfield import Normal, matching
from .meanfield.matching import check
from .start import FULL, RADIUS, ROWS, find_start
from .target import Target


def choose_families(target, family, restarts, key) -> list[AbstractFamily]:
    """The family given, or one that suits the target, and its like for the other restarts."""
    if family is None:
        return _default_families(target, key, restarts)
    if not isinstance(family, AbstractFamily):
        raise TypeError(
            f"The family must be one of vgp's, such as vgp.VGP(target.dim, key=key), got {type(family).__name__}."
        )
    if family.dim != target.dim:
        raise ValueError(
            f"The family has {family.dim} dimensions and the target {target.dim}; "
            "build it with vgp.VGP(target.dim, ...)."
        )
    check(getattr(family, "meanfield", Normal(family.dim)), target.supports())
    return [family, *(_perturbed(family, k) for k in jr.split(key, restarts - 1))]


def _default_families(target: Target, key, restarts: int) -> list[AbstractFamily]:
    keys = jr.split(key, restarts) if restarts > 1 else [key]
    supports = target.supports()
    plain = all(support is constraint.real for _, support, _ in supports)
    meanfield = Normal(target.dim, "gp", 0.5) if plain else matching(supports)
    return [VGP(target.dim, meanfield=meanfield, key=k) for k in keys]


@once
def _perturbed(family, key):
    # Each array moves by a tenth of its own size, so that what is exactly zero stays a special case.
    place, family = family.place, family.placed(None)
    leaves, treedef = jax.tree.flatten(family)
    keys = jr.split(key, len(leaves))

    def move(leaf, k):
        if not eqx.is_inexact_array(leaf) or leaf.size == 0:
            return leaf
        return leaf + 0.1 * jnp.sqrt(jnp.mean(leaf**2)) * jr.normal(k, leaf.shape, leaf.dtype)

    return jax.tree.unflatten(treedef, [move(leaf, k) for leaf, k in zip(leaves, keys, strict=True)]).placed(place)


def choose_start(target, families, start, batch_size, key, going_on: bool) -> list[AbstractFamily]:
    """Each restart at a Gaussian of its own, the best first. A run that goes on finds its place in its file."""
    auto = isinstance(start, str) and start == "auto"
    if isinstance(start, str) and not auto:
        raise ValueError(f"start must be 'auto', None, a vgp.families.Place or values to begin at, got {start!r}.")
    if start is None or (auto and families[0].place is not None):
        return families
    if not families[0].placeable:
        if not auto:
            raise ValueError(
                "start= goes with values on the real line, and this fit has discrete or kept ones; leave it out."
            )
        return families
    if isinstance(start, Place):
        places = [start]
    elif going_on:
        places = [Place(jnp.zeros(target.dim), jnp.ones((target.dim,) * (2 if target.dim <= FULL else 1)))]
    else:
        total = target.num_data
        batch_key, key = jr.split(key)
        rows = ROWS if batch_size is not None and total is not None and total > ROWS else None
        target = target.for_step(batch_key, rows, jnp.zeros((), jnp.int32))
        found = find_start(target, key, None if auto else start)
        if not np.isfinite(found.elbos[0]):
            _check_start(target, found.places[0].loc, key)
        near = max(1, int(np.sum(found.elbos > found.elbos[0] - 10 - target.dim)))
        places = found.places[:near]
    return [family.placed(places[i % len(places)]).started() for i, family in enumerate(families)]


def choose_gradient(gradient, bound, family) -> AbstractGradient:
    """The estimator given, or the quietest that the bound and the family allow."""
    if isinstance(gradient, AbstractGradient):
        return gradient
    if gradient != "auto":
        raise TypeError(f"gradient must be 'auto' or one of vgp.gradients, got {gradient!r}.")
    if bound is not None and not isinstance(bound, (Importance, Collapsed)):
        return Pathwise()
    if isinstance(family, Flow):
        return Pathwise()
    outer, inner = getattr(bound, "outer", 1), getattr(bound, "inner", 16 if bound is None else 0)
    meanfield = getattr(family, "meanfield", Normal(family.dim))
    if not meanfield.reparameterised:
        if outer > 1:
            return VIMCO()
        binary = any(support is constraint.boolean for support, _ in meanfield.supports)
        return DisARM() if binary else ScoreFunction()
    if not meanfield.collapses:
        return Pathwise()  # q(f | ξ) is in both q and r, and cancels only where both are differentiated
    if outer > 1 or (inner > 0 and not isinstance(family, AbstractExact)):
        return DoublyReparameterised()
    return StickingTheLanding()


def _check_start(target, loc, key):
    # Every path failed: is there a point at all where the log density can be computed?
    points = jnp.concatenate([loc[None], RADIUS * jr.uniform(key, (63, target.dim), minval=-1, maxval=1)])
    log_p = np.asarray(target.log_probs(points))
    if not np.isfinite(log_p).any():
        raise ValueError(
            f"The log density is not finite at any of {len(log_p)} starting points, for example {log_p[0]} at "
            f"{shown(target, points[0])}; check it there, or the constraints, or pass start=."
        )


def shown(target, u) -> str:
    """A point as a sentence shows it: values by name, cut short."""
    values = jax.tree.map(lambda x: np.round(np.asarray(x), 3).tolist(), target.constrain(u))
    text = str(values)
    return text if len(text) < 200 else text[:200] + "…"
