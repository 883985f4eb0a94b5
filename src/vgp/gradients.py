"""Where gradients flow. One transformation of every bound, not a second copy of each.

A bound of a hierarchical family is an average of log p(z) − log q̂(z), with
log q̂ = log 1/(K+1) Σ_k w_k and w_k = q(z, y_k) / r(y_k | z). An estimator makes two choices:

- `freezes`: are the parameters inside log q(z, y) held constant? Their score has mean zero, since
  E Σ_k w̃_k ∇ log q(z, y_k) = E_q ∇ log q(z, y) = 0, so leaving it out is unbiased and, near the optimum,
  quieter;
- `reweighs`: is the score of the inner samples y_k ~ r replaced by the path through them? That turns the
  weight w̃_k on that path into w̃_k² (Tucker et al. 2018, here for the hierarchical bound).

| estimator | applies to |
|---|---|
| `Pathwise` | every bound, every reparameterised mean-field |
| `StickingTheLanding` | `Collapsed`, `Importance` with `outer=1`, exact families |
| `DoublyReparameterised` | `Collapsed`, `Importance`, exact families |
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


class AbstractGradient(eqx.Module):
    """An estimator of a bound's gradient: which scores are left out, and what stands in for them."""

    freezes: AbstractClassVar[bool]
    reweighs: AbstractClassVar[bool]


class Pathwise(AbstractGradient):
    """Everything is differentiated (the reparameterisation gradient; eq. `reparam_objective`)."""

    freezes = False
    reweighs = False


class StickingTheLanding(AbstractGradient):
    """The score of q is left out (Roeder, Wu, Duvenaud 2017). Needs a single outer draw."""

    freezes = True
    reweighs = False


class DoublyReparameterised(AbstractGradient):
    """The score of q is left out, and those of inner and outer samples are reparameterised away."""

    freezes = True
    reweighs = True


@jax.custom_vjp
def scale_gradient(x, factor):
    """x itself, with its gradient multiplied by `factor`."""
    return x


def _scale_forward(x, factor):
    return x, factor


def _scale_backward(factor, cotangent):
    def scaled(g):
        return g * factor.reshape(factor.shape + (1,) * (g.ndim - factor.ndim))

    return jax.tree.map(scaled, cotangent), jnp.zeros_like(factor)


scale_gradient.defvjp(_scale_forward, _scale_backward)
