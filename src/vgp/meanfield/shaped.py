"""Mean-fields with a second number, which is learned or driven by the process."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import REACH, AbstractMeanField, at_least_one, bent, same_size

Extra = Literal["learned", "gp"]


class AbstractShaped(AbstractMeanField):
    """A distribution with a mean, which f drives, and something else: a shape, a concentration, a scale.

    With `extra="learned"` it is one number per variable; with "gp" the mean of a second block of outputs multiplies it,
    by e^±6 at most.
    """

    log_extra: Float[Array, " d"]
    driven: bool = eqx.field(static=True)

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0):
        if extra not in ("learned", "gp"):
            raise ValueError(f"The extra of a {type(self).__name__} mean-field is 'learned' or 'gp', got {extra!r}.")
        at_least_one(self, dim)
        if not initial > 0:
            raise ValueError(
                f"The initial extra of a {type(self).__name__} mean-field must be positive, got {initial}."
            )
        self.log_extra = jnp.asarray(np.full(dim, np.log(initial)), float)
        self.driven = extra == "gp"

    def outputs(self, dim):
        same_size(self, self.log_extra.shape[-1], dim)
        return dim, dim if self.driven else 0

    def extra(self, f: Float[Array, "*n d"], drive: Float[Array, "*n d"] | None) -> Float[Array, "*n d"]:
        """The second number of every variable."""
        log_extra = self.log_extra if drive is None else self.log_extra + bent(drive, REACH)
        return jnp.broadcast_to(jnp.exp(log_extra), f.shape)
