"""A loop whose linear layers get the gradients of their weights after it.

The gradient of a layer that is used at every step of a loop is a sum over the steps. Taken one by one these are many
small matrix products, each with a launch of its own; with the layer's inputs and the gradients of its outputs kept, the
sum is one large product.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .networks import Dense, Joined

# What a step leaves for its gradient besides where it began: the products. The rest costs less to compute again, within
# operations that are there anyway, than to write down and read.
KEPT = jax.checkpoint_policies.dots_saveable


class Note:
    """Where a layer leaves its input while a step is traced."""

    x: Any = None


class Noted(eqx.Module):
    """A layer that adds `shift` to its output and leaves its input in `note`."""

    layer: Dense | Joined
    shift: Float[Array, "n o"]
    note: Note = eqx.field(static=True)

    def __call__(self, x):
        assert self.note.x is None, "used twice in a step"
        self.note.x = x
        return self.layer.given(x @ self.layer.weight + self.layer.bias + self.shift)


def scan(body, modules: Any, where, carry, inputs, *, unroll: int = 1):
    """`jax.lax.scan` of `body(modules, carry, inputs)`, where `where(modules)` are layers that it uses once a step.

    `body` must not close over anything that is differentiated. Only reverse mode.
    """
    arrays, static = eqx.partition(modules, eqx.is_array)
    length, rows = jax.tree.leaves(inputs)[0].shape[0], jax.tree.leaves(carry)[0].shape[0]

    def walk(layers, rest, shifts, carry, inputs):
        def step(carry, given):
            shifts, inputs = given
            noted = [Noted(layer, shift, Note()) for layer, shift in zip(layers, shifts, strict=True)]
            carry, out = body(eqx.tree_at(where, eqx.combine(rest, static), noted, is_leaf=_none), carry, inputs)
            return carry, (out, [layer.note.x for layer in noted])

        carry, (out, notes) = jax.lax.scan(jax.checkpoint(step, policy=KEPT), carry, (shifts, inputs), unroll=unroll)
        return (carry, out), notes

    @jax.custom_vjp
    def run(arrays, carry, inputs):
        return forward(arrays, carry, inputs)[0]

    def forward(arrays, carry, inputs):
        layers = [eqx.combine(part, whole) for part, whole in zip(where(arrays), where(modules), strict=True)]
        rest = eqx.tree_at(where, arrays, [None] * len(layers))
        shifts = [jnp.zeros((length, rows, layer.bias.shape[0]), layer.bias.dtype) for layer in layers]
        out, pull, notes = jax.vjp(partial(walk, layers), rest, shifts, carry, inputs, has_aux=True)
        return out, (pull, notes, where(arrays))

    def backward(residuals, slopes):
        pull, notes, layers = residuals
        rest, shifts, carry, inputs = pull(slopes)
        found = [_credited(*each) for each in zip(layers, notes, shifts, strict=True)]
        return eqx.tree_at(where, rest, found, is_leaf=_none), carry, inputs

    run.defvjp(forward, backward)
    return run(arrays, carry, inputs)


def _credited(layer, x, slope):
    # The gradient of a layer from its inputs at all steps and the gradients of its outputs.
    x, slope = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (x.T @ slope, slope.sum(0)))


def _none(leaf):
    return leaf is None
