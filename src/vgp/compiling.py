"""How programs are compiled: `once` for what runs a single time, `alone` for many small operations on the CPU."""

from typing import Any

import equinox as eqx

_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit


def once(function):
    """Compiled without optimisation: for set-up work, which would take longer to compile well than to run."""
    return _jit(function, compiler_options={"xla_backend_optimization_level": 0})


def alone(function, **options):
    """Compiled to run on one CPU thread: where operations are small, sharing them out costs more than it saves."""
    return _jit(function, compiler_options={"xla_cpu_multi_thread_eigen": False}, **options)
