"""Ways to say what the posterior is."""

from .function import FunctionTarget as FunctionTarget, target as target
from .numpyro import NumpyroTarget as NumpyroTarget, from_numpyro as from_numpyro
from .pymc import PymcTarget as PymcTarget, from_pymc as from_pymc
from .stream import Stream as Stream, StreamTarget as StreamTarget
