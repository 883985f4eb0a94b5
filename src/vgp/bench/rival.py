"""The same conditional mean and variance by GPyTorch's grid kernel, where it is installed (`pip install gpytorch`).

Both get the same grid, kernel, jitter, outputs and points, the latter in double precision with GPyTorch. Its conjugate
gradients stop by default at a residual that leaves no digit of the variance right; here they go on to `TOLERANCE`, with
which the answer comes close to ours. A dense solve says how close each of them is to the truth.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..gp.axis import JITTER

TOLERANCE = 1e-6
MOST = 10_000  # iterations
WINDOW = 1000  # inputs next to a point that the reference looks at; what is further away has no weight that counts


def installed() -> str | None:
    """The version that is installed, if any."""
    try:
        import gpytorch
    except ImportError:
        return None
    return gpytorch.__version__


def their_solve(
    points: Float[np.ndarray, " m"], lengthscale: float, outputs: Float[np.ndarray, " m"], xi: Float[np.ndarray, " n"]
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A function that gives mean and variance at ξ: one solve of the Toeplitz system for all points."""
    import gpytorch
    import torch

    # Their linear algebra is a package of its own, which shares these settings.
    settings = gpytorch.settings
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    grid = torch.from_numpy(points)
    grid_kernel = gpytorch.kernels.GridKernel(kernel, [grid]).double()
    at, t = torch.from_numpy(xi)[:, None], torch.from_numpy(outputs)

    def call():
        with (
            torch.no_grad(),
            settings.cg_tolerance(TOLERANCE),
            settings.max_cg_iterations(MOST),
            settings.use_toeplitz(True),
        ):
            matrix = grid_kernel(grid[:, None]).add_jitter(JITTER)
            cross = kernel(grid[:, None], at).to_dense()
            solved = matrix.solve(cross)
            return (solved.T @ t).numpy(), 1 - (cross * solved).sum(0).numpy()

    return call


def reference(points, lengthscale, outputs, xi) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance from the inputs near each point, by a dense solve in double precision."""
    means, variances = [], []
    for x in xi:
        near = np.argsort(np.abs(points - x))[:WINDOW]
        s = points[near]
        gram = np.exp(-0.5 * ((s[:, None] - s) / lengthscale) ** 2) + JITTER * np.eye(len(s))
        cross = np.exp(-0.5 * ((s - x) / lengthscale) ** 2)
        solved = np.linalg.solve(gram, cross)
        means.append(solved @ outputs[near])
        variances.append(1 - solved @ cross)
    return np.array(means), np.array(variances)
