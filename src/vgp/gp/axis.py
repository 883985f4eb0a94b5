"""One dimension of a grid: the row of a point, and how much of its variance the inputs there explain.

All of it is to be computed in double precision (`in_double`), whatever the rest is in: at lengthscales of many points
the kernel matrix is so close to singular that in single precision the variance is off by a third of itself.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .kernels import AbstractKernel

JITTER = 1e-6  # added to the correlation matrix of every axis


class Row(NamedTuple):
    """At n points of one coordinate: weights w of the whitened outputs, and the part of the variance they explain."""

    weights: Float[Array, "n m"]
    explained: Float[Array, " n"]


class AbstractAxis(eqx.Module):
    """m evenly spaced points. Outputs t on them are learned as u with t = B u; an axis chooses its B.

    To add one give, for a kernel of one coordinate with the matrix K = correlation + jitter on the points:

    - `rows(kernel, x)`: Bᵀ K⁻¹ k(x) and k(x)ᵀ K⁻¹ k(x) at n points x;
    - `colour(kernel, u)` and `whiten(kernel, t)`: B u and B⁻¹ t, for r columns.
    """

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    count: int = eqx.field(static=True)

    @property
    def points(self) -> Float[np.ndarray, "m 1"]:
        """The points, as a kernel takes them."""
        return np.linspace(self.low, self.high, self.count)[:, None]

    @abc.abstractmethod
    def rows(self, kernel: AbstractKernel, x: Float[Array, " n"]) -> Row: ...

    @abc.abstractmethod
    def colour(self, kernel: AbstractKernel, u: Float[Array, "m r"]) -> Float[Array, "m r"]: ...

    @abc.abstractmethod
    def whiten(self, kernel: AbstractKernel, t: Float[Array, "m r"]) -> Float[Array, "m r"]: ...


class DenseAxis(AbstractAxis):
    """B is the Cholesky factor of K: m³ work once, m² for each point."""

    def _factor(self, kernel):
        # Made of constants only, so that the compiler sees one factor in all the calls of a step, and makes it once.
        gram = kernel.correlation(self.points, self.points) + JITTER * np.eye(self.count)
        return jnp.linalg.cholesky(gram, symmetrize_input=False)

    def rows(self, kernel, x):
        cross = kernel.correlation(self.points, x[:, None])
        weights = solve_triangular(self._factor(kernel), cross, lower=True)
        return Row(weights.T, jnp.sum(weights**2, axis=0))

    def colour(self, kernel, u):
        return self._factor(kernel) @ u

    def whiten(self, kernel, t):
        return solve_triangular(self._factor(kernel), t, lower=True)
