"""Shapes are checked in every test, and small linear algebra stays on one thread beside its neighbours."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The tests compile much and run little: unoptimised, they take a quarter less time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

from jaxtyping import install_import_hook

with install_import_hook("vgp", "beartype.beartype"):
    import vgp  # noqa: F401

import jax
import pytest


@pytest.fixture
def key():
    return jax.random.key(0)
