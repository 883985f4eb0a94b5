"""Variational families, one file each; `base.py` says how to add one."""

from .base import (
    AbstractExact as AbstractExact,
    AbstractFamily as AbstractFamily,
    AbstractHierarchical as AbstractHierarchical,
)
from .factor import FactorAnalysis as FactorAnalysis
from .factorised import Factorised as Factorised
from .flow import Flow as Flow
from .gaussian import FullRank as FullRank, MeanField as MeanField
from .mixture import Mixture as Mixture
from .place import Place as Place
from .stack import Stack as Stack
from .vgp import VGP as VGP
