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
| `ScoreFunction` | `Collapsed`, `Importance`, every mean-field |
| `VIMCO` | `Importance` with `outer` > 1, every mean-field |
| `ARM`, `DisARM`, `LocalExpectations` | `Collapsed`, `Importance` with `outer=1`, Bernoulli variables |

From `ScoreFunction` on they are for variables whose draws no gradient can follow, such as discrete ones (`scoring.py`).
The path through ξ, f and the variables that can be followed is taken all the same, in the same step.
"""

from typing import TYPE_CHECKING, Literal

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


class AbstractScore(AbstractGradient):
    """An estimator for draws that cannot be followed. All is differentiated with the draws held, and the score of those
    variables, ∇ log q(z_i | ξ), is added with a learning signal for a factor.
    """

    freezes = False
    reweighs = False


class ScoreFunction(AbstractScore):
    """The black-box gradient (Ranganath, Gerrish, Blei 2014): the signal is the bound's value, less a baseline.

    `baseline`, always of the other draws, so that the gradient stays unbiased: "mean", "optimal", the mean weighted by
    the squared scores, which is the control variate of the paper for each variable, or "none". With `rao_blackwell`,
    where the target has terms, a variable's signal leaves out what does not depend on it: the terms of log p that it
    has no part in, and the log q of the other variables.
    """

    baseline: Literal["none", "mean", "optimal"] = eqx.field(static=True, default="optimal")
    rao_blackwell: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.baseline not in ("none", "mean", "optimal"):
            raise ValueError(f"The baseline is 'none', 'mean' or 'optimal', got {self.baseline!r}.")
        if not isinstance(self.rao_blackwell, bool):
            raise TypeError(f"rao_blackwell is True or False, got {self.rao_blackwell!r}.")


VALUES = ScoreFunction("none", False)  # for a bound of whatever family, where nobody asks for its gradient


class VIMCO(AbstractScore):
    """For outer draws (Mnih & Rezende 2016): a draw's signal is what it adds to log 1/M Σ w, next to the others'
    geometric mean in its place.
    """


class ARM(AbstractScore):
    """Two antithetic draws of all Bernoulli variables from the same uniform numbers u (Yin & Zhou 2019):
    ∇_φ E f = E (f(z̃) − f(z)) (u − ½), with φ the logits.
    """


class DisARM(AbstractScore):
    """`ARM` with u integrated out given the two draws (Dong, Mnih, Tucker 2020): never of larger variance.

    Beside Bernoulli variables, other discrete ones have the score function with the optimal baseline in the same step.
    """


class LocalExpectations(AbstractScore):
    """The expectation over one Bernoulli variable after another, the others as drawn (Titsias & Lázaro-Gredilla 2015):
    ∇_φi E f = E p_i (1 − p_i) (f(z_i = 1) − f(z_i = 0)), with φ the logits.

    Much quieter than `DisARM`, whose signal is what all variables do together. It needs what each flip changes: f is
    all of the bound, tried with one variable after another flipped. Where the target knows without trying (`flips`),
    the rest of the bound, log q̂(z) − log q(z | ξ), goes as in `DisARM`, unless K = 0 and r knows its own part too.
    """


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
