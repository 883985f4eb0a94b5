"""What a mean-field q(z | f) is, and how to add one."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

REACH = 6.0  # a driven scale stays within e^±6 of its centre


class AbstractMeanField(eqx.Module):
    """A factorised q(z | f). To add one, subclass and give:

    - `outputs(dim)`, how many GP outputs feed `dim` variables: those that are f itself, a draw of the process, and
      those whose mean arrives as `drive`;
    - `given(f, drive)`: the distribution q(z | f);
    - `integrated(mean, variance, drive)`: q(z | ξ) with f ~ N(mean, variance) integrated out, where `collapses` says
      that this has a closed form;
    - `support`, a numpyro constraint of one variable, and `link`, by name, of what f is: of the mean, or of a median;
    - unless it is `located`, `features(dim)` and `seen(z)`: how many numbers the auxiliary model sees of z, and which;
    - where `linearises` is true, `slopes(q, e)`, for an auxiliary model that follows the warp.

    A `located` one is q of w with z = loc + scale w: the family shifts and scales afterwards, and the auxiliary model
    sees w. The others are of z as it is, and may be discrete.
    """

    located: ClassVar[bool] = False
    support: ClassVar[constraints.Constraint] = constraints.real
    link: ClassVar[str] = "identity"

    @property
    def collapses(self) -> bool:
        """Can f be integrated out in closed form?"""
        return False

    @property
    def linearises(self) -> bool:
        """Does it have `slopes`?"""
        return False

    @property
    def supports(self) -> list[tuple[constraints.Constraint, int | None]]:
        """The support of each block of variables and their number, None if there is but one block."""
        return [(self.support, None)]

    @property
    def reparameterised(self) -> bool:
        """Can the draws of all its variables be followed by a gradient?"""
        return not any(support.is_discrete for support, _ in self.supports)

    def outputs(self, dim: int) -> tuple[int, int]:
        return dim, 0

    @abc.abstractmethod
    def given(self, f: Float[Array, "*n p"], drive: Float[Array, "*n q"] | None) -> Any: ...

    def integrated(self, mean: Float[Array, "*n p"], variance: Float[Array, "*n 1"], drive) -> Any:
        raise TypeError(
            f"f cannot be integrated out of a {type(self).__name__} mean-field in closed form; use "
            "vgp.bounds.Importance(), which keeps it."
        )

    def features(self, dim: int) -> int:
        return dim

    def seen(self, z: Float[Array, "*n d"]) -> Float[Array, "*n e"]:
        return z

    def slopes(self, q: Any, e: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], ...]:
        """For q of `integrated` and what r sees of z: the parameters a that the warp moves, ∂ log q / ∂a, and the
        root of their Fisher information.
        """
        raise NotImplementedError


def outputs_of(meanfield: AbstractMeanField, dim: int) -> tuple[int, int]:
    """How many outputs feed `dim` variables; refuses what is no mean-field."""
    if not isinstance(meanfield, AbstractMeanField):
        raise TypeError(f"meanfield must be one of vgp.meanfield, such as Bernoulli(), got {meanfield!r}.")
    return meanfield.outputs(dim)


def at_least_one(meanfield: AbstractMeanField, dim: int) -> None:
    """Refuses a number of variables that is none."""
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise ValueError(f"A {type(meanfield).__name__} mean-field is of 1 or more variables, got {dim!r} of them.")


def same_size(meanfield: AbstractMeanField, own: int, dim: int) -> None:
    """Refuses a mean-field of `own` variables for a family of `dim`."""
    if own != dim:
        raise ValueError(f"This {type(meanfield).__name__} mean-field is of {own} variables, and the family of {dim}.")


def bent(x: Float[Array, "*n"], reach: float) -> Float[Array, "*n"]:
    """x, softly kept within ± `reach`: reach · tanh(x / reach), which is x itself near zero and less than it beyond."""
    return reach * jnp.tanh(x / reach)
