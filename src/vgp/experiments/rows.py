"""The rows of the tables: each a model, an encoder, a bound and a schedule, by name.

The networks of the default configuration are those of the published rows: two layers of 200 tanh units between the
pixels and the first 50 latents, and for two layers of latents (100, then 50) two of 100 units between them. The
configuration "literal" is the paper's text: one layer of 100 units under every layer of latents, of 100 and 50. DRAW's
are as published: 100 latents a glimpse, 64 glimpses, 256 units in encoder and decoder, windows of 2 × 2 and 5 × 5.
Sigmoid belief networks have layers of 200 binary units, with nothing between them and the pixels ("linear") or two
layers of 200 units ("tanh"), and encoders of two layers of 200.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import bounds, gradients, loop
from ..amortised import AbstractEncoder, AmortisedVGP, Chain
from ..amortised.draw import DrawEncoder
from ..gp import ARD
from ..meanfield import Bernoulli
from ..models import DLGM, DRAW, SBN, AbstractModel
from ..rivals.factorised import FactorisedEncoder
from ..rivals.hvi import HamiltonianEncoder
from ..rivals.hvm import HierarchicalEncoder
from ..rivals.planar import PlanarEncoder
from ..rivals.vae import GaussianEncoder

ARCHITECTURES = {
    ("deep", 1): ((50,), ((200, 200),)),
    ("deep", 2): ((100, 50), ((200, 200), (100, 100))),
    ("literal", 1): ((100,), ((100,),)),
    ("literal", 2): ((100, 50), ((100,), (100,))),
    ("draw", 1): ((100,), ((256,),)),
    ("linear", 1): ((200,), ((200, 200),)),
    ("linear", 2): ((200, 200), ((200, 200),)),
    ("tanh", 1): ((200,), ((200, 200),)),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: what is trained, by which bound, for how long. `inner` are K and the share of the run it begins at."""

    name: str
    family: str
    model: str = "dlgm"
    data: str = "digits"  # where nothing else is asked for
    layers: int = 1
    architecture: str = "deep"
    joint: bool = False  # one family over all layers; else from the bottom up
    above: tuple[tuple[str, Any], ...] = ()  # names and values of what is set otherwise for the layers above the first
    num_data: int = 100
    latent_dim: int | None = None  # by default as many as latents
    rank: int | None = None
    inputs: str = "shared"
    scale: str = "gp"
    mean: str = "zero"  # the paper's mean function; or "affine", or "network"
    noise: float = 0.5  # the mean-field's first scale, under an affine mean function
    project: bool = True  # does r see the residual through the local outputs?
    linearised: int = 0  # steps of r towards the posterior under the warp made linear
    start: float = 0.0  # of the network that gives the outputs, relative to its usual start
    reach: float = 1.0  # of the basis of the outputs, relative to its usual scale
    length: int = 0  # of a flow, or leapfrog steps
    auxiliary_width: int = 200
    bound: str = "importance"
    inner: tuple[tuple[float, int], ...] = ((0.0, 0),)
    outer: int = 1
    draws: int = 1  # of z for each image and step
    split: bool | None = None
    gradient: str = "Pathwise"
    sees: str = "features"  # what of x the network of r sees
    glimpses: int = 0
    reading: int = 2  # filters across and down of DRAW's windows
    writing: int = 5
    normalised: bool = False  # layer norm in the recurrent networks
    path: str = "none"  # of the windows over the image, from glimpse to glimpse; "ring" is learned, and begins as one
    unroll: int = 1  # glimpses that are compiled as one
    clip: float | None = None  # of the gradient's norm
    optimizer: str = "adam"
    rate: float = 1e-3
    decay: float = 0.0  # of the matrices that Muon moves, in units of the rate
    batch: int = 200
    epochs: int = 1000
    tail: float = loop.TAIL  # the share of the run in which the rate falls to zero
    warmup: int = 0  # epochs in which the weight of the divergence rises to one
    flip: float = 0.0  # the share of pixels that are turned over, anew in each step, in what the encoder sees
    dreams: float = 0.0  # the weight of as many images that the model draws itself, from which the encoder learns
    begun: str = ""  # the run whose parameters it began with, if any

    @property
    def latents(self) -> tuple[int, ...]:
        """The latent variables of each layer."""
        return ARCHITECTURES[self.architecture, self.layers][0]

    @property
    def hidden(self) -> tuple[tuple[int, ...], ...]:
        """The units of the networks of each layer."""
        return ARCHITECTURES[self.architecture, self.layers][1]

    def make_bound(self, inner: int) -> bounds.AbstractBound:
        """The training bound with K = `inner`."""
        if self.bound == "analytic":
            return bounds.Analytic()
        if self.bound != "importance":
            raise ValueError(f"bound must be 'importance' or 'analytic', got '{self.bound}'.")
        return bounds.Importance(inner=inner, outer=self.outer, split=self.split)

    def make_gradient(self) -> gradients.AbstractGradient:
        """The estimator of its gradient."""
        kind = getattr(gradients, self.gradient, None)
        if isinstance(kind, type) and issubclass(kind, gradients.AbstractGradient) and "Abstract" not in kind.__name__:
            return kind()
        raise ValueError(f"gradient must be the name of a class of vgp.gradients, got '{self.gradient}'.")

    def configuration(self) -> dict[str, Any]:
        """Everything that tells this row from another, for the records."""
        return {**dataclasses.asdict(self), "latents": self.latents, "hidden": self.hidden}


# Found by sweeps of 100 to 240 epochs on MNIST: K = 8 from the start is better than later, the sampled divergence than
# the split one, inputs per datapoint than shared ones, and most of all an r that knows the warp than one that does not.
# The same on small images: benchmarks/choices.py and benchmarks/ablation.py.
_vgp: dict[str, Any] = {
    "family": "vgp",
    "num_data": 64,
    "inputs": "network",
    "latent_dim": 32,
    "linearised": 1,
    "inner": ((0.0, 8),),
    "split": False,
    "gradient": "DoublyReparameterised",
}
_shared = {"inputs": "shared", "num_data": 100, "latent_dim": 16, "rank": 64, "linearised": 0}
# Many draws of z, each cheap; above the first layer each is a datapoint of its own, and they share their inputs.
_several = {"latent_dim": 16, "inner": ((0.0, 0),), "outer": 20}
_upper = {"above": (("inputs", "shared"), ("rank", 16))}
_hvm = {key: value for key, value in _vgp.items() if key not in ("family", "num_data", "inputs")}
_rows = [
    Row("dlgm1-vae", "vae"),
    Row("dlgm2-vae", "vae", layers=2),
    Row("dlgm1-iwae5", "vae", outer=5, gradient="DoublyReparameterised"),
    Row("dlgm1-iwae50", "vae", outer=50, gradient="DoublyReparameterised"),
    Row("dlgm2-iwae50", "vae", layers=2, outer=50, gradient="DoublyReparameterised"),
    Row("dlgm1-nf80", "planar", length=80),
    Row("dlgm1-hvi8", "hvi", length=8),
    Row("dlgm1-hvm", "hvm", **_hvm),
    Row("dlgm1-vgp", **_vgp),
    Row("dlgm2-vgp", layers=2, **_vgp),
    Row("dlgm1-vgp-shared", **{**_vgp, **_shared}),
    Row("dlgm1-vgp-rank", rank=16, **_vgp),
    Row("dlgm1-vgp-iw5", outer=5, **{**_vgp, "inner": ((0.0, 4),)}),
    Row("dlgm2-vgp-iw5", layers=2, outer=5, **{**_vgp, "inner": ((0.0, 4),)}),
    Row("dlgm2-vgp-joint", layers=2, joint=True, **_vgp),
    Row("dlgm1-vgp-iw20", **{**_vgp, **_several}),
    Row("dlgm2-vgp-iw20", layers=2, **{**_vgp, **_several, **_upper}),
    Row(
        "dlgm1-vgp-paper",
        "vgp-paper",
        num_data=500,
        inputs="network",
        scale="learned",
        bound="analytic",
        architecture="literal",
        optimizer="rmsprop",
        rate=1e-2,
        batch=100,
        epochs=20,
    ),
]
# In trials Muon needed half as many steps as Adam, or fewer. On sketches, with Muon from the start and a network in r,
# the warp was lost; an r that follows it has nothing to learn. A rank of 8 costs less than 16 and did no worse. At
# higher rates outputs that move fast fall behind with some seeds; at the rate of the sketches, which can be kept up for
# long, they are ahead (benchmarks/parting.py).
_muon = {"optimizer": "muon", "rate": 3e-3}
_draw_row: dict[str, Any] = {
    **{"model": "draw", "architecture": "draw", "glimpses": 64, "unroll": 8, "batch": 128, "clip": 5.0, "epochs": 300},
    **_muon,
}
_draw_vgp = {
    **_draw_row,
    **{"family": "vgp", "num_data": 100, "latent_dim": 16, "rank": 8, "reach": 0.2},
    **{"linearised": 1, "auxiliary_width": 0},
}
_paper = {"sees": "meanfield", "project": False, "rank": 16, "linearised": 0, "auxiliary_width": 200}
_sketch = {"data": "sketch", "rate": 1.2e-3, "path": "ring"}
_rows += [
    Row("draw", "vae", **_draw_row),
    Row("draw-vgp", **_draw_vgp),
    Row("draw-vgp-paper", **{**_draw_vgp, **_paper}),
    Row("draw-sketch", "vae", **{**_draw_row, **_sketch}),
    Row("draw-sketch-vgp", **{**_draw_vgp, **_sketch, "reach": 1.0}),
]
# What each flip changes is known of the models, and with an r that follows the warp without a network of all of the
# bound. With the noise of DisARM the warp finds nothing.
_sbn = {"model": "sbn", "gradient": "LocalExpectations", "joint": True, **_muon, "rate": 1.5e-3}
_sbn_vgp = {**_sbn, "num_data": 32, "latent_dim": 16, "rank": 16, "linearised": 1, "auxiliary_width": 0}
# Through tanh units the encoders overfit within tens of epochs, unless they learn on dreams as well.
for _name, _own, _warp in (
    ("sbn1-linear", {"architecture": "linear"}, {}),
    ("sbn1", {"architecture": "tanh", "dreams": 1.0}, {"reach": 0.2}),
    ("sbn2", {"architecture": "linear", "layers": 2}, {}),
):
    _rows += [
        Row(_name, "factorised", **{**_sbn, **_own}),
        Row(f"{_name}-vgp", "vgp", **{**_sbn_vgp, **_own, **_warp}),
    ]
ROWS = {row.name: row for row in _rows}


def find(name: str) -> Row:
    """The row of this name."""
    if name not in ROWS:
        raise ValueError(f"There is no row '{name}'; the rows are {', '.join(ROWS)}.")
    return ROWS[name]


class Learner(eqx.Module):
    """What a row trains: a model and its encoder."""

    model: AbstractModel
    encoder: AbstractEncoder


def build(row: Row, shape: tuple[int, ...], mean: Float[Array, " i"], key: PRNGKeyArray) -> Learner:
    """The row's model and encoder at their starting values, for images of this shape and these means of pixels."""
    model_key, key = jr.split(key)
    if row.model == "draw":
        return _draw(row, shape, mean, model_key, key)
    pixels = math.prod(shape)
    if row.model == "sbn":
        decoder = row.hidden[0] if row.architecture == "tanh" else ()
        model = SBN(pixels, row.latents, decoder, mean=mean, key=model_key)
    else:
        model = DLGM(pixels, row.latents, row.hidden, mean=mean, key=model_key)
    if row.joint:
        return Learner(model, _encoder(row, (pixels, *row.hidden[0]), sum(row.latents), key))
    below = (pixels, *row.latents)
    layers = zip(below, row.hidden, row.latents, jr.split(key, row.layers), strict=False)
    settings = (row, *[dataclasses.replace(row, **dict(row.above))] * (row.layers - 1))
    encoders = [_encoder(own, (n, *units), dim, k) for own, (n, units, dim, k) in zip(settings, layers, strict=True)]
    return Learner(model, encoders[0] if row.layers == 1 else Chain(*encoders))


def _draw(row: Row, shape: tuple[int, ...], mean: Float[Array, " i"], model_key, key: PRNGKeyArray) -> Learner:
    if len(shape) != 2:
        raise ValueError(
            f"{row.name} draws on images of a height and a width, got rows of {shape[0]} pixels; save the images as an "
            "array of shape (n, h, w)."
        )
    latents, units = row.latents[0], row.hidden[0][-1]
    options: dict[str, Any] = {"normalised": row.normalised, "path": row.path}
    model = DRAW(shape, row.glimpses, latents, units, row.writing, mean=mean, **options, key=model_key)
    head_key, key = jr.split(key)
    head = _encoder(row, (units,), latents, head_key)
    options = {"normalised": row.normalised, "unroll": row.unroll}
    return Learner(model, DrawEncoder(model, head, units, row.reading, **options, key=key))


def _encoder(row: Row, sizes: tuple[int, ...], dim: int, key: PRNGKeyArray) -> AbstractEncoder:
    match row.family:
        case "vae":
            return GaussianEncoder(sizes, dim, key=key)
        case "planar":
            return PlanarEncoder(sizes, dim, row.length, key=key)
        case "hvi":
            return HamiltonianEncoder(sizes, dim, row.length, key=key)
        case "hvm":
            wide = {"scale": row.scale, "auxiliary_width": row.auxiliary_width, "linearised": row.linearised}
            return HierarchicalEncoder(sizes, dim, row.latent_dim, **wide, key=key)
        case "factorised":
            return FactorisedEncoder(sizes, dim, Bernoulli(), key=key)
    c = dim if row.latent_dim is None else row.latent_dim
    paper = row.family == "vgp-paper"
    return AmortisedVGP(
        sizes,
        dim,
        row.num_data,
        c,
        rank=row.rank,
        inputs=row.inputs,
        kernel=ARD(0.05, np.full(c, 1.0 / c)) if paper else None,
        scale=row.scale,
        auxiliary_width=row.auxiliary_width,
        factorised=paper,
        linearised=row.linearised,
        start=row.start,
        reach=row.reach,
        project=row.project and not paper,
        mean=row.mean,
        noise=row.noise,
        sees=row.sees,
        meanfield=Bernoulli() if row.model == "sbn" else None,
        key=key,
    )


class Stage(NamedTuple):
    """A part of a run with one K: it ends at this step."""

    inner: int
    end: int


def stages(row: Row, epochs: int, steps_per_epoch: int) -> list[Stage]:
    """The parts of a run of so many epochs."""
    starts = [round(share * epochs) for share, _ in row.inner] + [epochs]
    pairs = zip(row.inner, starts[1:], strict=True)
    return [Stage(inner, end * steps_per_epoch) for (_, inner), end in pairs]
