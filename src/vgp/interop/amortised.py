"""The parts of a guide: a family as NumPyro parameters, and a VGP over the rows of a plate."""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.infer import init_to_feasible

from ..auxiliary import Network
from ..bounds import draw, log_q_upper
from ..compiling import once
from ..families import AbstractExact, AbstractFamily
from ..families.base import frozen
from ..gradients import AbstractGradient
from ..meanfield.base import REACH

WIDTH = 32  # of the inference network


# ---------------------------------------------------------------- a family inside a guide


class Registered:
    """A family or any module whose arrays are NumPyro parameters: `auto_inputs`, `auto_kernel.log_variance`, ..."""

    def __init__(self, module: Any, prefix: str):
        self.prefix = prefix
        self.arrays, self.static = eqx.partition(module, eqx.is_inexact_array)

    def __call__(self) -> Any:
        """The module at the parameters' present values. Where a family is placed is no learned parameter."""

        def value(path, leaf):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if not leaf.size:
                return leaf
            found = register(f"{self.prefix}_{name}", leaf)
            return jax.lax.stop_gradient(found) if name.startswith("place.") else found

        return eqx.combine(jax.tree_util.tree_map_with_path(value, self.arrays), self.static)


def register(name: str, start: Any) -> Any:
    """The NumPyro parameter `name`."""
    return numpyro.param(name, start)


def drawn(
    family: AbstractFamily, key: PRNGKeyArray, n: int, inner: int, gradient: AbstractGradient
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """n draws of a family with log q of each: for a hierarchical family from above, as in `bounds.Importance`.

    Under `handlers.mask(mask=False)` nobody looks at log q, and it is left out.
    """
    # Outside of a compiled function, as in `svi.init`, each small operation would be compiled by itself.
    eager = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((family, key)))
    compiled = once(_drawn) if eager else eqx.filter_jit(_drawn)
    return compiled(family, key, n, inner, gradient, numpyro.get_mask() is False)


def _drawn(family, key, n, inner, gradient, masked):
    if isinstance(family, AbstractExact):
        z, log_q, score = family.draw(key, n)
        if score is not None:
            raise TypeError(f"{type(family).__name__} is not reparameterised, so it cannot be a guide; use VGP.")
        return z, frozen(family).log_prob(z) if gradient.freezes else log_q
    view: Any = family.view()  # type: ignore[attr-defined]
    z, y, _, key = draw(view, key, n)
    log_q = jnp.zeros(n) if masked else log_q_upper(view, z, y, key, inner, gradient)
    place = getattr(family, "place", None)  # a view is in whitened coordinates
    return (z, log_q) if place is None else (place(z), log_q - place.log_volume)


def typed(key: Any) -> PRNGKeyArray:
    """A typed key, also of NumPyro's old-style ones."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jr.wrap_key_data(key)


def next_key() -> PRNGKeyArray:
    """A key from the `seed` handler."""
    key: Any = numpyro.prng_key()
    if key is None:
        raise ValueError("The guide needs a random key; wrap it in numpyro.handlers.seed(guide, key).")
    return typed(key)


def inspected(model: Callable[..., Any], args, kwargs, rows: dict[str, Any] | None = None) -> dict[str, Any]:
    """The sites of one run of the model at a feasible point, hidden from the handlers around."""
    run = handlers.substitute(handlers.seed(model, next_key()), substitute_fn=init_to_feasible)
    with handlers.block():
        return handlers.trace(handlers.substitute(run, data=rows or {})).get_trace(*args, **kwargs)


def unpacked(shapes: dict[str, tuple[int, ...]]) -> Callable[[Any], dict[str, Array]]:
    """A function from a vector to values of these shapes. A partial of a plain one, since those can be pickled."""
    return functools.partial(_unpack, shapes)


def _unpack(shapes, vector):
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = jnp.split(vector, ends[:-1])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


# ---------------------------------------------------------------- latents of the rows of a plate


def local_plates(trace: dict[str, Any], chosen: str | None) -> dict[str, Any]:
    """The frame of the plate that makes a latent local, by site: a subsampled plate, or the one chosen."""
    if chosen is not None and trace.get(chosen, {}).get("type") != "plate":
        raise ValueError(f"local_plate is {chosen!r}, and the model has no plate of that name.")
    found = {}
    for name, site in trace.items():
        if site["type"] == "sample" and not site["is_observed"]:
            for frame in site["cond_indep_stack"]:
                if frame.name == chosen or frame.size < trace[frame.name]["args"][0]:
                    found.setdefault(name, []).append(frame)
    names = sorted({frame.name for frames in found.values() for frame in frames})
    if len(names) > 1:
        raise ValueError(f"Local latents must all be in one subsampled plate, got {', '.join(names)}.")
    return {name: frames[0] for name, frames in found.items()}


class Head(eqx.Module):
    """Centre and log scale of each row from what is known of it: a line and a network, both zero at first."""

    slope: Float[Array, "f o"]
    network: Network

    def __init__(self, known: int, dim: int, *, key: PRNGKeyArray):
        self.slope = jnp.zeros((known, 2 * dim))
        self.network = Network((known, WIDTH, 2 * dim), key=key)

    def __call__(self, known: Float[Array, "n f"]) -> Float[Array, "n o"]:
        return known @ self.slope + self.network(known)


class Local:
    """The latents in the rows of one plate: z_i = a_i + b_i e_i, with e_i from a VGP that all rows share.

    a_i and log b_i come from an inference network of what the model observes of row i and of the draw of the
    latents outside of the plate, so that the guide is q(global) Π_i q(z_i | global, x_i). If nothing is
    observed in the plate, or without `amortise`, a table with one entry per row takes the place of x_i.
    """

    def __init__(self, guide, trace: dict[str, Any], frames: dict[str, Any], new_family, key: PRNGKeyArray):
        self.plate = next(iter(frames.values()))
        self.axes, self.shapes, starts = {}, {}, []
        for name, frame in frames.items():
            # A support may have fewer dimensions unconstrained: a correlation matrix becomes a vector.
            domain: Any = dist.biject_to(trace[name]["fn"].support).domain
            self.axes[name] = frame.dim - domain.event_dim
            rows = jnp.moveaxis(jnp.asarray(guide._init_locs[name]), self.axes[name], 0)
            self.shapes[name] = rows.shape[1:]
            starts.append(rows.reshape(rows.shape[0], -1).mean(0))
        centre = jnp.concatenate(starts)
        self.dim = centre.size
        self.prefix = f"{guide.prefix}_local"
        family_key, head_key = jr.split(key)
        self.family = Registered(new_family(self.dim, family_key), self.prefix)
        observed = self._observed(trace) if guide.amortise else None
        self.amortised = observed is not None
        self.standard = None if observed is None else _standard(observed)
        known = guide.latent_dim + (0 if observed is None else observed.shape[1])
        self.head = Registered(Head(known, self.dim, key=head_key), f"{self.prefix}_head") if known else None
        start = jnp.concatenate([centre, jnp.full(self.dim, math.log(guide.init_scale))])
        total = trace[self.plate.name]["args"][0]
        self.start = start if self.amortised else jnp.tile(start, (total, 1))

    def __call__(self, guide, noise: Array | None, gradient: AbstractGradient, args, kwargs) -> dict[str, Array]:
        """Draws the rows of the guide's present subsample, as sites of the model."""
        plate = guide._create_plates(*args, **kwargs)[self.plate.name]
        with plate as rows:
            n = rows.shape[0]
        base = register(f"{self.prefix}_start" if self.amortised else f"{self.prefix}_table", self.start)
        place = jnp.broadcast_to(base, (n, 2 * self.dim)) if self.amortised else base[rows]
        known = [] if noise is None else [jnp.broadcast_to(noise, (n, noise.size))]
        if self.standard is not None:
            observed = self._observed(inspected(guide.model, args, kwargs, {self.plate.name: rows}))
            if observed is None:
                raise ValueError(
                    f"The inference network needs what is observed in the plate '{self.plate.name}', and this call "
                    "observes nothing there; pass the data, or use AutoVGP(model, amortise=False)."
                )
            shift, spread = jax.lax.stop_gradient(register(f"{self.prefix}_standard", self.standard))
            known.append((observed - shift) / spread)
        if self.head is not None:
            place = place + self.head()(jnp.concatenate(known, axis=1))
        centre, log_scale = jnp.split(place, 2, axis=1)
        log_scale = REACH * jnp.tanh(log_scale / REACH)  # no scale can run away
        e, log_q = drawn(self.family(), next_key(), n, guide.inner, gradient)
        z, density = centre + jnp.exp(log_scale) * e, log_q - log_scale.sum(1)
        beside = (1,) * (-self.plate.dim - 1)  # the plate need not be the last dimension
        site = dist.Delta(z.reshape(n, *beside, -1), log_density=density.reshape(n, *beside), event_dim=1)
        with plate:
            flat: Any = numpyro.sample(f"_{self.prefix}", site, infer={"is_auxiliary": True})
            values = jax.vmap(unpacked(self.shapes))(flat.reshape(n, -1))
            return guide._sites({name: jnp.moveaxis(u, 0, self.axes[name]) for name, u in values.items()})

    def _observed(self, trace: dict[str, Any]) -> Float[Array, "n f"] | None:
        # What the model observes in each row of the plate, side by side. A missing value shows as zero.
        found = []
        for site in trace.values():
            if site["type"] != "sample" or not site["is_observed"] or isinstance(site["fn"], dist.Unit):
                continue
            for frame in site["cond_indep_stack"]:
                if frame.name == self.plate.name:
                    value = jnp.broadcast_to(site["value"], site["fn"].shape()).astype(float)
                    value = jnp.moveaxis(value, frame.dim - site["fn"].event_dim, 0)
                    found.append(jnp.nan_to_num(value.reshape(value.shape[0], -1)))
        return jnp.concatenate(found, axis=1) if found else None


def _standard(observed: Float[Array, "n f"]) -> Float[Array, "2 f"]:
    # Mean and spread of each number observed, in the rows seen first; a constant one keeps its size.
    spread = observed.std(0)
    return jnp.stack([observed.mean(0), jnp.where(spread > 0, spread, 1.0)])
