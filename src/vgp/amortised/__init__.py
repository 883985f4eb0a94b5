"""Inference networks: x ↦ the local part of a family, (x, z) ↦ the auxiliary model."""

from .base import AbstractEncoder as AbstractEncoder, Given as Given
from .chain import Chain as Chain
from .networks import Dense as Dense, Trunk as Trunk
from .vgp import AmortisedVGP as AmortisedVGP
