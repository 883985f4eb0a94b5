"""Layers of latent variables from the bottom up: q(z₁ | x) q(z₂ | z₁) …"""

import itertools

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..families.base import AbstractHierarchical, AbstractView, Latent
from ..families.process import log_standard_normal
from ..noise import sample, standard_normal
from .base import AbstractEncoder


class Chain(AbstractEncoder):
    """Each layer's encoder sees the draw of the layer below; z is all of them side by side, the lowest first.

    Given the layers below, every layer is a family of its own: its log density is bounded by itself.
    """

    dim: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    layers: tuple[AbstractEncoder, ...]

    def __init__(self, *layers: AbstractEncoder):
        self.layers = layers
        self.dim, self.latent_dim = sum(q.dim for q in layers), sum(q.latent_dim for q in layers)

    def at(self, x, model=None):
        layers = tuple(layer.prepared() for layer in self.layers)
        return ChainGiven(dim=self.dim, first=_hierarchical(layers[0].at(x)), layers=layers)


def _hierarchical(family) -> AbstractHierarchical:
    if not isinstance(family, AbstractHierarchical):
        raise TypeError(
            f"A Chain is of families with an auxiliary model or of Gaussian ones, got {type(family).__name__}; "
            "use AmortisedVGP, HierarchicalEncoder or GaussianEncoder."
        )
    return family


class ChainGiven(AbstractHierarchical):
    """A chain at given data."""

    dim: int = eqx.field(static=True)
    first: AbstractHierarchical
    layers: tuple[AbstractEncoder, ...]
    place: None = None

    def view(self, collapse: bool = True):
        if not collapse:
            raise TypeError("A Chain integrates f out; use vgp.bounds.Importance() or vgp.bounds.Collapsed().")
        return ChainView(self.first.view(), self.layers)

    def _sample(self, key, n):
        view = self.view()
        latent_key, key = jr.split(key)
        return view.conditional(view.sample_latent(latent_key, n)).sample(key)


class ChainView(AbstractView):
    """The view of a chain. Views of the upper layers are made where their data, the layer below, is known."""

    first: AbstractView
    layers: tuple[AbstractEncoder, ...]

    def sample_latent(self, key, n):
        keys = jr.split(key, len(self.layers))
        # One standard normal ξ per layer, whatever its family.
        return tuple(standard_normal(k, (n, q.latent_dim), float) for k, q in zip(keys, self.layers, strict=True))

    def log_latent(self, y):
        return sum(log_standard_normal(xi) for xi in y)

    def conditional(self, y):
        return ChainConditional(self, y)

    def posterior(self, z):
        raise TypeError("A chain has one auxiliary model per layer; see `parts`.")

    def above(self, layer: int, z: Float[Array, "n d"]) -> AbstractView:
        """The view of a layer, given the draw of the one below it."""
        return _hierarchical(self.layers[layer].at(z)).view()

    def split(self, z: Float[Array, "n d"]) -> list[Float[Array, "n e"]]:
        """The layers' own variables."""
        ends = list(itertools.accumulate(q.dim for q in self.layers))
        return jnp.split(z, ends[:-1], axis=-1)

    def parts(self, z, y):
        pieces = self.split(z)
        views = [self.first, *(self.above(i, below) for i, below in enumerate(pieces[:-1], start=1))]
        return list(zip(views, pieces, y, strict=True))


class ChainConditional(eqx.Module):
    """q(z₁ | ξ₁, x) q(z₂ | ξ₂, z₁) …"""

    view: ChainView
    y: Latent

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "n d"]:
        assert shape == ()
        pieces = []
        for i, own_key in enumerate(jr.split(key, len(self.view.layers))):
            view = self.view.above(i, pieces[-1]) if i else self.view.first
            pieces.append(sample(view.conditional(self.y[i]), own_key))
        return jnp.concatenate(pieces, axis=-1)

    def layers(self, z: Float[Array, "n d"]) -> list[dist.Distribution]:
        """The factors, each at the draws of the layer below."""
        return [view.conditional(xi) for view, _, xi in self.view.parts(z, self.y)]

    def log_prob(self, z: Float[Array, "n d"]) -> Float[Array, " n"]:
        factors = zip(self.layers(z), self.view.split(z), strict=True)
        return jnp.sum(jnp.stack([jnp.asarray(q.log_prob(piece)) for q, piece in factors]), axis=0)
