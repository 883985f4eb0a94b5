"""Variational families."""

from .base import AbstractExact as AbstractExact, AbstractFamily as AbstractFamily
from .base import AbstractHierarchical as AbstractHierarchical
from .vgp import VGP as VGP
