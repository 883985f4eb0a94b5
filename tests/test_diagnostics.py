"""k-hat against tails of known shape, and what a fit says of itself."""

import numpy as np
import pytest
from scipy import stats

from vgp import diagnostics


@pytest.mark.parametrize("shape", [0.1, 0.4, 0.7, 1.0])
def test_khat_finds_the_shape_of_a_pareto_tail(shape):
    ratios = stats.genpareto.rvs(shape, size=20_000, random_state=np.random.default_rng(1))
    assert diagnostics.pareto_khat(np.log(ratios).astype(np.float32)) == pytest.approx(shape, abs=0.12)


def test_khat_of_an_exact_fit_is_small_and_of_a_narrow_one_large():
    rng = np.random.default_rng(0)
    z = rng.normal(size=20_000).astype(np.float32)
    exact = np.zeros_like(z) + 1e-3 * rng.normal(size=z.shape).astype(np.float32)
    narrow = stats.norm.logpdf(z, scale=3.0) - stats.norm.logpdf(z)
    assert diagnostics.pareto_khat(exact) < 0.3
    assert diagnostics.pareto_khat(narrow.astype(np.float32)) > 0.7


def test_ratios_that_are_not_numbers_do_not_decide():
    ratios = np.zeros(2000, np.float32)
    ratios[::100] = np.nan
    assert np.isfinite(diagnostics.pareto_khat(ratios + 1e-3 * np.random.default_rng(0).normal(size=2000)))
