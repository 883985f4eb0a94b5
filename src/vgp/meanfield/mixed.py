"""Several blocks of variables with mean-fields of their own, under one latent input."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .base import AbstractMeanField, same_size
from .factors import Factors


class Mixed(AbstractMeanField):
    """Blocks side by side: `Mixed((Bernoulli(), 3), (Normal(2), 2))` is of three binary variables and two real ones."""

    parts: tuple[AbstractMeanField, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, *blocks: tuple[AbstractMeanField, int]):
        if not blocks:
            raise ValueError("A Mixed mean-field needs a block at least: Mixed((Bernoulli(), 3), (Normal(2), 2)).")
        for block in blocks:
            if not (isinstance(block, tuple) and len(block) == 2 and isinstance(block[0], AbstractMeanField)):
                raise TypeError(
                    f"A block of a Mixed mean-field is a pair of a mean-field and a number, got {block!r}; write "
                    "Mixed((Bernoulli(), 3), (Normal(2), 2))."
                )
            if isinstance(block[1], bool) or not isinstance(block[1], int | np.integer) or block[1] < 1:
                raise TypeError(f"A block of a Mixed mean-field has 1 or more variables, got {block[1]!r} of them.")
        self.parts, self.sizes = zip(*blocks, strict=True)

    @property
    def collapses(self):
        return all(part.collapses for part in self.parts)

    @property
    def link(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of its parts."""
        return ", ".join(part.link for part in self.parts)

    @property
    def supports(self):
        parts = zip(self.parts, self.sizes, strict=True)
        return [(support, size if n is None else n) for part, size in parts for support, n in part.supports]

    def outputs(self, dim):
        same_size(self, sum(self.sizes), dim)
        drawn, driven = zip(*self._outputs(), strict=True)
        return sum(drawn), sum(driven)

    def _outputs(self):
        return [part.outputs(size) for part, size in zip(self.parts, self.sizes, strict=True)]

    def _each(self, f, drive):
        # What belongs to each part: first the drawn outputs of all, then the driven ones.
        drawn, driven = zip(*self._outputs(), strict=True)
        fs = jnp.split(f, np.cumsum(drawn)[:-1].tolist(), axis=-1)
        empty = jnp.zeros((*f.shape[:-1], 0), f.dtype) if drive is None else drive
        drives = jnp.split(empty, np.cumsum(driven)[:-1].tolist(), axis=-1)
        return [(part, own, d if d.shape[-1] else None) for part, own, d in zip(self.parts, fs, drives, strict=True)]

    def given(self, f, drive):
        return _joined(part.given(own, d) for part, own, d in self._each(f, drive))

    def integrated(self, mean, variance, drive):
        return _joined(part.integrated(own, variance, d) for part, own, d in self._each(mean, drive))

    def features(self, dim):
        return sum(part.features(size) for part, size in zip(self.parts, self.sizes, strict=True))

    def seen(self, z):
        pieces = jnp.split(z, np.cumsum(self.sizes)[:-1].tolist(), axis=-1)
        return jnp.concatenate([part.seen(own) for part, own in zip(self.parts, pieces, strict=True)], axis=-1)


def _joined(distributions) -> Factors:
    return Factors(tuple(block for q in distributions for block in Factors.of(q).blocks))
