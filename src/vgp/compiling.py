"""How programs are compiled: `once` for what runs a single time, `alone` for many small operations on the CPU,
`in_order` for large ones there.
"""

from typing import Any

import equinox as eqx
import jax

_jit: Any = eqx.filter_jit  # its type leaves out what it passes on to jax.jit


def once(function):
    """Compiled without optimisation: for set-up work, which would take longer to compile well than to run."""
    return _jit(function, compiler_options={"xla_backend_optimization_level": 0})


def alone(function, **options):
    """Compiled to run on one CPU thread: where operations are small, sharing them out costs more than it saves."""
    return _jit(function, compiler_options={"xla_cpu_multi_thread_eigen": False}, **options)


def in_order(function, **options):
    """Compiled so that, on the CPU, operations start in the program's order.

    XLA's scheduler for concurrency can lock up there on a loop with several factorisations in it (seen with JAX 0.10).
    """
    option = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
    on_cpu, elsewhere = _jit(function, compiler_options=option, **options), _jit(function, **options)

    def call(*args):
        return (on_cpu if jax.default_backend() == "cpu" else elsewhere)(*args)

    return call
