"""What the tables compare with, one file each."""

from .guides import GUIDES as GUIDES, GuideFit as GuideFit, fit_guide as fit_guide
