"""The mean-field q(z | f): what the Gaussian process drives, and whether f can be integrated out.

Everything here is in whitened units: the family shifts and scales afterwards.
"""

import abc
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

REACH = 6.0  # a driven scale stays within e^±6 of its centre


class AbstractMeanField(eqx.Module):
    """A factorised q(z | f). To add one, subclass and give:

    - `blocks`: how many GP outputs feed one latent variable. The first block is f itself, a draw of the
      process; the mean of any further block arrives as `drive`;
    - `given(f, drive)`: the distribution q(z | f);
    - `integrated(mean, variance, drive)`: q(z | ξ) with f ~ N(mean, variance) integrated out, or a
      `TypeError` where that has no closed form.
    """

    blocks: eqx.AbstractVar[int]

    @abc.abstractmethod
    def given(self, f: Float[Array, "*n d"], drive: Float[Array, "*n d"] | None) -> dist.Independent: ...

    @abc.abstractmethod
    def integrated(
        self, mean: Float[Array, "*n d"], variance: Float[Array, "*n 1"], drive: Float[Array, "*n d"] | None
    ) -> dist.Independent: ...


class Normal(AbstractMeanField):
    """q(z_i | f_i) = N(f_i, s_i²).

    With `scale="learned"` s is one number per latent variable. With `scale="gp"` a second block of GP
    outputs g drives it, s_i(ξ) = s_i exp(b tanh(g_i(ξ) / b)) with b = 6, so that no scale can run away: it
    uses the process's *mean*, and f can still be integrated out exactly.
    """

    log_scale: Float[Array, " d"]
    blocks: int = eqx.field(static=True)

    def __init__(self, dim: int, scale: Literal["learned", "gp"] = "learned", initial: float = 1.0):
        if scale not in ("learned", "gp"):
            raise ValueError(f"The scale of a Normal mean-field is 'learned' or 'gp', got {scale!r}.")
        if not initial > 0:
            raise ValueError(f"The initial scale of a Normal mean-field must be positive, got {initial}.")
        self.log_scale = jnp.asarray(np.full(dim, np.log(initial)), float)
        self.blocks = 2 if scale == "gp" else 1

    def scale(self, drive: Float[Array, "*n d"] | None) -> Float[Array, "..."]:
        """The standard deviation s, in whitened units."""
        if drive is None:
            return jnp.exp(self.log_scale)
        return jnp.exp(self.log_scale + REACH * jnp.tanh(drive / REACH))

    def given(self, f, drive):
        return dist.Normal(f, jnp.broadcast_to(self.scale(drive), f.shape)).to_event(1)

    def integrated(self, mean, variance, drive):
        return dist.Normal(mean, jnp.sqrt(variance + self.scale(drive) ** 2)).to_event(1)


class Delta(AbstractMeanField):
    """The point mass q(z_i | f_i) = δ(z_i − f_i): z is the draw of the process itself."""

    blocks: int = eqx.field(static=True, default=1)

    def given(self, f, drive):
        raise TypeError(
            "A point mass q(z | f) has no density, so this bound does not apply; "
            "use vgp.bounds.Collapsed() or vgp.bounds.Importance(), which integrate f out."
        )

    def integrated(self, mean, variance, drive):
        return dist.Normal(mean, jnp.broadcast_to(jnp.sqrt(variance), mean.shape)).to_event(1)
