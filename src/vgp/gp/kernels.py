"""Covariance functions. Distances are L2 and come from one matrix product."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

HIGHEST = jax.lax.Precision.HIGHEST  # TF32 products would cost three digits of every distance


class AbstractKernel(eqx.Module):
    """A covariance function k(x, y) = variance * correlation(x, y).

    The overall scale is kept apart so that a variance of zero is a kernel like any other: the conditional
    mean of a Gaussian process does not depend on it. To add a kernel, subclass and give:

    - `variance`, the scale σ², which may be zero;
    - `correlation(x, y)`, the (n, m) matrix of k / σ² between two sets of points;
    - `correlation_diagonal(x)`, the n values of k(x, x) / σ²;
    - `relevance(c)`, how much each of the c coordinates matters (used for the effective dimension).

    Kernels add and multiply: `Linear() + 0.1 * ARD()` is written `Linear() + ARD(variance=0.1)`.
    """

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def correlation(self, x: Float[Array, "n c"], y: Float[Array, "m c"]) -> Float[Array, "n m"]: ...

    @abc.abstractmethod
    def correlation_diagonal(self, x: Float[Array, "n c"]) -> Float[Array, " n"]: ...

    @abc.abstractmethod
    def relevance(self, c: int) -> Float[Array, " c"]: ...

    def along(self, c: int) -> "list[AbstractKernel] | None":
        """Kernels of one coordinate each whose correlations multiply to this one; None where it is no such product.

        A kernel that depends on the difference of two points only, and is such a product, has structure on a grid.
        """
        return None

    def __call__(self, x: Float[Array, "n c"], y: Float[Array, "m c"]) -> Float[Array, "n m"]:
        """The covariance matrix between two sets of points."""
        return self.variance * self.correlation(x, y)

    def gram(self, x: Float[Array, "n c"]) -> Float[Array, "n n"]:
        """The correlation matrix of one set of points, with its diagonal exact."""
        eye = jnp.eye(x.shape[0], dtype=bool)
        return jnp.where(eye, jnp.diag(self.correlation_diagonal(x)), self.correlation(x, x))

    def __add__(self, other: "AbstractKernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel") -> "Product":
        return Product(self, other)


def squared_distance(x: Float[Array, "n c"], y: Float[Array, "m c"]) -> Float[Array, "n m"]:
    """‖x − y‖² as one matrix product, never an (n, m, c) array; one coordinate by itself loses no digit."""
    if x.shape[1] == 1:
        return (x - y.T) ** 2
    cross = jnp.matmul(x, y.T, precision=HIGHEST)
    return jnp.maximum(jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)[None, :] - 2 * cross, 0.0)


def _positive_root(value, name: str) -> Array:
    if isinstance(value, Tracer):
        return jnp.sqrt(value)
    value = np.asarray(value, float)
    if (value < 0).any():
        raise ValueError(f"A kernel's {name} must be zero or positive, got {value}; pass a non-negative number.")
    return jnp.asarray(np.sqrt(value), float)


class _Stationary(AbstractKernel):
    # σ and √ω are stored, so that both can be exactly zero with finite gradients.
    root_variance: Float[Array, ""]
    root_weights: Float[Array, "..."]

    def __init__(self, variance=0.05, weights=1.0):
        self.root_variance = _positive_root(variance, "variance")
        self.root_weights = _positive_root(weights, "weights")

    @property
    def variance(self) -> Float[Array, ""]:
        return self.root_variance**2

    @property
    def weights(self) -> Float[Array, "..."]:
        """The weights ω of the coordinates."""
        return self.root_weights**2

    @abc.abstractmethod
    def profile(self, r2: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The correlation as a function of the weighted squared distance."""

    def correlation(self, x, y):
        return self.profile(squared_distance(x * self.root_weights, y * self.root_weights))

    def correlation_diagonal(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def relevance(self, c):
        return jnp.broadcast_to(self.weights, (c,))

    def along(self, c):
        return [self] if c == 1 else None


class ARD(_Stationary):
    """Eq. `ard`: k(s, s') = σ² exp(−½ Σ_j ω_j (s_j − s'_j)²), with variance σ² and weights ω."""

    def profile(self, r2):
        return jnp.exp(-0.5 * r2)

    def along(self, c):
        roots = jnp.broadcast_to(self.root_weights, (c,))
        return [eqx.tree_at(lambda k: k.root_weights, self, roots[i]) for i in range(c)]


def _distance(r2):
    # The square root with a zero gradient at zero, where Matérn kernels with ν > 1/2 are flat.
    safe = jnp.where(r2 > 0, r2, 1.0)
    return jnp.where(r2 > 0, jnp.sqrt(safe), 0.0)


class Matern12(_Stationary):
    """Matérn-1/2: σ² exp(−r), r² = Σ_j ω_j (s_j − s'_j)²."""

    def profile(self, r2):
        return jnp.exp(-_distance(r2))


class Matern32(_Stationary):
    """Matérn-3/2: σ² (1 + √3 r) exp(−√3 r)."""

    def profile(self, r2):
        r = jnp.sqrt(3.0) * _distance(r2)
        return (1 + r) * jnp.exp(-r)


class Matern52(_Stationary):
    """Matérn-5/2: σ² (1 + √5 r + 5r²/3) exp(−√5 r)."""

    def profile(self, r2):
        r = jnp.sqrt(5.0) * _distance(r2)
        return (1 + r + r**2 / 3) * jnp.exp(-r)


class Linear(AbstractKernel):
    """The linear kernel k(s, s') = σ² Σ_j ω_j s_j s'_j."""

    root_variance: Float[Array, ""]
    root_weights: Float[Array, "..."]

    def __init__(self, variance=1.0, weights=1.0):
        self.root_variance = _positive_root(variance, "variance")
        self.root_weights = _positive_root(weights, "weights")

    @property
    def variance(self) -> Float[Array, ""]:
        return self.root_variance**2

    def correlation(self, x, y):
        return jnp.matmul(x * self.root_weights**2, y.T, precision=HIGHEST)

    def correlation_diagonal(self, x):
        return jnp.sum((x * self.root_weights) ** 2, 1)

    def relevance(self, c):
        return jnp.broadcast_to(self.root_weights**2, (c,))


class Sum(AbstractKernel):
    """k₁ + k₂."""

    first: AbstractKernel
    second: AbstractKernel

    @property
    def variance(self) -> Float[Array, ""]:
        return self.first.variance + self.second.variance

    def _shares(self):
        # Equal shares where both variances are zero: the limit of shrinking them together.
        total = self.variance
        share = jnp.where(total > 0, self.first.variance / jnp.where(total > 0, total, 1.0), 0.5)
        return share, 1 - share

    def correlation(self, x, y):
        first, second = self._shares()
        return first * self.first.correlation(x, y) + second * self.second.correlation(x, y)

    def correlation_diagonal(self, x):
        first, second = self._shares()
        return first * self.first.correlation_diagonal(x) + second * self.second.correlation_diagonal(x)

    def relevance(self, c):
        first, second = self._shares()
        return first * self.first.relevance(c) + second * self.second.relevance(c)

    def along(self, c):
        fits = c == 1 and self.first.along(c) is not None and self.second.along(c) is not None
        return [self] if fits else None


class Product(AbstractKernel):
    """k₁ k₂."""

    first: AbstractKernel
    second: AbstractKernel

    @property
    def variance(self) -> Float[Array, ""]:
        return self.first.variance * self.second.variance

    def correlation(self, x, y):
        return self.first.correlation(x, y) * self.second.correlation(x, y)

    def correlation_diagonal(self, x):
        return self.first.correlation_diagonal(x) * self.second.correlation_diagonal(x)

    def relevance(self, c):
        return self.first.relevance(c) + self.second.relevance(c)

    def along(self, c):
        first, second = self.first.along(c), self.second.along(c)
        if first is None or second is None:
            return None
        return [Product(one, other) for one, other in zip(first, second, strict=True)]


class Separable(AbstractKernel):
    """k(s, s') = Π_j k_j(s_j, s'_j): one kernel for each coordinate, for a grid in several dimensions."""

    each: tuple[AbstractKernel, ...]

    def __init__(self, *each: AbstractKernel):
        self.each = each

    @property
    def variance(self) -> Float[Array, ""]:
        return jnp.prod(jnp.stack([kernel.variance for kernel in self.each]))

    def _checked(self, c):
        if c != len(self.each):
            raise ValueError(f"Separable has a kernel for each of {len(self.each)} coordinates, got points of {c}.")

    def correlation(self, x, y):
        self._checked(x.shape[1])
        parts = [kernel.correlation(x[:, i : i + 1], y[:, i : i + 1]) for i, kernel in enumerate(self.each)]
        return jnp.prod(jnp.stack(parts), axis=0)

    def correlation_diagonal(self, x):
        parts = [kernel.correlation_diagonal(x[:, i : i + 1]) for i, kernel in enumerate(self.each)]
        return jnp.prod(jnp.stack(parts), axis=0)

    def relevance(self, c):
        self._checked(c)
        return jnp.stack([kernel.relevance(1)[0] for kernel in self.each])

    def along(self, c):
        self._checked(c)
        parts = [kernel.along(1) for kernel in self.each]
        return None if None in parts else [part[0] for part in parts if part is not None]
