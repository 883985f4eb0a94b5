"""What an inference network is: a function from data to a variational family, and how to add one."""

import abc
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ..families.base import AbstractFamily, AbstractHierarchical
from ..families.process import Collapsed, Extended, Process
from ..noise import sample


class AbstractEncoder(eqx.Module):
    """x ↦ q(z | x). To add one, subclass and give:

    - `dim`, the number of latent variables, and `latent_dim`, the number c of latent inputs ξ ~ N(0, I) behind them
      (zero for a family with a density);
    - `at(x, model)`, the family at a batch of b datapoints. Row i of its draws belongs to datapoint i modulo b, so
      that `bound(model.at(x), encoder.at(x, model), key, b)` has one value per datapoint. Most have no use for `model`.
    """

    dim: eqx.AbstractVar[int]
    latent_dim: eqx.AbstractVar[int]

    @property
    def stages(self) -> int:
        """How many families a draw of z goes through, one after another: what a row of memory is to be divided by."""
        return 1

    def prepared(self) -> "AbstractEncoder":
        """The encoder with everything done that does not depend on x, for use at several x within a step."""
        return self

    @abc.abstractmethod
    def at(self, x: Float[Array, "b i"], model: Any = None) -> AbstractFamily: ...


class Given(AbstractHierarchical):
    """A family at given data: a process whose local part came from a network."""

    dim: int = eqx.field(static=True)
    process: Process
    place: None = None

    def view(self, collapse: bool = True):
        return Collapsed(self.process) if collapse and self.process.meanfield.collapses else Extended(self.process)

    def _sample(self, key: PRNGKeyArray, n: int):
        view = self.view()
        latent_key, key = jr.split(key)
        return sample(view.conditional(view.sample_latent(latent_key, n)), key)
