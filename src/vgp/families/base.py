"""What a variational family is, and how to add one."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from ..target import Target
from .place import Place, Whitened

Latent = Any  # what generated z inside the family: ξ, or the pair (ξ, f)
Draws = Any  # n draws of z: an array of shape (n, d), or a module that holds one with what was made on the way


class AbstractFamily(eqx.Module):
    """A distribution q(z) over `dim` real variables, with learned parameters.

    To add a family, subclass one of the two kinds below: `AbstractExact` if its density can be written
    down, `AbstractHierarchical` if z is drawn by way of a latent variable that would have to be integrated
    out. Every inexact array in the module is learned, but for those of `place`.

    What a subclass writes (the methods with an underscore, and `view`) is in whitened coordinates w, with
    z = place(w); `place` is None where the two are the same, and `vgp.fit` sets it. `correlates` says whether
    the family may be placed by a full matrix: one whose coordinates are independent by design may not.
    """

    dim: eqx.AbstractVar[int]
    place: eqx.AbstractVar[Place | None]
    correlates: ClassVar[bool] = False

    @abc.abstractmethod
    def _sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n draws of w."""

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """n draws of z."""
        w = self._sample(key, n)
        return w if self.place is None else self.place(w)

    def placed(self, place: Place | None) -> "AbstractFamily":
        """The same family in another place."""
        if place is not None and not self.correlates:
            place = place.diagonal
        return eqx.tree_at(lambda family: family.place, self, place, is_leaf=lambda x: x is None)

    @property
    def placeable(self) -> bool:
        """Is it a family over the real line, which can be shifted and scaled?"""
        return True

    def started(self) -> "AbstractFamily":
        """The family as it should begin in a place: close to the standard Gaussian in whitened coordinates."""
        return self


def whitened(target: Target, family: AbstractFamily) -> tuple[Target, AbstractFamily]:
    """Target and family in the family's whitened coordinates: every bound has the same value there.

    No step has to map a z back to its w, which would lose digits where the posterior is strongly correlated.
    """
    if family.place is None:
        return target, family
    return Whitened(target, family.place), family.placed(None)


class AbstractExact(AbstractFamily):
    """A family with a density. Give `_draw` and `_log_prob`."""

    def view(self) -> "AbstractView | None":
        """Independent variables, some with draws that cannot be followed, as estimators with a score want them: given a
        latent of no dimensions. None for all other families.
        """
        return None

    @abc.abstractmethod
    def _draw(self, key: PRNGKeyArray, n: int) -> "Draw": ...

    def _sample(self, key, n):
        return self._draw(key, n).z

    @abc.abstractmethod
    def _log_prob(self, w: Float[Array, "n d"]) -> Float[Array, " n"]: ...

    def draw(self, key: PRNGKeyArray, n: int) -> "Draw":
        """n draws of z with their log densities."""
        drawn = self._draw(key, n)
        if self.place is None:
            return drawn
        return Draw(self.place(drawn.z), drawn.log_q - self.place.log_volume, drawn.score)

    def log_prob(self, z: Float[Array, "n d"]) -> Float[Array, " n"]:
        """log q(z), exact."""
        if self.place is None:
            return self._log_prob(z)
        return self._log_prob(self.place.inverse(z)) - self.place.log_volume


class Draw(NamedTuple):
    """n draws of an exact family: z, log q(z), and what of it a gradient cannot follow.

    `score` is the log-probability of the choices in z that were not reparameterised, None where all are; a
    bound uses its gradient only.
    """

    z: Float[Array, "n d"]
    log_q: Float[Array, " n"]
    score: Float[Array, " n"] | None = None


class AbstractHierarchical(AbstractFamily):
    """A family q(z) = ∫ q(z | y) q(y) dy with an auxiliary model r(y | z). Give `view` and `_sample`."""

    @abc.abstractmethod
    def view(self, collapse: bool = True) -> "AbstractView":
        """The family made ready for a step: everything that does not depend on the draws is done here, once.

        With `collapse` what can be integrated out in closed form is, else the latent is kept whole. It is in
        whitened coordinates; `whitened` takes the target there.
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

    def parts(self, z: Draws, y: Latent) -> list[tuple["AbstractView", Any, Latent]]:
        """The factors of q(z, y) that can be bounded one by one: usually the view itself is the only one.

        One may stand for several of a kind: it then has a multiple of n rows, n of each in turn.
        """
        return [(self, z, y)]

    def flips(self, z: Float[Array, "n d"], y: Latent) -> Float[Array, "n d"] | None:
        """What log q(y) − log r(y | z) gains where a binary variable of z is the other one, for each of them; None
        where it has to be tried.
        """
        return None

    def prepared(self) -> "AbstractView":
        """The same view with all of its auxiliary model computed that does not depend on z, for use at several z."""
        return self

    def held(self) -> "AbstractView":
        """The same view with its parameters held constant: gradients flow through z and y only."""
        return frozen(self)

    def log_joint(self, z: Float[Array, "n d"], y: Latent) -> Float[Array, "..."]:
        """log q(z | y) + log q(y)."""
        return jnp.asarray(self.conditional(y).log_prob(z)) + self.log_latent(y)


def frozen(module):
    """The same module with every parameter held constant: gradients flow through its arguments only."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, module)
