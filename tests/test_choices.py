"""The gradient that `vgp.fit` chooses where nothing is said."""

import jax.random as jr
import pytest

import vgp
from vgp.bounds import Analytic, Importance
from vgp.choices import choose_gradient
from vgp.families import Factorised, MeanField
from vgp.gradients import VIMCO, DisARM, DoublyReparameterised, Pathwise, ScoreFunction, StickingTheLanding
from vgp.meanfield import Bernoulli, Categorical, Gamma, Mixed, Normal, Poisson

BLOCKS = Mixed((Bernoulli(), 1), (Poisson(), 1), (Normal(1), 1))
COUNTS = Mixed((Poisson(), 2), (Normal(1), 1))
CASES = [
    (Normal(3), None, DoublyReparameterised),
    (Normal(3), Importance(inner=0), StickingTheLanding),
    (Normal(3), Importance(inner=0, outer=2), DoublyReparameterised),
    (Normal(3), Analytic(), Pathwise),
    (Gamma(3), None, Pathwise),
    (Bernoulli(), None, DisARM),
    (BLOCKS, None, DisARM),
    (COUNTS, None, ScoreFunction),
    (Categorical(4), Importance(inner=2), ScoreFunction),
    (Bernoulli(), Importance(outer=4), VIMCO),
    (COUNTS, Importance(outer=4), VIMCO),
]


@pytest.mark.parametrize(("meanfield", "bound", "kind"), CASES, ids=lambda x: type(x).__name__)
def test_the_quietest_that_goes(meanfield, bound, kind):
    family = vgp.VGP(3, 4, meanfield=meanfield, key=jr.key(0))
    assert type(choose_gradient("auto", bound, family)) is kind


def test_families_with_an_exact_density():
    assert isinstance(choose_gradient("auto", None, MeanField(2, key=jr.key(0))), StickingTheLanding)
    assert isinstance(choose_gradient("auto", None, Factorised(2, Bernoulli(), key=jr.key(0))), DisARM)


def test_one_that_is_given_is_kept():
    family, own = vgp.VGP(2, 4, meanfield=Bernoulli(), key=jr.key(0)), ScoreFunction("mean", False)
    assert choose_gradient(own, None, family) is own
    with pytest.raises(TypeError, match="'auto' or one of vgp.gradients, got 'reinforce'"):
        choose_gradient("reinforce", None, family)
