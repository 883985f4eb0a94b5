"""Gaussian mean-fields, and the point mass."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from .base import REACH, AbstractMeanField, at_least_one, bent, same_size


class Normal(AbstractMeanField):
    """q(z_i | f_i) = N(f_i, s_i²).

    With `scale="learned"` s is one number per latent variable. With `scale="gp"` a second block of GP
    outputs g drives it, s_i(ξ) = s_i exp(b tanh(g_i(ξ) / b)) with b = 6, so that no scale can run away: it
    uses the process's *mean*, and f can still be integrated out exactly.
    """

    located = True
    log_scale: Float[Array, " d"]
    driven: bool = eqx.field(static=True)

    def __init__(self, dim: int, scale: Literal["learned", "gp"] = "learned", initial: float = 1.0):
        if scale not in ("learned", "gp"):
            raise ValueError(f"The scale of a Normal mean-field is 'learned' or 'gp', got {scale!r}.")
        at_least_one(self, dim)
        if not initial > 0:
            raise ValueError(f"The initial scale of a Normal mean-field must be positive, got {initial}.")
        self.log_scale = jnp.asarray(np.full(dim, np.log(initial)), float)
        self.driven = scale == "gp"

    @property
    def collapses(self):
        return True

    @property
    def linearises(self):
        return True

    def outputs(self, dim):
        same_size(self, self.log_scale.shape[-1], dim)
        return dim, dim if self.driven else 0

    def scale(self, drive: Float[Array, "*n d"] | None) -> Float[Array, "..."]:
        """The standard deviation s, in whitened units."""
        if drive is None:
            return jnp.exp(self.log_scale)
        return jnp.exp(self.log_scale + bent(drive, REACH))

    def given(self, f, drive):
        return dist.Normal(f, jnp.broadcast_to(self.scale(drive), f.shape)).to_event(1)

    def integrated(self, mean, variance, drive):
        return dist.Normal(mean, jnp.sqrt(variance + self.scale(drive) ** 2)).to_event(1)

    def slopes(self, q, e):
        loc, scale = q.base_dist.loc, q.base_dist.scale
        return loc, (e - loc) / scale**2, 1 / scale


class Delta(AbstractMeanField):
    """The point mass q(z_i | f_i) = δ(z_i − f_i): z is the draw of the process itself."""

    located = True

    @property
    def collapses(self):
        return True

    def given(self, f, drive):
        raise TypeError(
            "A point mass q(z | f) has no density, so this bound does not apply; "
            "use vgp.bounds.Collapsed() or vgp.bounds.Importance(), which integrate f out."
        )

    def integrated(self, mean, variance, drive):
        return dist.Normal(mean, jnp.broadcast_to(jnp.sqrt(variance), mean.shape)).to_event(1)
