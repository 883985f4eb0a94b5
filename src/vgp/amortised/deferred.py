"""A loop whose backward pass does only what has to wait for the step after it.

A loop of many small steps takes as long on a GPU as the launches of its operations. So the way forward keeps no more
than where each step began and what its linear layers gave. From these, all steps at once, follows everything that the
derivative needs and that does not depend on what comes back: a few large operations in place of many small ones. The
way back, step by step, is then linear in what comes back. The gradients of the layers' weights, and of all else that
the steps share, are again sums over all steps, taken after the loop.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .networks import Dense, Joined


class Note:
    """What a layer leaves while a step is traced: its input, and its output."""

    x: Any = None
    whole: Any = None


class Noted(eqx.Module):
    """A layer that leaves its output in `note`."""

    layer: Dense | Joined
    note: Note = eqx.field(static=True)

    def __call__(self, x):
        assert self.note.whole is None, "used twice in a step"
        self.note.whole = x @ self.layer.weight + self.layer.bias
        return self.layer.given(self.note.whole)


class Replayed(eqx.Module):
    """A layer whose output is known; it leaves its input in `note`."""

    layer: Dense | Joined
    whole: Float[Array, "n o"]
    note: Note = eqx.field(static=True)

    def __call__(self, x):
        weight = self.layer.weight

        @jax.custom_vjp
        def known(x, whole):
            return whole

        def back(_, slope):
            return slope @ weight.T, slope

        known.defvjp(lambda x, whole: (whole, None), back)
        self.note.x = x
        return self.layer.given(known(x, self.whole))


def scan(body, modules: Any, where, carry, inputs, *, unroll: int = 1):
    """`jax.lax.scan` of `body(modules, carry, inputs)`, where `where(modules)` are layers that it uses once a step.

    `body` must not close over anything that is differentiated. Only reverse mode.
    """
    arrays, static = eqx.partition(modules, eqx.is_array)

    def taken_apart(arrays):
        layers = [eqx.combine(part, whole) for part, whole in zip(where(arrays), where(modules), strict=True)]
        return layers, eqx.tree_at(where, arrays, [None] * len(layers))

    def put(layers, rest):
        return eqx.tree_at(where, eqx.combine(rest, static), layers, is_leaf=_none)

    @jax.custom_vjp
    def run(arrays, carry, inputs):
        return forward(arrays, carry, inputs)[0]

    def forward(arrays, carry, inputs):
        layers, rest = taken_apart(arrays)

        def step(carry, inputs):
            noted = [Noted(layer, Note()) for layer in layers]
            after, out = body(put(noted, rest), carry, inputs)
            return after, (out, carry, [layer.note.whole for layer in noted])

        after, (out, before, wholes) = jax.lax.scan(step, carry, inputs, unroll=unroll)
        return (after, out), (arrays, before, inputs, wholes)

    def backward(kept, slopes):
        arrays, before, inputs, wholes = kept
        layers, rest = taken_apart(arrays)

        def again(rest, carry, inputs, wholes):
            known = [Replayed(layer, whole, Note()) for layer, whole in zip(layers, wholes, strict=True)]
            return body(put(known, rest), carry, inputs), [layer.note.x for layer in known]

        def linear(*step):
            _, pull, xs = jax.vjp(lambda *step: again(rest, *step), *step, has_aux=True)
            return pull, xs

        def back(slope, given):
            pull, by_out = given
            by_before, by_inputs, by_wholes = pull((slope, by_out))
            return by_before, (by_inputs, by_wholes, slope)

        steps = before, inputs, wholes
        pulls, xs = jax.vmap(linear)(*steps)
        by_start, (by_inputs, by_wholes, by_after) = jax.lax.scan(
            back, slopes[0], (pulls, slopes[1]), reverse=True, unroll=unroll
        )
        shared = jax.vjp(lambda rest: jax.vmap(lambda *step: again(rest, *step)[0])(*steps), rest)[1]
        (by_rest,) = shared((by_after, slopes[1]))
        found = [_credited(*each) for each in zip(where(arrays), xs, by_wholes, strict=True)]
        return eqx.tree_at(where, by_rest, found, is_leaf=_none), by_start, by_inputs

    run.defvjp(forward, backward)
    return run(arrays, carry, inputs)


def _credited(layer, x, slope):
    # The gradient of a layer from its inputs at all steps and the gradients of its outputs.
    x, slope = x.reshape(-1, x.shape[-1]), slope.reshape(-1, slope.shape[-1])
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (x.T @ slope, slope.sum(0)))


def _none(leaf):
    return leaf is None
