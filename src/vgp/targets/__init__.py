"""Ways to say what the posterior is."""

from .function import FunctionTarget as FunctionTarget, target as target
