"""Data that does not fit in memory: a target whose batches come from an iterator."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PyTree

from .layout import AbstractLaidOut, Layout


class Stream:
    """Batches of data, one epoch after another: `vgp.target(..., data=vgp.Stream(batches, num_data=N))`.

    `batches` is a function without arguments that returns an iterator over one epoch, or anything that can be
    iterated again and again, such as a list of batches or a data loader. A batch is a pytree of arrays with a leading
    axis; all but the last have the same length, and a shorter last one is used in evaluation only.
    """

    def __init__(self, batches: Callable[[], Iterator[PyTree]] | Iterable[PyTree], num_data: int):
        if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
            raise ValueError(f"num_data must be the number of rows in all batches together, got {num_data!r}.")
        if isinstance(batches, Iterator):
            raise TypeError(
                "The batches can be gone through only once; pass a function that returns a new iterator for each epoch."
            )
        self._open: Callable[[], Iterator[PyTree]] = batches if callable(batches) else lambda: iter(batches)
        self.num_data = num_data
        self._iterator, self._next, self._last = iter(()), 0, (-1, None)
        self.example = jax.tree.map(np.asarray, next(self._open(), None))
        lengths = {len(leaf) if np.ndim(leaf) else None for leaf in jax.tree.leaves(self.example)}
        if len(lengths) != 1 or None in lengths or 0 in lengths:
            raise ValueError(
                f"Every array in a batch needs the same leading axis, got lengths {sorted(map(str, lengths))}."
            )
        self.batch_size = min(lengths.pop() or 0, num_data)

    @property
    def whole(self) -> int:
        """How many batches of full length an epoch has."""
        return self.num_data // self.batch_size

    @property
    def rest(self) -> int:
        """The length of the last batch, if it is shorter."""
        return self.num_data % self.batch_size

    def fetch(self, index, length: int) -> PyTree:
        """Batch number `index` of the epoch, in numpy arrays; asked for in order, the stream is read in order."""
        index = int(index)
        if self._last[0] != index:
            if index < self._next:
                self._iterator, self._next = iter(()), 0
            if self._next == 0:
                self._iterator = self._open()
            batch = None
            while self._next <= index:
                batch = next(self._iterator, None)
                self._next += 1
            self._last = (index, jax.tree.map(np.asarray, batch))
        batch = self._last[1]
        found = None if batch is None else len(jax.tree.leaves(batch)[0])
        if found != length:
            raise ValueError(
                f"Batch {index} should have {length} rows, {self.num_data} in all, and it has {found or 0}; "
                "check num_data, and that every epoch has the same batches."
            )
        return batch

    def __call__(self, index: Int[Array, ""], length: int) -> PyTree:
        """The batch inside of compiled code, which asks the host for it."""

        def kind(leaf):
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            return jax.ShapeDtypeStruct((length, *leaf.shape[1:]), dtype)

        kinds = jax.tree.map(kind, self.example)

        def ask(i):
            return jax.tree.map(lambda leaf, k: np.asarray(leaf, k.dtype), self.fetch(i, length), kinds)

        return jax.pure_callback(ask, kinds, index, vmap_method="sequential")


class StreamTarget(AbstractLaidOut):
    """What `vgp.target` returns for a stream. Outside of training its log density goes through the whole stream."""

    dim: int = eqx.field(static=True)
    log_density: Callable[..., Any] = eqx.field(static=True)
    stream: Stream = eqx.field(static=True)
    layout: Layout
    prior: dist.Distribution | None = None
    batch: PyTree = None  # of one step

    @property
    def num_data(self):
        return self.stream.num_data

    def for_step(self, key, size, step):
        batch = self.stream(step % self.stream.whole, self.stream.batch_size)
        return eqx.tree_at(lambda t: t.batch, self, batch, is_leaf=lambda x: x is None)

    def log_likelihood(self, u):
        z, stream = self.layout.constrain(u), self.stream
        volume = self.layout.log_jacobian(u) if self.prior is None else jnp.zeros((), u.dtype)
        if self.batch is not None:
            scale = stream.num_data / stream.batch_size
            return scale * self.log_density(z, self.batch) + volume

        def add(i, total: Float[Array, ""]) -> Float[Array, ""]:
            return total + self.log_density(z, stream(i, stream.batch_size))

        total = jax.lax.fori_loop(0, stream.whole, add, jnp.zeros((), u.dtype))
        if stream.rest:
            total += self.log_density(z, stream(jnp.asarray(stream.whole), stream.rest))
        return total + volume
