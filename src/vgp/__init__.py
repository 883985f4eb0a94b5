"""The variational Gaussian process: a variational family for posterior approximation, on JAX."""

from . import (
    auxiliary as auxiliary,
    bounds as bounds,
    calibration as calibration,
    families as families,
    gradients as gradients,
    kernels as kernels,
    meanfield as meanfield,
    optimizers as optimizers,
    stopping as stopping,
)
from .families import VGP as VGP
from .fit import fit as fit
from .gp import Grid as Grid
from .result import Fit as Fit, load as load
from .target import Target as Target
from .targets import Stream as Stream, from_numpyro as from_numpyro, from_pymc as from_pymc, target as target

__version__ = "0.1.0"
