"""The recurrent cell of DRAW."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..amortised.networks import Dense


class Memory(NamedTuple):
    """What a cell remembers: its output h and its cell c."""

    h: Float[Array, "n u"]
    c: Float[Array, "n u"]


class LSTM(eqx.Module):
    """A long short-term memory of `units` units: one matrix product a step, and a learned start.

    With `normalised` every gate and the cell go through a layer norm (Ba, Kiros, Hinton 2016).
    """

    gates: Dense
    start: Memory
    gains: Float[Array, "5 u"] | None
    shifts: Float[Array, "5 u"] | None

    def __init__(self, inputs: int, units: int, *, normalised: bool = False, key: PRNGKeyArray):
        gates = Dense(inputs + units, 4 * units, blocks=4, key=key)
        forget = np.zeros(4 * units)
        forget[units : 2 * units] = 1.0  # remembers, at first
        self.gates = gates.starting(forget)
        self.start = Memory(*(jnp.asarray(np.zeros(units), float) for _ in range(2)))
        self.gains = jnp.asarray(np.ones((5, units)), float) if normalised else None
        self.shifts = jnp.asarray(np.zeros((5, units)), float) if normalised else None

    def begin(self, n: int) -> Memory:
        """The memory before the first step, for n rows."""
        return Memory(*(jnp.broadcast_to(start, (n, len(start))) for start in self.start))

    def __call__(self, memory: Memory, *inputs: Float[Array, "n i"]) -> Memory:
        pieces = jnp.split(self.gates(jnp.concatenate([*inputs, memory.h], axis=-1)), 4, axis=-1)
        entry, forget, new, leave = (self._norm(i, piece) for i, piece in enumerate(pieces))
        c = jax.nn.sigmoid(forget) * memory.c + jax.nn.sigmoid(entry) * jnp.tanh(new)
        return Memory(jax.nn.sigmoid(leave) * jnp.tanh(self._norm(4, c)), c)

    def _norm(self, which, values):
        if self.gains is None or self.shifts is None:
            return values
        centred = values - jnp.mean(values, axis=-1, keepdims=True)
        spread = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return centred * spread * self.gains[which] + self.shifts[which]
