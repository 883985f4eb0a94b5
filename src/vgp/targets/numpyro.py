"""A target from a NumPyro model: supports, plates, deterministic sites and subsampling come from the model."""

import functools
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Int
from numpyro import handlers
from numpyro.infer import init_to_uniform
from numpyro.infer.util import log_density
from numpyro.primitives import Messenger

from ..target import Target
from .layout import Layout

Trace = dict[str, dict[str, Any]]


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> "NumpyroTarget":
    """A target from a NumPyro model and the arguments it is called with.

    Its values are a dict by site name; drawn values include the deterministic sites. A plate with
    `subsample_size` is evaluated on all of its rows, and on a random batch in training if `vgp.fit` is given a
    `batch_size`; the scaling is the plate's own, and happens nowhere else. Local latent variables inside such a
    plate need `vgp.interop.numpyro.AutoVGP`.
    """
    if not callable(model):
        raise TypeError(f"from_numpyro needs a model, a function with numpyro.sample sites, got {_kind(model)}.")
    first = _prototype(model, args, kwargs, 0)
    latent = {name: site for name, site in first.items() if _is_latent(site)}
    if not latent:
        raise ValueError(
            "The model has no latent sample sites, so there is no posterior to approximate; its sites are "
            f"{sorted(first) or 'none'}."
        )
    for name, site in first.items():
        if site["type"] == "param":
            raise ValueError(
                f"The model has a parameter '{name}', which has no posterior; give it a prior, or make it a constant."
            )
    plate = _subsampled_plate(first)
    # Discrete draws are often the same twice, and hide what depends on them.
    again = 8 if any(site["fn"].support.is_discrete for site in latent.values()) else 1
    for seed in range(1, 1 + again):
        other = _prototype(model, args, kwargs, seed)
        for name, site in latent.items():
            _check_latent(name, site, other.get(name), plate)
    for name, site in first.items():
        if site["type"] == "sample" and site["is_observed"]:
            _check_observed(name, site)
    values = {name: site["value"] for name, site in latent.items()}
    supports = [latent[name]["fn"].support for name in sorted(latent)]  # the order in which a dict's leaves come
    layout = Layout.of(values, supports)
    size = None if plate is None else int(first[plate]["args"][0])
    made = NumpyroTarget(
        dim=layout.dim, model=model, plate=plate, size=size, layout=layout, positional=args, named=kwargs
    )
    made = made._with_traced_arguments()
    made._check_rows()
    return made


class NumpyroTarget(Target):
    """What `vgp.from_numpyro` returns."""

    dim: int = eqx.field(static=True)
    model: Callable[..., Any] = eqx.field(static=True)
    plate: str | None = eqx.field(static=True)  # the subsampled one
    size: int | None = eqx.field(static=True)  # its rows
    layout: Layout
    positional: tuple[Any, ...]
    named: dict[str, Any]
    rows: Int[Array, " b"] | None = None  # of the plate, in a batch
    prior: dist.Distribution | None = None

    @property
    def num_data(self):
        return self.size

    def minibatch(self, key, size):
        if self.size is None:
            raise TypeError("This model has no subsampled plate, and so no data to take batches from.")
        rows = jr.choice(key, self.size, (size,), replace=False)
        return eqx.tree_at(lambda t: t.rows, self, rows, is_leaf=lambda x: x is None)

    def _run(self) -> Callable[[], Any]:
        # The model with its arguments, its subsampled plate given its rows. Nothing is drawn, so the seed is idle.
        model = functools.partial(self.model, *self.positional, **self.named)
        if self.plate is not None:
            rows = jnp.arange(self.size) if self.rows is None else self.rows
            model = _Rows(model, self.plate, rows)
        return handlers.seed(model, rng_seed=0)

    def log_likelihood(self, u):
        with _alone():
            value, _ = log_density(self._run(), (), {}, self.layout.constrain(u))
        return jnp.asarray(value, u.dtype) + self.layout.log_jacobian(u)

    def constrain(self, u):
        values = self.layout.constrain(u)
        trace = _traced(handlers.substitute(self._run(), data=values))
        return values | {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}

    def unconstrain(self, z):
        missing = [name for name in self.layout.names if name not in z]
        if missing:
            raise ValueError(f"Values of all latent sites are needed, and {missing} are missing.")
        return self.layout.unconstrain({name: z[name] for name in self.layout.names})

    def log_jacobian(self, u):
        return self.layout.log_jacobian(u)

    def coordinates(self):
        return self.layout.coordinates()

    def supports(self):
        return self.layout.supports()

    def kept(self, *names: str) -> "NumpyroTarget":
        """The target with these sites in u as they are, for a mean-field with their support."""
        return eqx.tree_at(lambda t: t.layout, self, self.layout.kept(*names))

    def observed(self):
        centre = self.layout.constrain(jnp.zeros(self.dim))  # improper priors have no draws of their own
        trace = _traced(handlers.substitute(self._run(), data=centre))
        sites = {name: site for name, site in trace.items() if site["type"] == "sample" and site["is_observed"]}
        return {name: site["value"] for name, site in sites.items() if not _is_factor(site)}

    def predict(self, key, values):
        names = set(self.observed())
        latent = {name: values[name] for name in self.layout.names}
        count = len(jax.tree.leaves(latent)[0])

        def one(key, values):
            trace = _traced(handlers.seed(handlers.substitute(self._run(), data=values), key))
            keys = jr.split(key, len(trace))
            sites = zip(trace.items(), keys, strict=True)
            return {name: _new(site, k) for (name, site), k in sites if name in names}

        return jax.jit(jax.vmap(one))(jr.split(key, count), latent)

    def _with_traced_arguments(self) -> "NumpyroTarget":
        # Data in the arguments becomes an input of the compiled code. A model that needs its values while it is
        # traced, for a shape or a branch, keeps them as constants.
        def traced(leaf):
            is_data = isinstance(leaf, np.ndarray) and leaf.ndim > 0 and leaf.dtype.kind in "bifuc"
            return jnp.asarray(leaf) if is_data else leaf

        args, kwargs = jax.tree.map(traced, (self.positional, self.named))
        made = eqx.tree_at(lambda t: (t.positional, t.named), self, (args, kwargs))
        try:
            eqx.filter_eval_shape(lambda t, u: (t.log_likelihood(u), t.constrain(u)), made, jnp.zeros(self.dim))
            return made
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, IndexError, TypeError):
            bound = functools.partial(self.model, *self.positional, **self.named)
            return NumpyroTarget(
                dim=self.dim,
                model=bound,
                plate=self.plate,
                size=self.size,
                layout=self.layout,
                positional=(),
                named={},
            )

    def _check_rows(self):
        # A row of an observed site whose log density is NaN wherever it is asked for has a NaN in its data.
        @jax.jit
        def at(u):
            trace = _traced(handlers.substitute(self._run(), data=self.layout.constrain(u)))
            sites = {name: site for name, site in trace.items() if site["type"] == "sample" and site["is_observed"]}
            with _alone():
                return {name: site["fn"].log_prob(site["value"]) for name, site in sites.items()}

        observed = self.observed()

        points = [at(np.full(self.dim, value, jnp.zeros(()).dtype)) for value in (0.0, 0.5, -0.5)]
        for name in points[0]:
            bad = np.all([np.isnan(point[name]) for point in points], axis=0)
            if bad.any():
                row = np.argwhere(bad)[0][:1]
                where = f" at row {int(row[0])}" if bad.ndim else ""
                value = np.asarray(observed.get(name, 0.0))
                if np.isnan(value[tuple(row)] if value.ndim else value).any():
                    raise ValueError(
                        f"The observed site '{name}' is NaN{where}; drop the row, mask it, or give it a latent site."
                    )
                raise ValueError(
                    f"The log density of the observed site '{name}' is NaN{where}; look for a NaN in what the "
                    "site depends on there, and drop the row or model it as missing."
                )


def _new(site, key) -> Array:
    # As many as were observed: without a plate one distribution may have served a whole array.
    shape = np.shape(site["value"])
    return site["fn"].sample(key, shape[: len(shape) - len(site["fn"].shape())])


def _traced(model: Callable[[], Any]) -> Trace:
    with _alone():
        return handlers.trace(model).get_trace()


@contextmanager
def _alone():
    # The target may itself be used inside of another model; and where its values are invalid, its density says so.
    with handlers.block(), numpyro.validation_enabled(False):
        yield


class _Rows(Messenger):
    """Gives the named plate these rows, and lets it scale by its size over their number."""

    def __init__(self, fn, plate: str, rows: Int[Array, " b"]):
        super().__init__(fn)
        self.plate, self.rows = plate, rows

    def process_message(self, msg):
        if msg["type"] == "plate" and msg["name"] == self.plate:
            msg["args"] = (msg["args"][0], self.rows.shape[0])
            msg["value"] = self.rows


def _prototype(model, args, kwargs, seed: int) -> Trace:
    # Sites with their values at a point in the middle of things; improper priors have no draws of their own.
    # What is not valid there is found afterwards, and then by name.
    seeded = handlers.substitute(handlers.seed(model, jr.key(seed)), substitute_fn=init_to_uniform)
    with warnings.catch_warnings(), numpyro.validation_enabled(False):
        warnings.simplefilter("ignore")
        try:
            return handlers.trace(seeded).get_trace(*args, **kwargs)
        except AssertionError as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if not isinstance(frame.f_locals.get("self"), numpyro.plate):
                raise
            name = frame.f_locals.get("name")
            raise ValueError(f"The plate '{name}' has no rows: the data is empty; pass at least one row.") from error


def _is_latent(site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_factor(site) -> bool:
    return isinstance(site["fn"], dist.Unit)


def _kind(value) -> str:
    return type(value).__name__


def _subsampled_plate(trace: Trace) -> str | None:
    plates = [name for name, site in trace.items() if site["type"] == "plate" and _is_partial(site)]
    if len(plates) > 1:
        raise ValueError(f"At most one plate may be subsampled, and {plates} are; drop subsample_size in the others.")
    return plates[0] if plates else None


def _is_partial(site) -> bool:
    size, subsample_size = site["args"][:2]
    return subsample_size is not None and subsample_size != size


def _check_latent(name: str, site, again, plate: str | None):
    if site["fn"].support.is_discrete and site["infer"].get("enumerate") == "parallel":
        raise ValueError(
            f"The site '{name}' is marked to be enumerated, which vgp does not do; sum it out of the model, for "
            "example with a numpyro mixture distribution, or drop the mark to have it fitted as a discrete variable."
        )
    if plate is not None and any(frame.name == plate for frame in site["cond_indep_stack"]):
        raise ValueError(
            f"The latent site '{name}' lies inside the subsampled plate '{plate}', so each row has its own; "
            + ("" if site["fn"].support.is_discrete else "use the guide vgp.interop.numpyro.AutoVGP, or ")
            + "drop subsample_size."
        )
    if again is None:
        raise ValueError(f"The site '{name}' is not in every run of the model; its sites may not depend on draws.")
    if again["value"].shape != site["value"].shape:
        raise ValueError(f"The shape of the site '{name}' changes from run to run; it may not depend on draws.")
    if not _same(site["fn"].support, again["fn"].support):
        raise ValueError(
            f"The support of the site '{name}' depends on another site; draw it from a fixed support and "
            "transform it, for example a uniform fraction times the bound."
        )


def _same(first, second) -> bool:
    leaves, others = jax.tree.leaves(first), jax.tree.leaves(second)
    if type(first) is not type(second) or len(leaves) != len(others):
        return False
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(leaves, others, strict=True))


def _check_observed(name: str, site):
    value = site["value"]
    if _is_factor(site) or not hasattr(value, "dtype"):
        return
    if np.size(value) == 0:
        raise ValueError(f"The observed site '{name}' is empty (shape {np.shape(value)}); pass at least one row.")
