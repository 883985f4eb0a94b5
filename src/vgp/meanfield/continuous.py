"""Mean-fields of continuous variables that are not Gaussian. All are reparameterised, the gammas implicitly."""

import equinox as eqx
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logit
from numpyro.distributions import constraints

from .base import AbstractMeanField, bent
from .factors import Factors
from .shaped import AbstractShaped, Extra

LOGS = 30.0  # logarithms of means stay within ±30


class Gamma(AbstractShaped):
    """q(z_i | f_i) with the mean exp(f_i); the extra is the shape."""

    support = constraints.positive
    link = "log"

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0):
        super().__init__(dim, extra, initial)

    def given(self, f, drive):
        shape = self.extra(f, drive)
        return Factors((dist.Gamma(shape, shape * jnp.exp(-bent(f, LOGS))),))

    def seen(self, z):
        return jnp.log(z)


class Exponential(AbstractMeanField):
    """q(z_i | f_i) with the mean exp(f_i)."""

    support = constraints.positive
    link = "log"

    def given(self, f, drive):
        return Factors((dist.Exponential(jnp.exp(-bent(f, LOGS))),))

    def seen(self, z):
        return jnp.log(z)


class LogNormal(AbstractShaped):
    """log z_i ~ N(f_i, s_i²), s being the extra. f integrates: log z_i ~ N(m, v + s_i²) for f_i ~ N(m, v)."""

    support = constraints.positive
    link = "log"

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0):
        super().__init__(dim, extra, initial)

    @property
    def collapses(self):
        return True

    def given(self, f, drive):
        return Factors((dist.LogNormal(jnp.clip(f, -LOGS, LOGS), self.extra(f, drive)),))

    def integrated(self, mean, variance, drive):
        return Factors(
            (dist.LogNormal(jnp.clip(mean, -LOGS, LOGS), jnp.sqrt(variance + self.extra(mean, drive) ** 2)),)
        )

    def seen(self, z):
        return jnp.log(z)


class Beta(AbstractShaped):
    """q(z_i | f_i) with the mean logistic(f_i); the extra is the sum of its two shapes, at the start 2."""

    support = constraints.unit_interval
    link = "logit"

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0):
        super().__init__(dim, extra, initial)

    def given(self, f, drive):
        total, f = 2 * self.extra(f, drive), bent(f, LOGS / 2)
        return Factors((dist.Beta(total / (1 + jnp.exp(-f)), total / (1 + jnp.exp(f))),))

    def seen(self, z):
        return logit(z)


class StudentT(AbstractShaped):
    """q(z_i | f_i) around f_i with `freedom` degrees of freedom; the extra is the scale."""

    freedom: float = eqx.field(static=True)

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0, freedom: float = 4.0):
        super().__init__(dim, extra, initial)
        if not freedom > 0:
            raise ValueError(f"The degrees of freedom of a StudentT mean-field must be positive, got {freedom}.")
        self.freedom = freedom

    def given(self, f, drive):
        return Factors((dist.StudentT(self.freedom, f, self.extra(f, drive)),))

    def seen(self, z):
        return jnp.arcsinh(z)
