"""Gaussian process algebra: kernels, the conditioner, and the one place where jitter lives."""

from .conditioner import (
    AbstractConditioner as AbstractConditioner,
    Conditioner as Conditioner,
    EachConditioner as EachConditioner,
)
from .grid import Grid as Grid
from .kernels import (
    ARD as ARD,
    AbstractKernel as AbstractKernel,
    Linear as Linear,
    Matern12 as Matern12,
    Matern32 as Matern32,
    Matern52 as Matern52,
    Separable as Separable,
)
from .structure import conditioned as conditioned, told as told
