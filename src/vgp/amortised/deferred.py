"""A loop whose backward pass does only what has to wait for the step after it.

A loop of many small steps takes as long on a GPU as the launches of its operations. So the way forward keeps no more
than where each step began and what its linear layers gave. From these, all steps at once, follows everything that the
derivative needs and that does not depend on what comes back: a few large operations in place of many small ones. The
way back, step by step, is then linear in what comes back. The gradients of the layers' weights, of all else that the
steps share and of their inputs are again taken for all steps at once, after the loop.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .networks import Dense, Joined


class Note:
    """What a layer leaves while a step is traced: its input and its output."""

    x: Any = None
    whole: Any = None


class Noted(eqx.Module):
    """A layer that leaves a note."""

    layer: Dense | Joined
    note: Note = eqx.field(static=True)

    def __call__(self, x):
        assert self.note.whole is None, "used twice in a step"
        self.note.whole = x @ self.layer.weight + self.layer.bias
        return self.layer.given(self.note.whole)


class Known(eqx.Module):
    """A layer whose output is known beforehand, whatever its input. With `follow` gradients go to the input too."""

    layer: Dense | Joined
    whole: Float[Array, "n o"]
    note: Note = eqx.field(static=True, default_factory=Note)
    follow: bool = eqx.field(static=True, default=False)

    def __call__(self, x):
        self.note.x, self.note.whole = x, self._followed(x) if self.follow else self.whole
        return self.layer.given(self.note.whole)

    def _followed(self, x):
        weight = self.layer.weight

        @jax.custom_vjp
        def known(x, whole):
            return whole

        known.defvjp(lambda x, whole: (whole, None), lambda _, slope: (slope @ weight.T, slope))
        return known(x, self.whole)


def scan(body, modules: Any, where, carry, inputs, *, told: tuple[int, ...] = (), unroll: int = 1):
    """`jax.lax.scan` of `body(modules, carry, inputs)`, where `where(modules)` are layers that it uses once a step.

    Returns the last carry, what `body` gave at each step, and the outputs of the layers with the numbers `told`. `body`
    must not close over anything that is differentiated. Only reverse mode.
    """
    arrays, static = eqx.partition(modules, eqx.is_array)

    def taken_apart(arrays):
        layers = [eqx.combine(part, whole) for part, whole in zip(where(arrays), where(modules), strict=True)]
        return layers, eqx.tree_at(where, arrays, [None] * len(layers))

    def stepped(layers, rest, carry, inputs):
        return body(eqx.tree_at(where, eqx.combine(rest, static), layers, is_leaf=_none), carry, inputs)

    @jax.custom_vjp
    def run(arrays, carry, inputs):
        return forward(arrays, carry, inputs)[0]

    def forward(arrays, carry, inputs):
        layers, rest = taken_apart(arrays)

        def step(carry, inputs):
            noted = [Noted(layer, Note()) for layer in layers]
            after, out = stepped(noted, rest, carry, inputs)
            return after, (out, carry, [layer.note.whole for layer in noted])

        after, (out, before, wholes) = jax.lax.scan(step, carry, inputs, unroll=unroll)
        return (after, out, [wholes[i] for i in told]), (arrays, before, inputs, wholes)

    def backward(kept, slopes):
        arrays, before, inputs, wholes = kept
        by_after, by_out, by_told = slopes
        layers, rest = taken_apart(arrays)

        def again(rest, carry, inputs, wholes, follow):
            known = [Known(layer, whole, Note(), follow) for layer, whole in zip(layers, wholes, strict=True)]
            found = stepped(known, rest, carry, inputs)
            return (found, [known[i].note.whole for i in told]), [layer.note.x for layer in known]

        def linear(carry, inputs, wholes):
            def step(carry, wholes):
                return again(rest, carry, inputs, wholes, follow=True)

            _, pull, xs = jax.vjp(step, carry, wholes, has_aux=True)
            return pull, xs

        def back(by_after, given):
            pull, by_out, by_told = given
            by_before, by_wholes = pull(((by_after, by_out), by_told))
            return by_before, (by_wholes, by_after)

        def beside(rest, inputs):  # where these go, but by way of a layer
            def step(carry, inputs, wholes):
                return again(rest, carry, inputs, wholes, follow=False)

            (found, _), xs = jax.vmap(step)(before, inputs, wholes)
            return found, xs

        pulls, xs = jax.vmap(linear)(before, inputs, wholes)
        by_start, (by_wholes, by_afters) = jax.lax.scan(
            back, by_after, (pulls, by_out, by_told), reverse=True, unroll=unroll
        )
        by_xs = [slope @ layer.weight.T for slope, layer in zip(by_wholes, layers, strict=True)]
        by_rest, by_inputs = jax.vjp(beside, rest, inputs)[1](((by_afters, by_out), by_xs))
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
