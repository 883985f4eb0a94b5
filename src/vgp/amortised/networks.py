"""The pieces of every network here: tanh layers, and linear layers that read them."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..noise import initial_normal

LARGE = 2**20  # numbers from which an array is left by itself: to copy it costs more than a few launches


class Dense(eqx.Module):
    """A linear layer. Starts at Glorot and Bengio's scale, or at zero.

    `blocks` is how many matrices lie side by side in it, as those of an LSTM's gates do; an optimiser of matrices looks
    at each. It is 0 where the outputs are the entries of a matrix themselves.
    """

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]
    blocks: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, *, zero: bool = False, blocks: int = 1, key: PRNGKeyArray):
        self.blocks = blocks
        scale = (2.0 / (inputs + outputs)) ** 0.5
        start = np.zeros((inputs, outputs)) if zero else scale * initial_normal(key, (inputs, outputs))
        self.weight = jnp.asarray(start, float)
        self.bias = jnp.asarray(np.zeros(outputs), float)

    def starting(self, bias: np.ndarray) -> "Dense":
        """The same layer with these biases to begin with."""
        return eqx.tree_at(lambda layer: layer.bias, self, jnp.asarray(bias, float))

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        if self.weight.size >= LARGE:
            # XLA merges products that read the same: a gain where they are small, but these weights would be copied.
            x = jax.lax.optimization_barrier(x)
        return self.given(x @ self.weight + self.bias)

    def given(self, whole: Float[Array, "*n o"]) -> Float[Array, "*n o"]:
        """The layer's output."""
        return whole


class Joined(eqx.Module):
    """Layers that read the same features, as one matrix product: fewer and larger operations."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]
    ends: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, *layers: Dense):
        self.weight = jnp.concatenate([layer.weight for layer in layers], axis=1)
        self.bias = jnp.concatenate([layer.bias for layer in layers])
        self.ends = tuple(itertools.accumulate(layer.bias.shape[0] for layer in layers))[:-1]

    def __call__(self, x: Float[Array, "*n i"]) -> list[Float[Array, "*n o"]]:
        """What each of the layers gives."""
        return self.given(x @ self.weight + self.bias)

    def given(self, whole: Float[Array, "*n o"]) -> list[Float[Array, "*n o"]]:
        """The whole output as what each of the layers gives."""
        return jnp.split(whole, self.ends, axis=-1)


class Trunk(eqx.Module):
    """Layers of tanh units: the features that heads read. `sizes` begins with the number of inputs.

    With no layer the features are the inputs.
    """

    layers: tuple[Dense, ...]
    width: int = eqx.field(static=True)

    def __init__(self, sizes: tuple[int, ...], *, key: PRNGKeyArray):
        if len(sizes) < 1:
            raise ValueError("The sizes of a network are its number of inputs and the units of its layers, got none.")
        self.width = sizes[-1]
        keys = jr.split(key, max(len(sizes) - 1, 1))[: len(sizes) - 1]
        pairs = zip(itertools.pairwise(sizes), keys, strict=True)
        self.layers = tuple(Dense(i, o, key=k) for (i, o), k in pairs)

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x
