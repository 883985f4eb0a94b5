"""`AutoVGP`: the variational Gaussian process as one of NumPyro's automatic guides."""

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions.transforms import UnpackTransform
from numpyro.infer import RenyiELBO, init_to_uniform
from numpyro.infer.autoguide import AutoContinuous, AutoGuide

from ..families import VGP, AbstractFamily
from ..gradients import AbstractGradient, DoublyReparameterised, Pathwise
from ..meanfield import Normal
from .amortised import Local, Registered, drawn, inspected, local_plates, next_key, register, typed, unpacked


class AutoVGP(AutoContinuous):
    """A NumPyro guide whose posterior is a variational Gaussian process: `SVI(model, AutoVGP(model), ...)`.

    The model's continuous latents, unconstrained and joined into one vector, are drawn from a `VGP`; the loss
    that `Trace_ELBO` then computes is minus the bound of `vgp.bounds.Importance(inner=K)`. Latents inside a
    subsampled plate are local: each row has its own mean and scale, from an inference network that sees what
    the model observes of the row, and all rows share one further VGP (`Local`).

    **Main arguments:** `model`; `num_data`, the number of variational pairs; `latent_dim`, the width of the
    latent input, by default the number of latents; `inner`, the number K of importance samples for log q.

    **Other arguments:** `family`, a function of a dimension and a key that returns a family, instead of the
    default VGP; `gradient`, an estimator of `vgp.gradients`, where "auto" is `DoublyReparameterised`, and
    `Pathwise` under `RenyiELBO`: a loss of your own that weighs its particles needs `Pathwise()` too;
    `init_loc_fn` and `init_scale`, where the unconstrained latents start and how wide; `local_plate`, the
    plate whose latents are local, where it is not subsampled; `amortise=False`, for a table of means and
    scales with one row per index of the plate, instead of the network; `prefix` and `create_plates`, as in
    NumPyro's guides.
    """

    latent_dim: int = 0
    _family: Registered | None = None
    _local: Local | None = None
    _shared: tuple[str, ...] = ()

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        num_data: int = 64,
        latent_dim: int | None = None,
        inner: int = 16,
        family: Callable[[int, PRNGKeyArray], AbstractFamily] | None = None,
        gradient: AbstractGradient | Literal["auto"] = "auto",
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 1.0,
        local_plate: str | None = None,
        amortise: bool = True,
        create_plates: Callable[..., Any] | None = None,
    ):
        if isinstance(inner, bool) or not isinstance(inner, int) or inner < 0:
            raise ValueError(f"inner must be a whole number, 0 or more, got {inner!r}.")
        if not init_scale > 0:
            raise ValueError(f"init_scale must be positive, got {init_scale!r}.")
        if gradient != "auto" and not isinstance(gradient, AbstractGradient):
            raise TypeError(f"gradient must be 'auto' or one of vgp.gradients, got {gradient!r}.")
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn, create_plates=create_plates)
        self.inner, self.init_scale = inner, init_scale
        self.local_plate, self.amortise = local_plate, amortise
        self._gradient, self._make = gradient, family
        self._sizes = (num_data, latent_dim)

    # ------------------------------------------------------------ the model, looked at once

    def _setup_prototype(self, *args, **kwargs):
        trace = inspected(self.model, args, kwargs)
        for name, site in trace.items():
            if site["type"] == "sample" and not site["is_observed"] and site["fn"].support.is_discrete:
                raise ValueError(
                    f"AutoVGP needs continuous latents, and the site '{name}' is discrete; sum it out of the model, "
                    "hide it from the guide with numpyro.handlers.block, or fit vgp.from_numpyro(model)."
                )
        local = local_plates(trace, self.local_plate)
        # AutoContinuous's own set-up would refuse local latents.
        AutoGuide._setup_prototype(self, *args, **kwargs)
        everywhere = {name: value for name, value in self._init_locs.items() if name not in local}
        shapes = {name: jnp.shape(value) for name, value in everywhere.items()}
        self.latent_dim = sum(math.prod(shape) for shape in shapes.values())
        if not self.latent_dim and not local:
            raise ValueError("The model has no latent sites, so there is nothing to guide; use an empty guide.")
        self._shared = _shared_plates(trace)
        family_key, local_key = jr.split(next_key())
        if self.latent_dim:
            self._unpack_latent = UnpackTransform(unpacked(shapes))
            self._init_latent = jnp.concatenate([jnp.ravel(value) for value in everywhere.values()])
            self._family = Registered(self._new_family(self.latent_dim, family_key), self.prefix)
        if local:
            self._local = Local(self, trace, local, self._new_family, local_key)

    def _new_family(self, dim: int, key: PRNGKeyArray) -> AbstractFamily:
        if self._make is None:
            return VGP(dim, *self._sizes, meanfield=Normal(dim, "gp", 0.5), key=key)
        family = self._make(dim, key)
        if not isinstance(family, AbstractFamily) or family.dim != dim:
            raise TypeError(
                f"family(dim, key) must return one of vgp's families with dim={dim}, got {type(family).__name__}"
                + (f" with dim={family.dim}." if isinstance(family, AbstractFamily) else ".")
            )
        if not family.placeable:
            raise TypeError(
                "AutoVGP draws unconstrained values, and this family is not of the real line; use a Normal mean-field."
            )
        return family

    # ------------------------------------------------------------ the guide

    def __call__(self, *args, **kwargs) -> dict[str, Array]:
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        gradient = self._estimator()
        values, noise = {}, None
        if self._family is not None:
            latent, noise = self._everywhere(gradient, ())
            values = self._sites(self._unpack_latent(latent))
        if self._local is not None:
            values |= self._local(self, noise, gradient, args, kwargs)
        return values

    def _estimator(self) -> AbstractGradient:
        renyi = _called_by(RenyiELBO)
        if renyi and self._shared and self._family is not None:
            raise ValueError(
                f"RenyiELBO would count the guide's joint density once for every row of the plate '{self._shared[0]}', "
                "which all of the model's sites share; use Trace_ELBO, or take one site out of the plate."
            )
        if not isinstance(self._gradient, AbstractGradient):
            return Pathwise() if renyi else DoublyReparameterised()
        if renyi and self._gradient.freezes:
            raise ValueError(f"{type(self._gradient).__name__} is biased under RenyiELBO; use gradient=Pathwise().")
        return self._gradient

    def _everywhere(self, gradient, shape: tuple[int, ...]) -> tuple[Array, Array]:
        # The latents that are not local: as a site, and in units of the start.
        assert self._family is not None
        start = jax.lax.stop_gradient(register(f"{self.prefix}_start", self._init_latent))
        e, log_q = drawn(self._family(), next_key(), math.prod(shape), self.inner, gradient)
        e, log_q = e.reshape(*shape, -1), log_q.reshape(shape)
        # log r is part of the Delta's density: a numpyro.factor would have no gradient under TraceGraph_ELBO.
        density = log_q - self.latent_dim * math.log(self.init_scale)
        site = dist.Delta(start + self.init_scale * e, log_density=density, event_dim=1)
        latent: Any = numpyro.sample(f"_{self.prefix}_latent", site, infer={"is_auxiliary": True})
        return latent, e

    def _sample_latent(self, *args, sample_shape=(), **kwargs) -> Any:
        return self._everywhere(self._estimator(), sample_shape)[0]

    def _sites(self, unconstrained: dict[str, Array]) -> dict[str, Array]:
        """The model's sites at these unconstrained values, with the Jacobians of their supports."""
        values, prototype = {}, self.prototype_trace or {}
        for name, u in unconstrained.items():
            fn = prototype[name]["fn"]
            transform: Any = dist.biject_to(fn.support)
            value = transform(u)
            batch = jnp.ndim(value) - fn.event_dim
            density: Any = 0.0
            if numpyro.get_mask() is not False:
                jacobian = transform.log_abs_det_jacobian(u, value)
                density = -jnp.sum(jacobian, axis=tuple(range(batch, jnp.ndim(jacobian))))
            values[name] = numpyro.sample(name, dist.Delta(value, log_density=density, event_dim=fn.event_dim))
        return values

    # ------------------------------------------------------------ the posterior

    def sample_posterior(self, rng_key, params, *args, sample_shape: tuple[int, ...] = (), **kwargs):
        """Draws of the latent sites, and of the deterministic ones where no latent is local.

        Local latents need the model's arguments, and are drawn for one subsample of rows. To choose the rows,
        `with numpyro.handlers.substitute(data={"plate": rows}): guide.sample_posterior(...)`.
        """
        self._check_ready()
        if self._local is None:
            return self._unpack_and_constrain(self._draws(rng_key, params, sample_shape), params)
        plate_key, key = jr.split(typed(rng_key))
        outer = ["sample", "prng_key", "control_flow"]  # one subsample for all draws

        def one(key):
            seeded = handlers.seed(handlers.mask(self, mask=False), key, hide_types=["plate"])
            return handlers.substitute(handlers.seed(seeded, plate_key, hide_types=outer), params)(*args, **kwargs)

        with warnings.catch_warnings():  # the rows chosen need not be as many as in training
            warnings.filterwarnings("ignore", "subsample_size does not match")
            draws = jax.vmap(one)(jr.split(key, math.prod(sample_shape)))
        return jax.tree.map(lambda x: x.reshape(sample_shape + x.shape[1:]), draws)

    def median(self, params, *, draws: int = 4096, key: PRNGKeyArray | None = None):
        """The median of each site, from draws: in unconstrained space, so that it lies in the support."""
        return jax.tree.map(lambda x: x[0], self.quantiles(params, [0.5], draws=draws, key=key))

    def quantiles(self, params, quantiles, *, draws: int = 4096, key: PRNGKeyArray | None = None):
        """Quantiles of each site, on a leading axis; as `median`, from draws with a fixed key unless one is given."""
        self._check_ready()
        if self._local is not None:
            raise ValueError("Local latents depend on the data; take quantiles of guide.sample_posterior(...) instead.")
        latent = self._draws(jr.key(0) if key is None else key, params, (draws,))
        return self._unpack_and_constrain(jnp.quantile(latent, jnp.asarray(quantiles, float), axis=0), params)

    def _draws(self, key, params, shape) -> Float[Array, "..."]:
        seeded = handlers.seed(handlers.mask(self._sample_latent, mask=False), typed(key))
        draws: Any = handlers.substitute(seeded, params)(sample_shape=shape)
        return draws

    def _check_ready(self):
        if self.prototype_trace is None:
            raise ValueError("The guide has not seen its model yet; call svi.init, or the guide itself, first.")

    def _get_posterior(self):
        raise NotImplementedError("A VGP's density is an integral, so it is no NumPyro distribution; draw from it.")

    def get_base_dist(self):
        self.get_transform({})

    def get_transform(self, params):
        raise NotImplementedError(
            "A VGP is no transform of a base distribution: z has noise of its own beside the latent input; "
            "use guide.sample_posterior."
        )


def _shared_plates(trace) -> tuple[str, ...]:
    # The plates around every sample site: RenyiELBO takes them for independent problems.
    stacks = [
        {frame.name for frame in site["cond_indep_stack"] if frame.size > 1}
        for site in trace.values()
        if site["type"] == "sample"
    ]
    return tuple(sorted(set.intersection(*stacks)))


def _called_by(kind: type) -> bool:
    # A guide is not told its loss. But it runs inside one of the loss's methods, also while it is being compiled,
    # so the call stack knows.
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), kind):
            return True
        frame = frame.f_back
    return False
