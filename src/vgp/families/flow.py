"""A normalizing flow as a family, through flowjax (`pip install "vgp[flows]"`). Exact."""

from typing import Any, ClassVar, Literal

import equinox as eqx
from jaxtyping import PRNGKeyArray

from .base import AbstractExact, Draw
from .place import Place


class Flow(AbstractExact):
    """A flowjax flow from a standard normal: `kind` is "iaf", "bnaf", "planar" or "spline".

    Built so that drawing is its quick direction: bounds use the density that comes with a draw, and
    `log_prob` of any other point has to invert the flow.
    """

    dim: int = eqx.field(static=True)
    distribution: Any
    place: Place | None
    correlates: ClassVar[bool] = True

    def __init__(self, dim: int, kind: Literal["iaf", "bnaf", "planar", "spline"] = "iaf", *, key: PRNGKeyArray):
        try:
            import flowjax.distributions as fd
            import flowjax.flows as ff
            from flowjax.bijections import RationalQuadraticSpline
        except ImportError as error:
            raise ImportError("vgp.families.Flow needs flowjax; install it with: pip install 'vgp[flows]'") from error
        import jax.numpy as jnp

        base = fd.Normal(jnp.zeros(dim))
        if kind == "iaf":
            flow = ff.masked_autoregressive_flow(key, base_dist=base, invert=False, flow_layers=3)
        elif kind == "bnaf":
            flow = ff.block_neural_autoregressive_flow(key, base_dist=base, invert=False)
        elif kind == "planar":
            flow = ff.planar_flow(key, base_dist=base, invert=False)
        elif kind == "spline":
            spline = RationalQuadraticSpline(knots=8, interval=6.0)
            flow = ff.masked_autoregressive_flow(key, base_dist=base, transformer=spline, invert=False, flow_layers=3)
        else:
            raise ValueError(f"Flow has the kinds 'iaf', 'bnaf', 'planar' and 'spline', got {kind!r}.")
        self.dim, self.distribution, self.place = dim, flow, None

    def _unwrapped(self):
        import paramax

        return paramax.unwrap(self.distribution)

    def _draw(self, key, n):
        return Draw(*self._unwrapped().sample_and_log_prob(key, (n,)))

    def _log_prob(self, z):
        return self._unwrapped().log_prob(z)
