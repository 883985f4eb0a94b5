"""The bounds: numbers made from a target's log p and a family's terms. All are lower bounds, maximised.

`bound(target, family, key, n)` gives n values whose mean estimates the bound. Families come in two kinds,
exact and hierarchical (`families/base.py`); a bound that does not apply to a family raises `TypeError`.
"""

import abc
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from .divergence import gaussian_kl
from .families.base import (
    AbstractExact,
    AbstractFamily,
    AbstractHierarchical,
    AbstractView,
    Draws,
    Latent,
    frozen,
    whitened,
)
from .gradients import VALUES, AbstractGradient, AbstractScore, Pathwise, StickingTheLanding, scale_gradient
from .noise import sample
from .scoring import needs_score, scored
from .target import Target


class AbstractBound(eqx.Module):
    """A lower bound on log p(x). To add one, subclass and give `__call__`."""

    @abc.abstractmethod
    def __call__(
        self,
        target: Target,
        family: AbstractFamily,
        key: PRNGKeyArray,
        n: int,
        gradient: AbstractGradient = Pathwise(),
    ) -> Float[Array, " n"]:
        """n independent values; their mean estimates the bound, its gradient by `gradient`."""


# ---------------------------------------------------------------- log q(z), from above and from below


def _log_weights(view: AbstractView, z, y, samples, posterior, first) -> Float[Array, "k n"]:
    # log q(z, y_k) − log r(y_k | z) for y_0 = y and the inner samples: rows of one product.
    latents = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), y, samples)
    return view.log_joint(z, latents) - jnp.concatenate([first[None], posterior.log_prob(samples)])


def log_q_upper(
    view: AbstractView,
    z: Draws,
    y: Latent,
    key: PRNGKeyArray,
    inner: int,
    gradient: AbstractGradient = Pathwise(),
    factor: Float[Array, " n"] | float = 1.0,
) -> Float[Array, " n"]:
    """log 1/(K+1) Σ_{k=0..K} q(z, y_k) / r(y_k | z), with y_0 = y the one that generated z.

    Its mean is an upper bound on log q(z), exact as K → ∞ (Sobolev & Vetrov 2019); K = 0 is the paper's.
    `factor` multiplies the reweighed path through the inner samples; outer samples need it. A view of several
    parts is bounded part by part, which is tighter than the parts together.
    """
    density = view.held() if gradient.freezes else view
    n, parts, densities = len(z), view.parts(z, y), density.parts(z, y)
    keys = [key] if len(parts) == 1 else jr.split(key, len(parts))
    terms = [
        _log_q_upper(one, other, z, y, key, inner, gradient, factor)
        for (one, z, y), (other, _, _), key in zip(parts, densities, keys, strict=True)
    ]
    return functools.reduce(jnp.add, [_each(term, n) for term in terms])


def _each(rows: Float[Array, " m"], n: int) -> Float[Array, " n"]:
    # A part may have several rows per draw, n of each in turn.
    return rows if len(rows) == n else rows.reshape(-1, n).sum(0)


def _log_q_upper(view, density, z, y, key, inner, gradient, factor):
    posterior = view.posterior(z)
    first = posterior.log_prob(y)
    if inner == 0:
        return density.log_joint(z, y) - first
    samples = sample(posterior, key, (inner,))
    if gradient.reweighs:
        # The same numbers twice, once for the weights and once for the gradient: compiled, they are one.
        settled = _log_weights(density, z, y, samples, posterior, first)
        weights = jax.lax.stop_gradient(jax.nn.softmax(settled, axis=0)[1:])
        samples, posterior = scale_gradient(samples, factor * weights), frozen(posterior)
    log_weights = _log_weights(density, z, y, samples, posterior, first)
    return logsumexp(log_weights, axis=0) - jnp.log(inner + 1)


class LogQ(NamedTuple):
    """Estimates of log q(z): from above, from below, and the paper's (K = 0, from above)."""

    upper: Float[Array, " n"]
    lower: Float[Array, " n"]
    single: Float[Array, " n"]


def log_q_sandwich(view: AbstractView, z, y: Latent, key: PRNGKeyArray, inner: int) -> LogQ:
    """Both sides from one set of inner samples: with the y that generated z, and without it."""
    n, parts = len(z), view.parts(z, y)
    keys = [key] if len(parts) == 1 else jr.split(key, len(parts))
    sides = [_log_q_sandwich(one, z, y, key, inner) for (one, z, y), key in zip(parts, keys, strict=True)]
    return LogQ(*(functools.reduce(jnp.add, [_each(term, n) for term in side]) for side in zip(*sides, strict=True)))


def _log_q_sandwich(view, z, y, key, inner):
    posterior = view.posterior(z)
    samples = sample(posterior, key, (inner,))
    log_weights = _log_weights(view, z, y, samples, posterior, posterior.log_prob(y))
    upper = logsumexp(log_weights, axis=0) - jnp.log(inner + 1)
    lower = logsumexp(log_weights[1:], axis=0) - jnp.log(inner)
    return LogQ(upper, lower, log_weights[0])


def draw(view: AbstractView, key: PRNGKeyArray, n: int):
    """z, the latent y that generated it, q(z | y), and a key for what follows."""
    latent_key, z_key, key = jr.split(key, 3)
    y = view.sample_latent(latent_key, n)
    conditional = view.conditional(y)
    return sample(conditional, z_key), y, conditional, key


# ---------------------------------------------------------------- the bounds


class Importance(AbstractBound):
    """The importance-weighted hierarchical bound.

    `inner=K` samples of r tighten log q(z); `outer=M` draws of z tighten log p(x), as in an IWAE; K = 0
    and M = 1 is `Collapsed` where f can be integrated out. With `split` the part with a closed form given
    the latent is used in closed form — KL(q(z|ξ) ‖ p(z)) if the target has a Gaussian prior, else the
    entropy of q(z|ξ) — and only the ratio in ξ is sampled; by default, where there is such a prior.
    `collapse=False` keeps f in the latent even where it could be integrated out.
    """

    inner: int = eqx.field(static=True, default=16)
    outer: int = eqx.field(static=True, default=1)
    split: bool | None = eqx.field(static=True, default=None)
    collapse: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        if self.inner < 0 or self.outer < 1:
            raise ValueError(f"Importance needs inner >= 0 and outer >= 1, got {self.inner} and {self.outer}.")
        if self.split and self.outer > 1:
            raise ValueError("split=True needs outer=1: an average inside a logarithm has no closed-form part.")

    def __call__(self, target, family, key, n, gradient=Pathwise()):
        if self.outer > 1 and isinstance(gradient, StickingTheLanding):
            raise TypeError("StickingTheLanding is biased with outer > 1; use DoublyReparameterised().")
        target, family = whitened(target, family)
        if isinstance(family, AbstractExact):
            if (view := family.view()) is None:
                return self._exact(target, family, key, n, gradient)
            drawn = draw(view, key, n * self.outer)  # inner samples would have nothing to tighten
            return Importance(0, self.outer, self.split)._scored(target, view, *drawn, gradient)
        view = _hierarchical(family, "Importance").view(collapse=self.collapse)
        z, y, conditional, inner_key = draw(view, key, n * self.outer)
        if needs_score(conditional):
            return self._scored(target, view, z, y, conditional, inner_key, gradient)
        if isinstance(gradient, AbstractScore):
            gradient = Pathwise()  # every draw can be followed
        if self.outer > 1:
            return self._outer(target, view, z, y, inner_key, gradient)
        log_q = log_q_upper(view, z, y, inner_key, self.inner, gradient)
        if self.split is False:
            return target.log_probs(z) - log_q
        divergence = target.divergence(conditional, z)
        if self.split and divergence is None and not hasattr(conditional, "entropy"):
            raise TypeError("split=True needs a Normal mean-field, whose entropy has a closed form; leave split out.")
        if self.split is True or divergence is not None:
            density = view.held() if gradient.freezes else view
            ratio = log_q - density.conditional(y).log_prob(z)
            if divergence is not None:
                return target.log_likelihoods(z) - divergence - ratio
            return target.log_probs(z) + conditional.entropy() - ratio
        return target.log_probs(z) - log_q

    def _scored(self, target, view, z, y, conditional, key, gradient):
        closed = self.outer == 1 and self.split is not False and target.divergence(conditional, z) is not None
        if self.split and not closed:
            raise TypeError("split=True needs a divergence in closed form, and with these variables there is none.")
        z_key, inner_key = jr.split(key)
        view = view.prepared()

        def parts(z):
            log_q, conditioned = log_q_upper(view, z, y, inner_key, self.inner), conditional.log_prob(z)
            if closed:  # only what has no closed form is left to the score
                known = target.log_likelihoods(z) - target.divergence(conditional, z)
            else:
                known = target.log_probs(z) - conditioned
            return known, log_q - conditioned

        def flips(z):  # of each part, None where they are not known
            known, ratio = target.flips(conditional, z), view.flips(z, y)
            return (known if closed else None), (None if self.inner else ratio)

        return scored(parts, flips, target, view, conditional, z_key, self.outer, gradient, whole=not closed)

    def _outer(self, target, view, z, y, key, gradient):
        if not gradient.reweighs:
            log_q = log_q_upper(view, z, y, key, self.inner, gradient)
            return _log_mean(target.log_probs(z) - log_q, self.outer)
        if not isinstance(z, jax.Array):
            raise TypeError(
                f"DoublyReparameterised with outer > 1 needs draws that are an array, got a {type(z).__name__}, as of "
                "DRAW; use Pathwise()."
            )
        if self.inner == 0:

            def log_ratio(modules, draws):
                (target, view), (z, y) = modules, draws
                return target.log_probs(z) - log_q_upper(view, z, y, key, 0, gradient)

            return _reweighed(log_ratio, (target, view), (z, y), self.outer)
        # The path through z carries W̃², with r held fixed; the target's own parameters, if it has any, and those of
        # r carry W̃, and the path through inner samples W̃ (2 − W̃) w̃².
        log_p, log_q = target.log_probs(z), log_q_upper(view.held(), z, y, key, self.inner)
        shares = _shares(log_p - log_q, self.outer)
        learned = shares * target.log_probs(scale_gradient(z, shares)) - shares**2 * log_q
        z, y = jax.lax.stop_gradient((z, y))
        auxiliary = -log_q_upper(view, z, y, key, self.inner, gradient, factor=2 - shares)
        return _with_gradient(log_p - log_q, learned + shares * auxiliary, self.outer)

    def _exact(self, target, family, key, n, gradient):
        z, log_q, score = family.draw(key, n * self.outer)
        log_ratio = target.log_probs(z) - (frozen(family).log_prob(z) if gradient.freezes else log_q)
        if self.outer > 1:
            if score is not None:
                raise TypeError(f"{type(family).__name__} is not reparameterised, so it needs outer=1.")
            if gradient.reweighs:
                shares = _shares(log_ratio, self.outer)
                log_p = target.log_probs(scale_gradient(z, shares))
                learned = shares * log_p - shares**2 * frozen(family).log_prob(z)
                return _with_gradient(log_ratio, learned, self.outer)
            return _log_mean(log_ratio, self.outer)
        if score is None:
            return log_ratio
        return log_ratio + jax.lax.stop_gradient(log_ratio) * (score - jax.lax.stop_gradient(score))


class Collapsed(AbstractBound):
    """f integrated out, one ξ: log p(z) − log q(z|ξ) − log q(ξ) + log r(ξ|z)."""

    split: bool | None = eqx.field(static=True, default=None)

    def __call__(self, target, family, key, n, gradient=Pathwise()):
        _hierarchical(family, "Collapsed")
        return Importance(inner=0, split=self.split)(target, family, key, n, gradient)


class General(AbstractBound):
    """Eq. `general_vgp_bound`: log p(x, z) − log q(z|f) − KL(q(f|ξ) ‖ r(f|ξ,z)) − log q(ξ) + log r(ξ|z).

    As printed, the KL integrates a second, independent f: a valid bound, looser than the sampled ratio
    (`Importance(inner=0, collapse=False)`) and much looser than `Collapsed`.
    """

    def __call__(self, target, family, key, n, gradient=Pathwise()):
        _refuse(gradient, "General")
        target, family = whitened(target, family)
        z, conditional, penalty = _mapped(family, key, n, "General")
        return target.log_probs(z) - conditional.log_prob(z) - penalty


class Analytic(AbstractBound):
    """Eq. `variational_objective`: log p(x|z) − KL(q(z|f) ‖ p(z)) − KL(q(f|ξ) ‖ r(f|ξ,z)) − log q(ξ) + log r(ξ|z).

    Both divergences in closed form, with the Gaussian KL the right way round. Needs a target with a
    Normal prior.
    """

    def __call__(self, target, family, key, n, gradient=Pathwise()):
        _refuse(gradient, "Analytic")
        target, family = whitened(target, family)
        z, conditional, penalty = _mapped(family, key, n, "Analytic")
        divergence = target.divergence(conditional, z)
        if divergence is None:
            raise TypeError(
                "Analytic needs a Normal mean-field and a target with a Normal prior, for KL(q(z|f) ‖ p(z)) in closed "
                "form; "
                "pass vgp.target(..., prior=numpyro.distributions.Normal(0, 1)) or use vgp.bounds.General()."
            )
        return target.log_likelihoods(z) - divergence - penalty


def _mapped(family, key, n, name):
    # One draw through (ξ, f), q(z|f), and the two penalties of the printed objective.
    view: Any = _hierarchical(family, name).view(collapse=False)  # one that keeps f, and so has `mapping`
    z, (xi, _), conditional, _ = draw(view, key, n)
    if needs_score(conditional):
        raise TypeError(
            f"{name} follows the draws of z, and those of discrete variables cannot be followed; leave the bound out, "
            "or use vgp.bounds.Importance() or vgp.bounds.Collapsed()."
        )
    posterior = view.posterior(z)
    prior, r = view.mapping(xi), posterior.mapping(xi)
    kl_f = jnp.zeros(n) if r is prior else gaussian_kl(prior, r)
    standard = dist.Normal(0.0, 1.0).log_prob(xi).sum(-1)
    return z, conditional, kl_f + standard - posterior.latent.log_prob(xi)


def _hierarchical(family, name) -> AbstractHierarchical:
    if not isinstance(family, AbstractHierarchical):
        raise TypeError(
            f"{name} needs a family with an auxiliary model, got {type(family).__name__}, whose density is "
            "exact; use vgp.bounds.Importance()."
        )
    return family


def _refuse(gradient, name):
    if gradient is not VALUES and not isinstance(gradient, Pathwise):
        raise TypeError(f"{name} goes with vgp.gradients.Pathwise(), got {type(gradient).__name__}.")


def _shares(log_ratio, outer):
    # The weights W̃ of the outer draws within each group, held constant.
    return jax.lax.stop_gradient(jax.nn.softmax(log_ratio.reshape(outer, -1), axis=0).reshape(-1))


def _log_mean(log_ratio, outer):
    return logsumexp(log_ratio.reshape(outer, -1), axis=0) - jnp.log(outer)


def _reweighed(log_ratio, modules, draws, outer):
    # log 1/M Σ w of the draws, evaluated once: parameters carry the weights W̃ and the path through the draws W̃².
    arrays, static = eqx.partition(modules, eqx.is_array)
    learned, fixed = eqx.partition(arrays, eqx.is_inexact_array)

    @jax.custom_vjp
    def run(learned, fixed, draws):
        return forward(learned, fixed, draws)[0]

    def forward(learned, fixed, draws):
        def ratio(learned, draws):
            return log_ratio(eqx.combine(learned, fixed, static), draws)

        values, pull = jax.vjp(ratio, learned, draws)
        return _log_mean(values, outer), (pull, _shares(values, outer))

    def backward(kept, slope):
        pull, shares = kept
        by_learned, by_draws = pull(shares * jnp.tile(slope, outer))
        return by_learned, None, jax.tree.map(lambda by: by * shares.reshape(-1, *[1] * (by.ndim - 1)), by_draws)

    run.defvjp(forward, backward)
    return run(learned, fixed, draws)


def _with_gradient(log_ratio, surrogate, outer):
    # The value of the outer average, with the gradient of the surrogate's sum.
    total = surrogate.reshape(outer, -1).sum(0)
    return jax.lax.stop_gradient(_log_mean(log_ratio, outer) - total) + total
