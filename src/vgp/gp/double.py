"""Double precision inside, single outside."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp


def in_double(function):
    """`function` of arrays, or of modules with arrays, computed in double precision and with its gradient too.

    What goes in and comes out has the precision of the rest. Derivatives are taken inside: JAX knows double precision
    only where it is switched on, and a rule that runs later would be cut down to single. Only reverse mode.
    """

    @jax.custom_vjp
    def call(*args):
        return forward(*args)[0]

    def forward(*args):
        with jax.enable_x64(True):
            out = settled(function)(*(_cast(arg, jnp.float64) for arg in args))
        return _cast(out, _outside()), args

    def backward(args, slopes):
        def pulled(args, slopes):
            return jax.vjp(function, *args)[1](slopes)

        with jax.enable_x64(True):
            found = settled(pulled)(*_cast((args, slopes), jnp.float64))
        return jax.tree.map(lambda slope, arg: slope.astype(arg.dtype), found, args)

    call.defvjp(forward, backward)
    return call


# Lineax leaves a solve open until the whole program is compiled, where double precision is switched off again.
settled = eqxi.finalise_fn


def _outside():
    return jnp.zeros(()).dtype


def _cast(tree, dtype):
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)
