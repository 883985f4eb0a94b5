"""DRAW's inference network: q(z_t | x, z_{<t}) of every glimpse, a mean-field or a VGP."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..divergence import gaussian_kl
from ..families.base import AbstractHierarchical, AbstractView, frozen
from ..families.process import Collapsed, Process, log_standard_normal
from ..gp import AbstractConditioner, Conditioner
from ..models.attention import RAW, Layout, read, ring, tiling, window
from ..models.draw import DRAW, Canvas, Drawing
from ..models.glimpse import glimpsed
from ..models.lstm import LSTM
from ..noise import standard_normal
from .base import AbstractEncoder
from .deferred import Known, scan
from .networks import Dense, Joined


class DrawEncoder(AbstractEncoder):
    """The reading window and the recurrent network; `head` maps its output to the family of a glimpse's variables.

    Every glimpse reads the image and what the canvas lacks of it, where the decoder looks. `head` is an encoder whose
    data is that output: `GaussianEncoder((units,), latents)` is DRAW as published, `AmortisedVGP((units,), latents)`
    has a VGP at every glimpse, with one conditioner for all of them.
    """

    dim: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    unroll: int = eqx.field(static=True)
    reader: Dense
    cell: LSTM
    head: AbstractEncoder
    path: Float[Array, "t 5"] | None  # of the reading windows, where the model has one of the writing windows

    def __init__(
        self,
        model: DRAW,
        head: AbstractEncoder,
        units: int = 256,
        size: int = 2,
        *,
        normalised: bool = False,
        unroll: int = 1,
        key: PRNGKeyArray,
    ):
        read_key, cell_key = jr.split(key)
        decoder = model.cell.start.h.shape[0]
        self.dim, self.latent_dim, self.size, self.unroll = model.dim, head.latent_dim, size, unroll
        self.reader = Dense(decoder, RAW, key=read_key).starting(tiling(size, model.shape))
        self.cell = LSTM(2 * size**2 + decoder, units, normalised=normalised, key=cell_key)
        self.head = head
        self.path = None if model.path is None else jnp.asarray(ring(size, model.shape, model.glimpses), float)

    @property
    def stages(self):
        return self.dim // self.head.dim

    def at(self, x, model: Any = None):
        prepared = eqx.tree_at(lambda q: q.head, self, self.head.prepared())
        return DrawGiven(dim=self.dim, encoder=prepared, model=model, x=x)

    def process(self, features: Float[Array, "n u"], whole: Float[Array, "n o"] | None = None) -> Process:
        """The process of every row; `whole` is what the heads give there, where it is known."""
        head: Any = self.head
        if whole is not None:
            head = eqx.tree_at(lambda head: head.heads, head, Known(head.heads, whole))
        return head.at(features).process


class DrawGiven(AbstractHierarchical):
    """The family of all glimpses at given data."""

    dim: int = eqx.field(static=True)
    encoder: DrawEncoder
    model: DRAW
    x: Float[Array, "b i"]
    place: None = None

    def view(self, collapse: bool = True):
        if not collapse:
            raise TypeError("DRAW integrates f out; use vgp.bounds.Importance() or vgp.bounds.Collapsed().")
        return DrawView(self.encoder, self.model, self.x)

    def _sample(self, key, n):
        view = self.view()
        latent_key, key = jr.split(key)
        return view.conditional(view.sample_latent(latent_key, n)).sample(key).z


class Rows(AbstractConditioner):
    """A conditioner's rows at a ξ that was known beforehand: w and v, whatever is asked."""

    weights: Float[Array, "n m"]
    variance: Float[Array, " n"]
    size: int = eqx.field(static=True)

    @property
    def latent_dim(self):
        return self.size

    def rows(self, xi):
        return self.weights[None], self.variance[None]


class DrawView(AbstractView):
    """The view of all glimpses. y is ξ, glimpses × n × c; z is a `Drawing`."""

    encoder: DrawEncoder
    model: DRAW
    x: Float[Array, "b i"]
    again: bool = eqx.field(static=True, default=False)  # do the features of a z have to be computed anew?

    def held(self):
        return DrawView(frozen(self.encoder), frozen(self.model), self.x, again=True)

    def sample_latent(self, key, n):
        return standard_normal(key, (self.model.glimpses, n, self.encoder.latent_dim), float)

    def log_latent(self, y):
        return log_standard_normal(y).sum(0)

    def conditional(self, y):
        return DrawConditional(self, y)

    def posterior(self, z):
        raise TypeError("DRAW has one auxiliary model per glimpse; see `parts`.")

    def parts(self, z: Any, y):
        glimpses, n = self.model.glimpses, len(z)
        process = self.run(y, z=z.z).process if self.again else z.process
        own = z.z.reshape(n, glimpses, -1).swapaxes(0, 1).reshape(glimpses * n, -1)
        return [(Collapsed(process), own, y.reshape(glimpses * n, -1))]

    def run(self, y: Float[Array, "t n c"], noise: Float[Array, "t n l"] | None = None, z=None) -> Drawing:
        """All glimpses in turn: with z drawn from q by way of `noise`, or z as given."""
        model, encoder, n = self.model, self.encoder, y.shape[1]
        x = jnp.tile(self.x, (n // len(self.x), 1)).reshape(n, *model.shape)
        given = None if z is None else z.reshape(n, model.glimpses, -1).swapaxes(0, 1)

        after = Joined(encoder.reader, model.writer)  # both see the decoder's memory
        layout = Layout(model.shape, (encoder.size, model.size), (True, False))

        def step(modules, carry, inputs):
            encoder, model, after, x = modules
            memory, canvas, seen = carry
            xi, rows, noise, z, places = inputs
            memory = encoder.cell(memory, seen.reshape(n, -1), canvas.memory.h)
            if z is None:
                q: Any = Collapsed(_at_rows(encoder.process(memory.h), rows)).conditional(xi).base_dist
                z = q.loc + q.scale * noise
            drawn = model.cell(canvas.memory, z)
            place, written = after(drawn.h)
            raw = jnp.concatenate([place, written[:, :RAW]], axis=-1)
            raw = raw if places is None else raw + places
            patch, logits = written[:, RAW:].reshape(n, model.size, model.size), canvas.logits.reshape(x.shape)
            glimpse: Any = glimpsed(layout, raw, patch, logits, x)
            logits, seen = glimpse
            return (memory, Canvas(drawn, logits.reshape(n, -1)), seen), (z, memory.h)

        def layers(modules):
            encoder, model, after, _ = modules
            used = [encoder.cell.gates, model.cell.gates, after]
            return used if given is not None else [*used, encoder.head.heads]

        blank = model.begin(n)
        first, places = self._places()
        there = window(encoder.reader(blank.memory.h) + first, encoder.size, model.shape, reads=True)
        seen = jnp.stack(read(there, x, x - jax.nn.sigmoid(blank.logits).reshape(x.shape)), axis=1)
        start = encoder.cell.begin(n), blank, seen
        inputs = y, self._rows(y) if z is None else None, noise, given, places
        modules = encoder, model, after, x
        told = () if given is not None else (len(layers(modules)) - 1,)  # the heads give all of q
        (_, canvas, _), (drawn, features), wholes = scan(
            step, modules, layers, start, inputs, told=told, unroll=encoder.unroll
        )
        features, *whole = (each.reshape(-1, each.shape[-1]) for each in (features, *wholes))
        process = encoder.process(features, *whole)
        return Drawing(z=drawn.swapaxes(0, 1).reshape(n, -1), canvas=canvas.logits, process=process)

    def _places(self):
        # What the path adds to the first reading window; then, at each glimpse, to the next one and the writing window.
        reads, writes = self.encoder.path, self.model.path
        if reads is None and writes is None:
            return 0.0, None
        reads, writes = (jnp.zeros((self.model.glimpses, RAW)) if path is None else path for path in (reads, writes))
        return reads[0], jnp.concatenate([jnp.roll(reads, -1, axis=0), writes], axis=-1)

    def _rows(self, y):
        # What depends on ξ alone is done for all glimpses at once, before the loop.
        conditioner = getattr(self.encoder.head, "conditioner", None)
        if not isinstance(conditioner, Conditioner):
            return None
        weights, variance = conditioner.rows(y)
        basis = getattr(self.encoder.head, "basis", None)
        return Rows(weights if basis is None else weights @ basis, variance, self.encoder.latent_dim)


def _at_rows(process: Process, rows: Rows | None) -> Process:
    if rows is None:
        return process
    process = eqx.tree_at(lambda p: p.conditioner, process, rows)
    return eqx.tree_at(lambda p: p.local.basis, process, None, is_leaf=lambda leaf: leaf is None)


class DrawConditional(eqx.Module):
    """q(z₁ | ξ₁, x) q(z₂ | ξ₂, x, z₁) …"""

    view: DrawView
    y: Float[Array, "t n c"]

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Drawing:
        assert shape == ()
        size = (*self.y.shape[:2], self.view.model.latents)
        return self.view.run(self.y, standard_normal(key, size, float))

    def _factors(self, z: Drawing):
        [(view, own, y)] = self.view.parts(z, self.y)
        return view.conditional(y), own

    def log_prob(self, z: Drawing) -> Float[Array, " n"]:
        q, own = self._factors(z)
        return jnp.asarray(q.log_prob(own)).reshape(-1, len(z)).sum(0)

    def divergence(self, z: Drawing) -> Float[Array, " n"]:
        """KL(q(z | ξ) ‖ N(0, I)): in closed form at every glimpse, given those before it."""
        q: Any = self._factors(z)[0]
        standard = dist.Normal(0.0, 1.0).expand(q.event_shape).to_event(1)
        return gaussian_kl(q, standard).reshape(-1, len(z)).sum(0)
