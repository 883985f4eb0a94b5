"""What a variational family is, and how to add one."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

Latent = Any  # what generated z inside the family: ξ, or the pair (ξ, f)


class AbstractFamily(eqx.Module):
    """A distribution q(z) over `dim` real variables, with learned parameters.

    To add a family, subclass one of the two kinds below: `AbstractExact` if its density can be written
    down, `AbstractHierarchical` if z is drawn by way of a latent variable that would have to be integrated
    out. Every inexact array in the module is learned.
    """

    dim: eqx.AbstractVar[int]

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n draws of z."""


class AbstractExact(AbstractFamily):
    """A family with a density. Give `draw` and `log_prob`."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, n: int) -> "Draw": ...

    def sample(self, key, n):
        return self.draw(key, n).z

    @abc.abstractmethod
    def log_prob(self, z: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log q(z), exact."""


class Draw(NamedTuple):
    """n draws of an exact family: z, log q(z), and what of it a gradient cannot follow.

    `score` is the log-probability of the choices in z that were not reparameterised, None where all are; a
    bound uses its gradient only.
    """

    z: Float[Array, "n d"]
    log_q: Float[Array, " n"]
    score: Float[Array, " n"] | None = None


class AbstractHierarchical(AbstractFamily):
    """A family q(z) = ∫ q(z | y) q(y) dy with an auxiliary model r(y | z). Give `view` and `sample`."""

    @abc.abstractmethod
    def view(self, collapse: bool = True) -> "AbstractView":
        """The family made ready for a step: everything that does not depend on the draws is done here, once.

        With `collapse` what can be integrated out in closed form is, else the latent is kept whole.
        """


class AbstractView(eqx.Module):
    """A hierarchical family, ready to draw. Bounds see a family only through this.

    - `sample_latent(key, n)` draws y ~ q(y); a leading axis n on each leaf;
    - `log_latent(y)` is log q(y);
    - `conditional(y)` is the distribution q(z | y), over `dim` variables;
    - `posterior(z)` is the auxiliary model r(y | z): it has `sample(key, (k,))` and `log_prob(y)`.

    y may carry further leading axes (k, n); z then has shape (n, d) and broadcasts.
    """

    @abc.abstractmethod
    def sample_latent(self, key: PRNGKeyArray, n: int) -> Latent: ...

    @abc.abstractmethod
    def log_latent(self, y: Latent) -> Float[Array, "..."]: ...

    @abc.abstractmethod
    def conditional(self, y: Latent) -> dist.Distribution: ...

    @abc.abstractmethod
    def posterior(self, z: Float[Array, "n d"]) -> Any: ...

    def log_joint(self, z: Float[Array, "n d"], y: Latent) -> Float[Array, "..."]:
        """log q(z | y) + log q(y)."""
        return jnp.asarray(self.conditional(y).log_prob(z)) + self.log_latent(y)


def frozen(module):
    """The same module with every parameter held constant: gradients flow through its arguments only."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, module)
