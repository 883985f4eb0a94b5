"""Mean-fields q(z | f): what the Gaussian process drives, and whether f can be integrated out."""

from .base import AbstractMeanField as AbstractMeanField
from .continuous import (
    Beta as Beta,
    Exponential as Exponential,
    Gamma as Gamma,
    LogNormal as LogNormal,
    StudentT as StudentT,
)
from .discrete import (
    Bernoulli as Bernoulli,
    Categorical as Categorical,
    Geometric as Geometric,
    NegativeBinomial as NegativeBinomial,
    Poisson as Poisson,
)
from .factors import Factors as Factors
from .matching import matching as matching
from .mixed import Mixed as Mixed
from .normal import Delta as Delta, Normal as Normal
