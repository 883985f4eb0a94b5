"""A loop with the gradients of its weights taken afterwards: the same values and gradients as a plain one."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from vgp.amortised import deferred
from vgp.amortised.networks import Dense, Joined

KEYS = jr.split(jr.key(0), 4)
MODULES = (Dense(5, 4, key=KEYS[0]), Joined(Dense(4, 2, key=KEYS[1]), Dense(4, 3, key=KEYS[2])), jnp.asarray(0.7))
CARRY = 0.3 * jr.normal(KEYS[3], (3, 2))
INPUTS = jr.normal(jr.key(1), (6, 3, 3))


def body(modules, carry, x, told=False):
    first, second, factor = modules  # the factor acts before a layer and after one
    whole = first(jnp.concatenate([carry, jnp.sin(factor * x)], axis=-1))
    carry, out = second(jnp.tanh(whole))
    return factor * jnp.tanh(carry), (out, whole) if told else out


def where(modules):
    return [modules[0], modules[1]]


def value(scan):
    def of(modules, carry, inputs):
        carry, out, whole = scan(modules, carry, inputs)
        return jnp.sum(jnp.sin(out)) + jnp.sum(carry**2) + jnp.sum(jnp.cos(whole))

    return jax.value_and_grad(of, argnums=(0, 1, 2))


def plain(modules, carry, inputs):
    carry, (out, whole) = jax.lax.scan(lambda carry, x: body(modules, carry, x, told=True), carry, inputs)
    return carry, out, whole


@pytest.mark.parametrize("unroll", [1, 4])
def test_same_as_a_plain_loop(unroll):
    def later(modules, carry, inputs):
        carry, out, (whole,) = deferred.scan(body, modules, where, carry, inputs, told=(0,), unroll=unroll)
        return carry, out, whole

    expected, found = value(plain)(MODULES, CARRY, INPUTS), jax.jit(value(later))(MODULES, CARRY, INPUTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_a_layer_is_used_once_a_step():
    def twice(modules, carry, x):
        carry, _ = body(modules, carry, x)
        return body(modules, carry, x)

    with pytest.raises(AssertionError, match="twice"):
        deferred.scan(twice, MODULES, where, CARRY, INPUTS)
