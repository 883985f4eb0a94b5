"""The bounds of the one-dimensional example, whose gaps to the exact ELBO are known in closed form."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from problems import S2, TOTAL, A, V, gaussian_target, linear_vgp, mean_and_error

import vgp
from vgp.auxiliary import Factorised, LinearGaussian, Residual

SLOPE_XI, VAR_XI = A / TOTAL, 1 - A**2 / TOTAL  # ξ | z
SLOPE_F, VAR_F = (A**2 + V) / TOTAL, (A**2 + V) * S2 / TOTAL  # f | z
VAR_SECOND = A**2 * VAR_XI + V  # a second f, independent given ξ, which the printed KL integrates


def factorised(f_slope, f_variance):
    r = Factorised(1, 1, width=0, key=jr.key(0))
    new = (
        jnp.full((1, 1), SLOPE_XI),
        jnp.full(1, 0.5 * np.log(VAR_XI)),
        jnp.full(1, f_slope),
        jnp.full(1, 0.5 * np.log(f_variance)),
    )
    return eqx.tree_at(lambda r: (r.slope, r.log_scale, r.f_slope, r.f_log_scale), r, new)


def joint():
    """r(ξ | z) exact, r(f | ξ, z) = q(f | ξ): the best there is for the printed objective."""
    r = LinearGaussian(1, 1)
    root = VAR_XI**0.5
    new = (
        jnp.array([[SLOPE_XI], [A * SLOPE_XI]]),
        jnp.log(jnp.array([root, V**0.5])),
        jnp.array([[0.0, 0.0], [A * root, 0.0]]),
    )
    return eqx.tree_at(lambda r: (r.slope, r.log_diagonal, r.below), r, new)


def started():
    return Residual(1, 1, key=jr.key(0)).started(jnp.full((1, 1), A), jnp.full(1, (V + S2) ** 0.5))


SAMPLED = vgp.bounds.Importance(inner=0, collapse=False)
CASES = {
    "collapsed": (vgp.bounds.Collapsed(), started(), 0.0),
    "collapsed, joint r": (vgp.bounds.Collapsed(split=False), joint(), 0.0),
    "sampled, factorised": (SAMPLED, factorised(SLOPE_F, VAR_F), -0.303),
    "analytic, joint": (vgp.bounds.Analytic(), joint(), -0.347),
    "analytic, factorised": (vgp.bounds.Analytic(), factorised(A * SLOPE_XI, VAR_SECOND), -0.837),
    "general, joint": (vgp.bounds.General(), joint(), -0.347),
    "general, factorised": (vgp.bounds.General(), factorised(A * SLOPE_XI, VAR_SECOND), -0.837),
}


@pytest.mark.parametrize("name", CASES)
def test_gap(name, key):
    bound, auxiliary, gap = CASES[name]
    mean, error = mean_and_error(bound(gaussian_target(), linear_vgp(auxiliary), key, 200_000))
    assert error < 0.005
    assert abs(mean - gap) < 4 * error + 6e-4  # the gaps are known to three digits


def test_the_printed_gaps_are_the_formulas():
    information = 0.5 * np.log(1 + V / S2)
    precision = np.array([[1 + A**2 / V, -A / V], [-A / V, 1 / V + 1 / S2]])
    correlation = precision[0, 1] ** 2 / (precision[0, 0] * precision[1, 1])
    assert 0.5 * np.log(1 - correlation) == pytest.approx(-0.303, abs=5e-4)
    assert -information == pytest.approx(-0.347, abs=5e-4)
    assert -information - 0.5 * np.log(VAR_SECOND / V) == pytest.approx(-0.837, abs=5e-4)


@pytest.mark.parametrize("name", ["sampled, factorised", "analytic, joint", "analytic, factorised"])
def test_the_r_of_each_case_is_the_best_of_its_kind(name, key):
    # The gradient of the bound with respect to r vanishes, and any step away loses.
    bound, auxiliary, _ = CASES[name]
    target = gaussian_target()
    at_best = bound(target, linear_vgp(auxiliary), key, 50_000)
    for path in ("slope", "log_scale") if isinstance(auxiliary, Factorised) else ("slope", "log_diagonal"):
        for step in (-0.2, 0.2):
            moved = eqx.tree_at(lambda r, p=path: getattr(r, p), auxiliary, replace_fn=lambda x, s=step: x + s)
            loss, error = mean_and_error(at_best - bound(target, linear_vgp(moved), key, 50_000))
            assert loss > 2 * error


def test_a_bound_with_the_covariances_swapped_would_not_be_one(key):
    # Appendix C prints KL(N₂ ‖ N₁): with a narrow r it is smaller than the truth, and the "bound" passes zero.
    from vgp.bounds import gaussian_kl

    family = linear_vgp(factorised(A * SLOPE_XI, 30.0 * V))
    right = vgp.bounds.Analytic()(gaussian_target(), family, key, 20_000).mean()
    view = family.view(collapse=False)
    xi = view.sample_latent(key, 20_000)[0]
    q = view.mapping(xi)
    r = view.posterior(q.mean).mapping(xi)
    assert gaussian_kl(q, r).mean() < gaussian_kl(r, q).mean()
    assert right < -0.837
