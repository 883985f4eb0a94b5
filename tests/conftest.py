"""Shapes are checked in every test, and small linear algebra stays on one thread beside its neighbours."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The tests compile much and run little: unoptimised, they take a quarter less time, and another third less without the
# emitters of fused loops, where there is a choice. XLA ends the process at a flag that it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith(("0.9.", "0.10.")) else ""),
)

from jaxtyping import install_import_hook

with install_import_hook("vgp", "beartype.beartype"):
    import vgp  # noqa: F401

import jax
import jaxtyping
import pytest

MOST = 30_000  # mappings of memory that a process of tests may hold: the system's limit is often 65,530


@pytest.fixture(autouse=True)
def room_for_programs():
    """Forgets compiled programs before there are so many that the system has no room for another, and XLA crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def as_users_run_it():
    """Without the shape checks of the tests, which would speak before the library's own sentences."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def compiled():
    """A name for each program that XLA compiled since this was first asked for."""
    names = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: names.append(name) if "backend_compile" in name else None
    )
    jax.jit(lambda x: x + 1)(1.0)
    assert names  # or it would never notice anything
    return names


@pytest.fixture
def key():
    return jax.random.key(0)
