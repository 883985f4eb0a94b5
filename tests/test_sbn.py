"""Sigmoid belief networks: densities written out and enumerated, draws of the prior, and terms."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import mean_and_error, moved
from scipy.special import expit
from scipy.stats import bernoulli

from vgp.compiling import once
from vgp.meanfield import Bernoulli
from vgp.models.sbn import SBN
from vgp.montecarlo import enumerate_states

PIXELS = 3
SHAPES = {
    "linear": ((3,), ()),
    "non-linear": ((3,), (4, 5)),
    "two layers": ((2, 3), ()),
    "three layers": ((2, 1, 2), (4,)),
}
ALL_X = jnp.asarray(enumerate_states([2] * PIXELS), float)


def network(name):
    latents, hidden = SHAPES[name]
    return moved(SBN(PIXELS, latents, hidden, key=jr.key(0)), 0, 0.7)


def states(model):
    return jnp.asarray(enumerate_states([2] * model.dim), float)


def dense(layer, x):
    return x @ np.asarray(layer.weight, float) + np.asarray(layer.bias, float)


def written_out(model, x, z):
    """log p(x | z₁), the pixels' means and log p(z_i | layer above) of every unit, in numpy."""
    pieces = np.split(np.asarray(z, float), np.cumsum(model.latents)[:-1], axis=-1)
    h = 2 * pieces[0] - 1
    for layer in model.trunk.layers:
        h = np.tanh(dense(layer, h))
    means = expit(dense(model.logits, h))
    chances = [expit(dense(layer, 2 * above - 1)) for layer, above in zip(model.layers, pieces[1:], strict=True)]
    chances.append(np.broadcast_to(expit(np.asarray(model.prior, float)), pieces[-1].shape))
    units = [bernoulli.logpmf(own, p) for own, p in zip(pieces, chances, strict=True)]
    return bernoulli.logpmf(np.asarray(x), means).sum(-1), means, np.concatenate(units, -1)


@once
def own_terms(model, x, z):
    return (
        model.log_likelihood(x, z),
        model.probabilities(z),
        model.log_prior(z),
        model.log_terms(x, z),
        model.at(x, 0.5).log_probs(z),
    )


def everything(model):
    """All pairs of a state and an image, the image changing fastest."""
    z = states(model)
    return jnp.tile(ALL_X, (len(z), 1)), jnp.repeat(z, len(ALL_X), axis=0)


@pytest.mark.parametrize("name", SHAPES)
def test_densities(name):
    model = network(name)
    x, z = everything(model)
    likelihood, means, prior, terms, half = (np.asarray(a, float) for a in own_terms(model, x, z))
    expected = written_out(model, x, z)
    close = dict(rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(likelihood, expected[0], **close)
    np.testing.assert_allclose(means, expected[1], **close)
    np.testing.assert_allclose(prior, expected[2].sum(-1), **close)
    np.testing.assert_allclose(terms, np.column_stack([expected[0], expected[2]]), **close)
    np.testing.assert_allclose(terms.sum(-1), likelihood + prior, **close)
    np.testing.assert_allclose(half, 0.5 * likelihood + prior, **close)
    # Over all images and all states, and over all images at each state, chances sum to one.
    assert np.exp(likelihood + prior).sum() == pytest.approx(1.0, abs=1e-5)
    given = np.exp(likelihood).reshape(-1, len(ALL_X))
    np.testing.assert_allclose(given.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(given @ np.asarray(ALL_X), means[:: len(ALL_X)], atol=1e-5)


@pytest.mark.parametrize("name", ["non-linear", "three layers"])
def test_prior_draws_have_their_probabilities(name):
    model, n = network(name), 40_000
    z = np.asarray(once(lambda key: model.sample_prior(key, n))(jr.key(1)))
    assert z.shape == (n, model.dim) and set(np.unique(z)) == {0.0, 1.0}
    number = (z @ 2 ** np.arange(model.dim)[::-1]).astype(int)  # of the state, the last unit changing fastest
    exact = np.exp(np.asarray(once(model.log_prior)(states(model)), float))
    assert exact.sum() == pytest.approx(1.0, abs=1e-5)
    frequency = np.bincount(number, minlength=len(exact)) / n
    assert (np.abs(frequency - exact) < 4.5 * np.sqrt(exact * (1 - exact) / n)).all()
    mean, error = mean_and_error(z)
    assert (np.abs(mean - 0.5) > 4.5 * error).any()  # the states are not all alike


@pytest.mark.parametrize("name", SHAPES)
def test_terms_touch_what_they_say(name):
    model = network(name)
    x, z = (np.array(a) for a in everything(model))
    changed = np.zeros((1 + model.dim, model.dim), bool)
    before = np.asarray(own_terms(model, jnp.asarray(x), jnp.asarray(z))[3])
    for i in range(model.dim):
        other = np.where(np.arange(model.dim) == i, 1 - z, z)
        after = np.asarray(own_terms(model, jnp.asarray(x), jnp.asarray(other))[3])
        changed[:, i] = np.abs(after - before).max(0) > 1e-4
    np.testing.assert_array_equal(model.touches, changed)


def test_touches_of_two_layers():
    expected = [
        [1, 1, 0, 0, 0],  # the pixels
        [1, 0, 1, 1, 1],
        [0, 1, 1, 1, 1],
        [0, 0, 1, 0, 0],  # the top layer
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(network("two layers").touches, np.asarray(expected, bool))


def test_sizes_of_the_literature(key):
    linear, curved, deep = SBN(784, key=key), SBN(784, hidden=(200, 200), key=key), SBN(784, (200, 200), key=key)
    assert [m.dim for m in (linear, curved, deep)] == [200, 200, 400]
    assert [len(m.trunk.layers) for m in (linear, curved, deep)] == [0, 2, 0]
    assert [layer.weight.shape for layer in deep.layers] == [(200, 200)]
    assert len(deep.supports) == 2 and all(support(jnp.asarray(1.0)) for support in deep.supports)
    for model in (linear, curved, deep):
        assert model.logits.weight.shape == (200, 784)
        np.testing.assert_array_equal(model.prior, np.zeros(200))


def test_pixel_means_at_the_start(key):
    model = SBN(PIXELS, (2,), mean=jnp.asarray([0.0, 0.2, 1.0]), key=key)
    flat = eqx.tree_at(lambda m: m.logits.weight, model, jnp.zeros_like(model.logits.weight))
    np.testing.assert_allclose(flat.probabilities(jnp.ones((1, 2)))[0], [0.001, 0.2, 0.999], rtol=1e-4)
    # Over fair units the logits' mean is their bias.
    logits = np.log(model.probabilities(states(model))) - np.log1p(-model.probabilities(states(model)))
    np.testing.assert_allclose(logits.mean(0), model.logits.bias, rtol=1e-3, atol=1e-4)


def test_sure_units_stay_finite():
    model = network("two layers")
    sure = eqx.tree_at(lambda m: (m.prior, m.layers[0].bias), model, (jnp.full(3, 500.0), jnp.full(2, -500.0)))
    assert np.isfinite(own_terms(sure, jnp.tile(ALL_X, (4, 1)), states(model))[3]).all()
    assert np.asarray(sure.sample_prior(jr.key(0), 5)).tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]] * 5


def test_no_closed_form_and_no_layers(key):
    model = network("linear")
    assert model.at(ALL_X).divergence(None, states(model)) is None
    with pytest.raises(ValueError, match="at least one layer"):
        SBN(PIXELS, (), key=key)


def test_divergence_by_enumeration():
    # Given the draw of the upper layer, E_q log q(z₁) / p(z₁ | z₂) over all z₁, and the upper layer's own.
    model = SBN(3, (2, 2), key=jr.key(3))
    model = eqx.tree_at(lambda m: m.prior, model, jnp.asarray([0.4, -1.1]))
    q = Bernoulli("logit").given(jnp.asarray([[0.7, -0.3, 1.2, 0.1]]), None)
    upper = np.array([1.0, 0.0])
    expected = 0.0
    for pair in itertools.product((0.0, 1.0), repeat=2):
        lower, top = np.array([[*pair, *upper]]), np.array([[*upper, *pair]])  # the other two do not count
        log_q = np.asarray(q.each(jnp.asarray(lower)))[0, :2].sum()
        logits = np.asarray(model._unit_logits(jnp.asarray(lower)))[0, :2]
        expected += np.exp(log_q) * (log_q - np.sum(np.array(pair) * logits - np.log1p(np.exp(logits))))
        log_q = np.asarray(q.each(jnp.asarray(top)))[0, 2:].sum()
        expected += np.exp(log_q) * (log_q - np.sum(np.array(pair) * [0.4, -1.1] - np.log1p(np.exp([0.4, -1.1]))))
    found = model.divergence(q, jnp.asarray([[0.0, 0.0, *upper]]))
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("at_once", [1, 2**26], ids=["one by one", "side by side"])
def test_flips_are_what_the_target_gains(name, at_once, monkeypatch):
    monkeypatch.setattr("vgp.models.sbn.AT_ONCE", at_once)
    model = network(name)
    x, z = everything(model)
    logits = jr.normal(jr.key(4), z.shape)
    target, q = model.at(x, 0.7), Bernoulli("logit").given(logits, None)

    def value(z):
        return target.log_likelihoods(z) - target.divergence(q, z)

    tried = [value(z.at[:, i].set(1 - z[:, i])) - value(z) for i in range(model.dim)]
    np.testing.assert_allclose(target.flips(q, z), jnp.stack(tried, axis=1), rtol=1e-3, atol=1e-5)
    assert target.flips(None, z) is None
