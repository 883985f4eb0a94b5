"""Optimisers by name. Each call with the same arguments gives the same object, so nothing recompiles."""

from functools import lru_cache

import optax


@lru_cache
def adam(rate: float = 2e-2) -> optax.GradientTransformation:
    """Adam with a short second-moment memory, which suits noisy bounds. The default."""
    return optax.adam(rate, b2=0.99)


def rate_for(dim: int) -> float:
    """Adam's rate for `dim` latent variables: noise in the gradient grows with them, and steps shrink."""
    return 2e-2 * min(1.0, (2.0 / dim) ** 0.75)


@lru_cache
def rmsprop(rate: float = 2e-2, epsilon: float = 1e-3) -> optax.GradientTransformation:
    """The paper's optimiser: RMSProp scaled by t^(−1/2−ε)."""
    schedule = optax.chain(optax.scale_by_rms(decay=0.9), optax.scale_by_schedule(_decay(epsilon)))
    return optax.chain(schedule, optax.scale(-rate))


def _decay(epsilon: float):
    return lambda count: (count + 1.0) ** (-0.5 - epsilon)


NAMED = {"adam": adam, "rmsprop": rmsprop}


def named(optimizer: str | optax.GradientTransformation | None, dim: int) -> optax.GradientTransformation:
    """The optimiser meant by a name, None (Adam) or an optax transformation, for `dim` latent variables."""
    if optimizer in (None, "adam"):
        return adam(rate_for(dim))
    if isinstance(optimizer, str):
        if optimizer not in NAMED:
            raise ValueError(
                f"The optimisers with a name are {sorted(NAMED)}, got {optimizer!r}; or pass an optax one."
            )
        return NAMED[optimizer]()
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"The optimizer must be a name or an optax optimiser, got {type(optimizer).__name__}.")
    return optimizer
