"""How many operations a training step starts on an H200, counted without one.

    pip install 'jax[cuda13]'; python benchmarks/launches.py [ROW ...]

A small operation takes as long on a GPU as its launch, so their number is the floor of a step of DRAW or of a small
network. XLA compiles for a GPU that is described to it; this reads the program. Its search for the quickest kernels
needs a device, and is left out, as in `runs.py`.
"""

import os
import sys

FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cublaslt=false"
os.environ.update(XLA_FLAGS=FLAGS, CUDA_VISIBLE_DEVICES="-1", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1")

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import record  # noqa: E402
from draw import launches  # noqa: E402
from jax.experimental import topologies  # noqa: E402

from vgp import loop  # noqa: E402
from vgp.data import Bits  # noqa: E402
from vgp.experiments import parameters, rows, step  # noqa: E402
from vgp.experiments.optimizer import optimizer_of  # noqa: E402

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 62914560
  clock_rate_ghz: 1.98 device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""
TURN = 20  # steps in a program, as an epoch has many
ROWS = {"dlgm1-vae": 0, "dlgm1-vgp": 8, "dlgm1-vgp-shared": 8, "sbn1-linear": 0, "sbn1-linear-vgp": 0, "draw": 0}
ROWS |= {"draw-vgp": 0}  # each with its K


def compiled(row: rows.Row, inner: int) -> str:
    """The program of `TURN` training steps on MNIST, as XLA compiles it for the device."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    place = jax.sharding.NamedSharding(topologies.make_mesh(topology, (1,), ("x",)), jax.sharding.PartitionSpec())
    with jax.default_device(jax.devices("cpu")[0]):
        pixels = Bits.pack(jr.uniform(jr.key(0), (row.batch * TURN, 784)) < 0.13)
        flat, together = parameters.taken_apart(rows.build(row, (28, 28), pixels.mean(), jr.key(0)))
        optimizer = optimizer_of(row, together.layout)
        state = jax.tree.map(lambda x: x[None], loop.init(flat, optimizer, jr.key(1), 10**6))
    rest = row.make_gradient(), optimizer, row.batch, 0, row.optimizer != "rmsprop"
    arrays, static = eqx.partition(step.TrainStep(pixels, together, row.make_bound(inner), *rest), eqx.is_array)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), (arrays, state))
    usual, jax.default_backend = jax.default_backend, lambda: "gpu"  # what the library asks where it has two ways
    try:
        lowered = jax.jit(lambda arrays, state: loop._turn((eqx.combine(arrays, static), TURN), state)).lower(*shapes)
    finally:
        jax.default_backend = usual
    return lowered.compile().as_text()


def main() -> None:
    names = sys.argv[1:] or ROWS
    figures = []
    for name in names:
        row = rows.find(name)
        inner = ROWS.get(name, row.inner[-1][1])
        figures.append({"row": name, "inner": inner, "batch": row.batch})
        figures[-1]["launches"] = launches(compiled(row, inner)) / TURN
        print(f"{name:24s} K = {inner}: {figures[-1]['launches']:.0f} launches a step", flush=True)
    if not sys.argv[1:]:
        record.write("launches", {"turn": TURN, "xla_flags": FLAGS, "device": "NVIDIA H200, described"}, figures)


if __name__ == "__main__":
    main()
