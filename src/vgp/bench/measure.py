"""Time, memory and exponents.

Two kinds of memory are told. `held` is what the compiled program needs for its arguments, results and everything
between, as the compiler has laid it out: the same on every run, but without what a library that it calls, such as the
FFT, takes for itself. `peak` is the most that was really taken: on a CPU by the whole process, imports included, and on
another device by its arrays.
"""

import resource
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np


def seconds(call: Callable[[], object], repeats: int = 5, enough: float = 20.0) -> float:
    """The median time of a call that has been made once before; fewer repeats where these take more than `enough`."""
    jax.block_until_ready(call())
    times = []
    while len(times) < repeats and sum(times) < enough:
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def compiled(function: Callable, *arguments):
    """The program for one thread of a CPU, as `vgp.fit` runs small steps; called under `threadpool_limits(1)`.

    On a machine that does other work too, threads that wait for each other would be most of the time.
    """
    options = {"xla_cpu_multi_thread_eigen": False} if jax.default_backend() == "cpu" else None
    return jax.jit(function).lower(*arguments).compile(options)


def held(program) -> float:
    """Megabytes of a compiled program: arguments, results and what lies between."""
    memory = program.memory_analysis()
    return (memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes) / 1e6


def peak() -> float:
    """The most megabytes that have been in use up to now: of the process, or of a device that is not the CPU."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size with which the values grow, by least squares of their logarithms."""
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
