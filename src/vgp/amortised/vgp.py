"""The amortised VGP: an inference network gives the local variational data (§3.4)."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..families.process import Local, Process
from ..families.vgp import SPREAD
from ..gp import ARD, AbstractKernel, Conditioner, EachConditioner, Linear
from ..meanfield import AbstractMeanField, Normal
from ..noise import initial_normal
from .auxiliary import Informed, Standard
from .base import AbstractEncoder, Given
from .linearised import linearised
from .networks import Dense, Joined, Trunk
from .scale import positive

JITTER = 1e-4  # relative: inputs in many dimensions are far apart, and a step must not wait for a search


class AmortisedVGP(AbstractEncoder):
    """q(z | x) = VGP with z = μ(x) + σ(x) ⊙ (GP warp of ξ + noise), μ, σ and the outputs t from a network of x.

    With outputs and amplitude of zero this is the mean-field of a VAE; it starts close to that.

    **Main arguments:** `sizes`, the number of inputs and of units in each layer of the network; `dim`; `num_data`, the
    number m of variational pairs; `latent_dim`, c, by default `dim`; `key`.

    **Other arguments:** `rank`, R: the whitened outputs are then U G(x) with a learned basis U of m by R, and the
    network gives R numbers per variable instead of m; `inputs`, "shared", one set learned for all data and one
    Cholesky factor per step, or "network", a set per datapoint as in the paper's text; `kernel`, by default ARD and a
    linear one, of small variance; `mean`, the mean function: "zero" (the paper's), "affine", B ξ with one B for all
    data, or "network", B(x) ξ; `noise`, the mean-field's scale at the start where there is a B; `scale`, "gp" where the
    process's mean also drives the mean-field's scale, or "learned"; `meanfield`, another one than `Normal`: where it is
    not located, as for discrete variables, the network's μ(x) is added to f and there is no σ(x); `auxiliary_width`, of
    the network of r, 0 for none;
    `project`, whether r sees the residual through the local outputs; `linearised`, how many steps r takes from its
    network's guess towards the posterior of ξ under the warp made linear; `sees`, what of x the network of r sees, the
    "features" of the network or the "meanfield" μ(x) and σ(x); `factorised`, the paper's r(f | x, ξ, z); `start`, the
    scale of the outputs at the start, relative to a layer's usual one; `reach`, that of the basis: the smaller it is,
    the slower the outputs move, which keeps the noise of early gradients out of them.
    """

    dim: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    trunk: Trunk
    loc: Dense
    log_scale: Dense | None  # for a mean-field that is located
    outputs: Dense
    basis: Float[Array, "m r"] | None
    linear: Float[Array, "p c"] | None
    tilted: Dense | None  # what the network adds to the linear part, where it does
    inputs: Float[Array, "m c"]
    moved: Dense | None  # what the network adds to the inputs, where it does
    kernel: AbstractKernel
    meanfield: AbstractMeanField
    auxiliary: Informed | Standard
    linearised: int = eqx.field(static=True)
    sees: str = eqx.field(static=True)
    conditioner: Conditioner | None  # once prepared,
    heads: Joined | None  # as are these: all that reads the trunk's features

    def __init__(
        self,
        sizes: tuple[int, ...],
        dim: int,
        num_data: int = 100,
        latent_dim: int | None = None,
        *,
        rank: int | None = None,
        inputs: Literal["shared", "network"] = "shared",
        kernel: AbstractKernel | None = None,
        scale: Literal["gp", "learned"] = "gp",
        auxiliary_width: int = 200,
        factorised: bool = False,
        linearised: int = 0,
        start: float = 0.0,
        reach: float = 1.0,
        project: bool = True,
        mean: Literal["zero", "affine", "network"] = "zero",
        noise: float = 0.5,
        sees: Literal["features", "meanfield"] = "features",
        meanfield: AbstractMeanField | None = None,
        key: PRNGKeyArray,
    ):
        c, m = dim if latent_dim is None else latent_dim, num_data
        if rank is not None and not 1 <= rank <= m:
            raise ValueError(f"rank must be between 1 and num_data = {m}, got {rank}; None is the general case.")
        if inputs not in ("shared", "network"):
            raise ValueError(f"inputs must be 'shared' or 'network', got {inputs!r}.")
        if sees not in ("features", "meanfield"):
            raise ValueError(f"The auxiliary model sees the 'features' or the 'meanfield', got {sees!r}.")
        if mean not in ("zero", "affine", "network"):
            raise ValueError(f"The mean function is 'zero', 'affine' or 'network', got {mean!r}.")
        keys = jr.split(key, 8)
        self.dim, self.latent_dim, self.linearised = dim, c, linearised
        self.trunk = Trunk(sizes, key=keys[0])
        width = self.trunk.width
        self.meanfield = (
            Normal(dim, scale, initial=1.0 if mean == "zero" else noise) if meanfield is None else meanfield
        )
        drawn, driven = self.meanfield.outputs(dim)
        p, seen = drawn + driven, self.meanfield.features(dim)
        self.loc = Dense(width, drawn, key=keys[1])
        self.log_scale = Dense(width, dim, zero=True, key=keys[2]) if self.meanfield.located else None
        if not self.meanfield.located and (mean != "zero" or sees == "meanfield" or seen != drawn):
            raise ValueError(
                f"An inference network for a {type(self.meanfield).__name__} mean-field has mean='zero', "
                "sees='features' and an output for each number that r sees."
            )
        if linearised and not self.meanfield.linearises:
            raise ValueError(
                "linearised= goes with a Normal mean-field or a Bernoulli one of probits, got "
                f"{type(self.meanfield).__name__}; leave it out."
            )
        outputs = Dense(width, (rank or m) * p, blocks=0, key=keys[3])
        self.outputs = eqx.tree_at(lambda layer: layer.weight, outputs, start * outputs.weight)
        self.basis = None if rank is None else reach * initial_normal(keys[4], (m, rank)) / rank**0.5
        self.inputs = SPREAD * initial_normal(keys[5], (m, c))
        self.moved = Dense(width, m * c, zero=True, blocks=0, key=keys[6]) if inputs == "network" else None
        each = np.full(c, 1.0 / c)
        self.kernel = ARD(0.05, each) + Linear(0.05, each) if kernel is None else kernel
        self.tilted = Dense(width, dim * c, zero=True, blocks=0, key=key) if mean == "network" else None
        projected = ((rank or m) + (c if mean == "network" else 0)) if project else 0
        self.sees = sees
        known = width if sees == "features" else 2 * dim
        if auxiliary_width == 0 and (mean != "zero" or factorised):
            raise ValueError(
                "auxiliary_width=0, r without a network, goes with mean='zero' and factorised=False, got "
                f"mean={mean!r} and factorised={factorised}; pass a width such as 200."
            )
        self.auxiliary = (
            Informed(known, seen, c, auxiliary_width, rank=projected, factorised=factorised, key=keys[7])
            if auxiliary_width
            else Standard(c)
        )
        self.conditioner = self.heads = self.linear = None
        if mean != "zero":
            # A latent input to each variable, as far as they go, and a variance of one in all.
            driven = np.arange(p) < min(dim, c)
            self.linear = jnp.asarray(np.eye(p, c) * np.where(driven, np.sqrt(1 - noise**2), 0.0)[:, None], float)
            left = jnp.asarray(np.where(driven[:dim], noise, 1.0), float)
            self.meanfield = eqx.tree_at(lambda q: q.log_scale, self.meanfield, jnp.log(left))
            total = jnp.sqrt(left**2 + self.kernel.variance)
            assert isinstance(self.auxiliary, Informed)
            self.auxiliary = self.auxiliary.started(self.linear[:dim], total)

    def _layers(self) -> list[Dense]:
        layers = (self.loc, self.log_scale, self.outputs, self.moved, self.tilted)
        return [layer for layer in layers if layer is not None]

    def _conditioner(self) -> Conditioner | None:
        return Conditioner(self.kernel, self.inputs, JITTER) if self.moved is None else None

    def prepared(self) -> "AmortisedVGP":
        """With the factor of the shared inputs, one per step however many x it is used at, and the heads as one."""
        if self.heads is not None:
            return self
        made = self._conditioner(), Joined(*self._layers())
        return eqx.tree_at(lambda q: (q.conditioner, q.heads), self, made, is_leaf=lambda leaf: leaf is None)

    def at(self, x, model=None):
        h, n = self.trunk(x), x.shape[0]
        given = [layer(h) for layer in self._layers()] if self.heads is None else self.heads(h)
        loc, *more = given
        scale = None if self.log_scale is None else positive(more.pop(0))
        outputs = more.pop(0).reshape(n, -1, sum(self.meanfield.outputs(self.dim)))
        if self.moved is None:
            conditioner = self._conditioner() if self.conditioner is None else self.conditioner
        else:
            conditioner = EachConditioner(self.kernel, self.inputs + more.pop(0).reshape(n, *self.inputs.shape), JITTER)
        seen, linear = [outputs[..., : loc.shape[-1]]], self.linear
        if self.tilted is not None and linear is not None:
            tilts = more.pop(0).reshape(n, self.dim, self.latent_dim)
            seen.append(tilts.swapaxes(1, 2))
            linear = linear + jnp.pad(tilts, ((0, 0), (0, len(linear) - self.dim), (0, 0)))
        known = h if self.sees == "features" or scale is None else jnp.concatenate([loc, jnp.log(scale)], axis=-1)
        auxiliary = self.auxiliary.at(known, jnp.concatenate(seen, axis=1) if self.auxiliary.projects else None)
        local = Local(outputs, linear, loc, scale, self.basis)
        process = Process(conditioner, local, self.meanfield, auxiliary)
        return Given(dim=self.dim, process=linearised(process, self.linearised))
