"""Mean-fields of discrete variables: the Gaussian process gives what their probabilities are made from."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from .base import AbstractMeanField, bent
from .factors import Factors
from .shaped import AbstractShaped, Extra

SURE = 30.0  # probits stay within ±30, where a probability is 10⁻¹⁹⁷ from 0 or 1, so that its logarithm is finite
RATES = 12.0  # logarithms of rates stay within ±12


class Bernoulli(AbstractMeanField):
    """q(z_i = 1 | f_i) = Φ(f_i), the standard normal distribution function, or with `link="logit"` its logistic one.

    A probit integrates: with f_i ~ N(m, v), q(z_i = 1 | ξ) = Φ(m / √(1 + v)).
    """

    support = constraints.boolean
    link: str = eqx.field(static=True)

    def __init__(self, link: Literal["probit", "logit"] = "probit"):
        if link not in ("probit", "logit"):
            raise ValueError(f"The link of a Bernoulli mean-field is 'probit' or 'logit', got {link!r}.")
        self.link = link

    @property
    def collapses(self):
        return self.link == "probit"

    @property
    def linearises(self):
        return self.collapses

    def given(self, f, drive):
        return Factors((dist.BernoulliLogits(probit_logits(f) if self.link == "probit" else bent(f, SURE)),))

    def integrated(self, mean, variance, drive):
        if self.link != "probit":
            return super().integrated(mean, variance, drive)
        return self.given(mean / jnp.sqrt(1 + variance), drive)

    def seen(self, z):
        return 2 * z - 1

    def slopes(self, q, e):
        (block,) = q.blocks
        a = block.logits
        # The root of p (1 − p), whose gradient is finite also where that rounds to zero.
        root = jnp.exp(-0.5 * (jax.nn.softplus(a) + jax.nn.softplus(-a)))
        return a, 0.5 * (e + 1) - jax.nn.sigmoid(a), root


def probit_logits(a: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The logit of Φ(a)."""
    a = bent(a, SURE)
    return log_ndtr(a) - log_ndtr(-a)


class Categorical(AbstractMeanField):
    """z_i in {0, …, C − 1} by breaking a stick: q(z_i = k | f) = Φ(f_ik + b_k) Π_{j<k} Φ(−f_ij − b_j).

    A variable has C − 1 outputs: those of the first break of all variables, then those of the second, and so on.
    The b are such that all classes are equally likely at f = 0. The pieces are independent given ξ, so that f
    integrates as it does for a `Bernoulli`.
    """

    link = "probit"  # of each break of the stick
    classes: int = eqx.field(static=True)

    def __init__(self, classes: int):
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
            raise ValueError(f"The classes of a Categorical mean-field are a whole number, 2 or more, got {classes!r}.")
        self.classes = classes

    @property
    def collapses(self):
        return True

    @property
    def supports(self):
        return [(constraints.integer_interval(0, self.classes - 1), None)]

    def outputs(self, dim):
        return (self.classes - 1) * dim, 0

    def given(self, f, drive):
        return Factors((dist.CategoricalLogits(self._log_probs(f, 0.0)),))

    def integrated(self, mean, variance, drive):
        return Factors((dist.CategoricalLogits(self._log_probs(mean, variance)),))

    def _log_probs(self, f, variance) -> Float[Array, "*n d c"]:
        breaks = self.classes - 1
        start = ndtri(1 / (self.classes - jnp.arange(breaks, dtype=f.dtype)))
        pieces = f.reshape(*f.shape[:-1], breaks, -1) + start[:, None]
        a = bent(pieces / jnp.sqrt(1 + jnp.asarray(variance)[..., None]), SURE)
        a = jnp.swapaxes(a, -1, -2)
        left = jnp.cumsum(log_ndtr(-a), axis=-1)
        before = jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)
        return before + jnp.concatenate([log_ndtr(a), jnp.zeros_like(left[..., :1])], axis=-1)

    def features(self, dim):
        return self.classes * dim

    def seen(self, z):
        whole = (z[..., None] == jnp.arange(self.classes)).astype(z.dtype) - 1 / self.classes
        return whole.reshape(*z.shape[:-1], -1)


class AbstractCount(AbstractMeanField):
    """Variables in {0, 1, 2, …}."""

    support = constraints.nonnegative_integer
    link = "log"

    def seen(self, z):
        return jnp.log1p(z)


class Poisson(AbstractCount):
    """q(z_i | f_i) = Poisson with the rate exp(f_i), f_i bent to stay within ± `RATES`: 18.9 at f_i = 3, not 20.1."""

    def given(self, f, drive):
        return Factors((dist.Poisson(jnp.exp(bent(f, RATES))),))


class Geometric(AbstractCount):
    """q(z_i = k | f_i) = p (1 − p)ᵏ with the mean (1 − p) / p = exp(f_i)."""

    def given(self, f, drive):
        return Factors((dist.GeometricLogits(-bent(f, RATES)),))


class NegativeBinomial(AbstractShaped):
    """q(z_i | f_i) with the mean exp(f_i) and a concentration of its own; see `AbstractShaped`."""

    support = constraints.nonnegative_integer
    link = "log"

    def __init__(self, dim: int, extra: Extra = "learned", initial: float = 1.0):
        super().__init__(dim, extra, initial)

    def given(self, f, drive):
        return Factors((dist.NegativeBinomial2(jnp.exp(bent(f, RATES)), self.extra(f, drive)),))

    def seen(self, z):
        return jnp.log1p(z)
