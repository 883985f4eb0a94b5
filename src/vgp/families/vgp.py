"""The variational Gaussian process (eq. `vgp`)."""

from typing import ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..auxiliary import AbstractAuxiliary, Residual
from ..compiling import once
from ..gp import ARD, AbstractKernel, Grid, conditioned, told
from ..meanfield import AbstractMeanField, Normal
from ..meanfield.base import outputs_of
from ..noise import initial_normal, sample
from .base import AbstractHierarchical, AbstractView
from .place import Place
from .process import Collapsed, Extended, Local, Process

POINTS = 3.0  # the lengthscale that a kernel starts with on a grid, in points
FREE = 64  # variational data whose outputs are learned as they are
SPREAD = 2.0  # the variational inputs start wider than ξ ~ N(0, I), so that the warp is anchored in its tails


class VGP(AbstractHierarchical):
    """The variational Gaussian process, a variational family over `dim` real variables.

    A draw takes three steps:

    1. a latent input ξ ~ N(0, I) in `latent_dim` dimensions;
    2. f(ξ) from a Gaussian process conditioned on the variational data D = {(s, t)},
       f = m(ξ) + A(ξ) t + √v(ξ) ε with fresh noise ε;
    3. w ~ q(w | f(ξ)), the mean-field, and z = loc + scale w (the whitening).

    **Main arguments:** `dim`; `num_data`, the number m of variational pairs (0 is the Gaussian process
    prior); `latent_dim`, by default `dim`; `key`.

    **Other arguments:** `inputs` and `outputs`, starting values of s and t, by default spread normal draws
    and zero; inputs may be a `vgp.Grid`, which is not learned and may have a million points; `kernel`, by default
    `ARD` with a small variance and weights 1/c, or on a grid a lengthscale of a few points; `mean`, "affine"
    (m(ξ) = B ξ) or "zero" (the paper); `meanfield`, by default
    `Normal` with a learned scale; `auxiliary`, by default `Residual`; `loc` and `scale`, the whitening:
    `scale` has one number per variable or is a lower triangular matrix. Neither is learned; where both are left
    out, `vgp.fit` finds them.

    The outputs t are learned as u with t = L u, L the Cholesky factor of the inputs' kernel matrix: equally
    sized steps in u are equally smooth changes of the warp, whatever the inputs' spacing.
    """

    dim: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    kernel: AbstractKernel
    inputs: Float[Array, "m c"] | Grid
    whitened: Float[Array, "m p"]
    linear: Float[Array, "p c"] | None
    meanfield: AbstractMeanField
    auxiliary: AbstractAuxiliary
    offset: Float[Array, " d"]
    place: Place | None
    correlates: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        num_data: int = 64,
        latent_dim: int | None = None,
        *,
        inputs: Float[Array, "m c"] | Grid | None = None,
        outputs: Float[Array, "m p"] | None = None,
        kernel: AbstractKernel | None = None,
        mean: Literal["affine", "zero"] = "affine",
        meanfield: AbstractMeanField | None = None,
        auxiliary: AbstractAuxiliary | None = None,
        loc: Float[Array, " d"] | None = None,
        scale: Float[Array, " d"] | Float[Array, "d d"] | None = None,
        key: PRNGKeyArray,
    ):
        if isinstance(inputs, Grid):
            num_data = inputs.size
            latent_dim = inputs.latent_dim if latent_dim is None else latent_dim
        c = dim if latent_dim is None else latent_dim
        for name, value, least in (("dim", dim, 1), ("num_data", num_data, 0), ("latent_dim", c, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}.")
        if mean not in ("affine", "zero"):
            raise ValueError(f"The mean function is 'affine' or 'zero', got {mean!r}.")
        inputs_key, auxiliary_key = jr.split(key)
        self.dim, self.latent_dim = dim, c
        self.inputs = _inputs(inputs, num_data, c, inputs_key)
        self.kernel = _kernel(self.inputs, c) if kernel is None else kernel
        self.meanfield = Normal(dim, initial=0.5) if meanfield is None else meanfield
        drawn, driven = outputs_of(self.meanfield, dim)
        p = drawn + driven
        m = self.num_data
        if outputs is None:
            self.whitened = jnp.asarray(np.zeros((m, p)), float)
        elif jnp.shape(outputs) == (m, p):
            self.whitened = conditioned(self.kernel, self.inputs).whiten(jnp.asarray(outputs, float)) / self._pace
        else:
            raise ValueError(f"The outputs must be ({m}, {p}), one row per input, got {jnp.shape(outputs)}.")
        rising = np.eye(p, c) * (np.arange(p) < drawn)[:, None]  # z rises with ξ; a driven scale starts flat
        self.linear = jnp.asarray(rising, float) if mean == "affine" else None
        self.offset = jnp.asarray(np.zeros(drawn), float)
        self.place = None
        if loc is not None or scale is not None:
            if not self.meanfield.located:
                raise ValueError(
                    f"loc and scale are for values on the real line, and a {type(self.meanfield).__name__} mean-field "
                    "is of z as it is; leave them out."
                )
            where, factor = np.zeros(dim) if loc is None else loc, np.ones(dim) if scale is None else scale
            self.place = Place(jnp.asarray(where, float), jnp.asarray(factor, float))
        if auxiliary is None:
            auxiliary = Residual(self.meanfield.features(dim), c, key=auxiliary_key)
            if self.linear is not None and isinstance(self.meanfield, Normal):
                noise = jnp.sqrt(self.meanfield.scale(None) ** 2 + self.kernel.variance)
                auxiliary = auxiliary.started(self.linear[:dim], noise)
        self.auxiliary = auxiliary

    def started(self) -> "VGP":
        """The same family with an affine mean function and an auxiliary model that make it nearly standard
        Gaussian, in whitened coordinates; a warp that has been given outputs of its own is left alone.
        """
        if self.linear is None or not isinstance(self.meanfield, Normal) or np.any(np.asarray(self.whitened)):
            return self
        return _standardised(self)

    def view(self, collapse: bool = True) -> "AbstractView":
        local = Local(self._pace * self.whitened, self.linear, self.offset)
        process = Process(conditioned(self.kernel, self.inputs), local, self.meanfield, self.auxiliary)
        return Collapsed(process) if collapse and self.meanfield.collapses else Extended(process)

    @property
    def placeable(self) -> bool:
        return self.meanfield.located

    @property
    def outputs(self) -> Float[Array, "m p"]:
        """The variational outputs t, in whitened units and as residuals from the mean function."""
        return conditioned(self.kernel, self.inputs).colour(self._pace * self.whitened)

    @property
    def _pace(self) -> float:
        # An optimiser such as Adam moves every number by as much, so that m of them move the warp √m times as far: on a
        # grid, where they are many, they are learned in smaller units.
        return min(1.0, (FREE / self.num_data) ** 0.5) if isinstance(self.inputs, Grid) else 1.0

    @property
    def num_data(self) -> int:
        """m."""
        return self.inputs.size if isinstance(self.inputs, Grid) else self.inputs.shape[0]

    @property
    def solver(self) -> str:
        """The algebra that conditions the process on its data: dense, or what a grid allows."""
        return told(eqx.filter_eval_shape(conditioned, self.kernel, self.inputs))

    @property
    def effective_dim(self) -> Float[Array, ""]:
        """How many latent dimensions the warp uses: (Σω)² / Σω² of the kernel's weights, between 1 and c."""
        weights = self.kernel.relevance(self.latent_dim)
        return jnp.sum(weights) ** 2 / jnp.maximum(jnp.sum(weights**2), jnp.finfo(weights.dtype).tiny)

    def _sample(self, key, n):
        view = self.view()
        latent_key, key = jr.split(key)
        return sample(view.conditional(view.sample_latent(latent_key, n)), key)


def _inputs(inputs, num_data: int, c: int, key: PRNGKeyArray):
    if isinstance(inputs, Grid):
        if inputs.latent_dim != c:
            raise ValueError(f"The Grid has {inputs.latent_dim} dimensions, got latent_dim = {c}; leave it out.")
        return inputs
    made = SPREAD * initial_normal(key, (num_data, c)) if inputs is None else jnp.asarray(inputs, float)
    if made.ndim != 2 or made.shape[1] != c:
        raise ValueError(f"The inputs must be (num_data, {c}), got {made.shape}; set latent_dim to their width.")
    return made


def _kernel(inputs, c: int) -> AbstractKernel:
    # Free inputs are few, so that the process has to reach far; on a grid, a few points, or it has no use for them.
    if not isinstance(inputs, Grid):
        return ARD(0.05, np.full(c, 1.0 / c))
    spacing = (np.subtract(inputs.high, inputs.low)) / (np.array(inputs.points) - 1)
    return ARD(0.05, 1 / np.minimum(POINTS * spacing, c**0.5) ** 2)


@once
def _standardised(family: VGP) -> VGP:
    d, c = family.dim, family.latent_dim
    driven = np.arange(d) < c  # coordinates that have a latent input of their own; the others are all noise
    least = family.kernel.variance
    assert isinstance(family.meanfield, Normal) and family.linear is not None
    noise = jnp.minimum(family.meanfield.scale(None) ** 2 + least, 0.9)
    noise = jnp.where(driven, noise, 1.0)
    each = np.arange(min(d, c))
    rising = jnp.zeros_like(family.linear).at[each, each].set(jnp.sqrt(1 - noise[each]))
    log_scale = 0.5 * jnp.log(jnp.maximum(noise - least, 0.1 * noise))
    made = eqx.tree_at(lambda f: (f.linear, f.meanfield.log_scale), family, (rising, log_scale))
    if isinstance(family.auxiliary, Residual):
        auxiliary = family.auxiliary.started(rising[:d], jnp.sqrt(noise))
        made = eqx.tree_at(lambda f: f.auxiliary, made, auxiliary)
    return made
