"""The kernels by their public name, `vgp.kernels`; they live with the rest of the GP algebra."""

from .gp.kernels import (
    ARD as ARD,
    AbstractKernel as AbstractKernel,
    Linear as Linear,
    Matern12 as Matern12,
    Matern32 as Matern32,
    Matern52 as Matern52,
    Separable as Separable,
)
