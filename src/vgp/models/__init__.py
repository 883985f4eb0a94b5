"""The paper's models: p(x, z) with learned parameters, each giving a target per batch of data."""

from .base import AbstractModel as AbstractModel, Batch as Batch
from .dlgm import DLGM as DLGM
from .draw import DRAW as DRAW
from .exponential import DEF as DEF
from .sbn import SBN as SBN
