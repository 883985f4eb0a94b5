"""The deep latent Gaussian model: its densities written out, enumerated and integrated, and its divergences."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import (
    ALL_X,
    PIXELS,
    B,
    X,
    amortised,
    chain,
    grid,
    log_evidence,
    mean_and_error,
    moved,
    one_layer,
    two_layers,
)
from scipy.special import expit, logsumexp
from scipy.stats import bernoulli, norm

from vgp.amortised import Chain
from vgp.bounds import draw
from vgp.compiling import once
from vgp.models import DLGM


def three_layers():
    return moved(DLGM(PIXELS, (3, 2, 1), ((5, 4), (4,), (3,)), key=jr.key(0)), 0, 0.5)


def dense(layer, x):
    return np.asarray(x, float) @ np.asarray(layer.weight, float) + np.asarray(layer.bias, float)


def trunk(layers, x):
    for layer in layers.layers:
        x = np.tanh(dense(layer, x))
    return x


def written_out(model, x, z):
    """log p(x | z₁), the pixels' means and log p(z), in numpy."""
    pieces = np.split(np.asarray(z, float), np.cumsum(model.latents)[:-1], axis=-1)
    means = expit(dense(model.logits, trunk(model.trunk, pieces[0])))
    log_prior = norm.logpdf(pieces[-1]).sum(-1)
    for layer, own, above in zip(model.layers, pieces, pieces[1:], strict=False):
        h = trunk(layer.trunk, above)
        scale = np.exp(6 * np.tanh(dense(layer.log_scale, h) / 6))
        log_prior += norm.logpdf(own, dense(layer.loc, h), scale).sum(-1)
    return bernoulli.logpmf(np.asarray(x), means).sum(-1), means, log_prior


@once
def own_terms(model, x, z, weight=1.0):
    batch = model.at(x, weight)
    return (
        model.log_likelihood(x, z),
        model.probabilities(z),
        model.log_prior(z),
        batch.log_probs(z),
        batch.log_likelihoods(z),
    )


@pytest.mark.parametrize("make", [one_layer, two_layers, three_layers])
def test_densities_written_out(make):
    model, rng = make(), np.random.default_rng(0)
    z = jnp.asarray(1.5 * rng.normal(size=(len(ALL_X), model.dim)), jnp.float32)
    likelihood, means, prior, joint, part = own_terms(model, ALL_X, z, 0.5)
    expected = written_out(model, ALL_X, z)
    for own, other in zip((likelihood, means, prior), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(part, 0.5 * expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(joint, 0.5 * expected[0] + expected[2], rtol=1e-4, atol=1e-4)


def test_batch_repeats_its_data():
    model, rng = two_layers(), np.random.default_rng(0)
    z = jnp.asarray(rng.normal(size=(2 * B, 2)), jnp.float32)
    likelihood, _, prior = written_out(model, np.tile(X, (2, 1)), z)
    np.testing.assert_allclose(once(lambda z: model.at(X).log_probs(z))(z), likelihood + prior, rtol=1e-4)
    single = model.at(X[:1])
    own = once(lambda u: (single.log_prob(u), single.log_jacobian(u)))(z[0])
    assert float(own[0]) == pytest.approx(likelihood[0] + prior[0], rel=1e-4)
    assert float(own[1]) == 0.0
    with pytest.raises(TypeError, match="one z per datapoint"):
        model.at(X).log_prob(z[0])


@pytest.mark.parametrize("make", [one_layer, two_layers])
def test_probabilities_of_all_data_sum_to_one(make):
    assert np.exp(np.asarray(log_evidence(make(), ALL_X), float)).sum() == pytest.approx(1.0, abs=1e-4)


def test_pixel_means_are_those_of_the_likelihood():
    # By enumeration of x, at a few z.
    model = three_layers()
    for z in np.random.default_rng(1).normal(size=(3, 6)):
        rows = jnp.asarray(np.tile(z, (len(ALL_X), 1)), jnp.float32)
        likelihood, means, *_ = own_terms(model, ALL_X, rows)
        chances = np.exp(np.asarray(likelihood, float))
        assert chances.sum() == pytest.approx(1.0, abs=1e-5)
        np.testing.assert_allclose(chances @ np.asarray(ALL_X), means[0], atol=1e-5)


def test_prior_draws_have_the_moments_of_its_density():
    model, n = two_layers(), 60_000
    points, cell = grid(2, 241)
    log_prior = np.asarray(own_terms(model, jnp.zeros((len(points), PIXELS)), points)[2], float) + cell
    assert logsumexp(log_prior) == pytest.approx(0.0, abs=1e-4)
    z = np.asarray(once(lambda key: model.sample_prior(key, n))(jr.key(0)), float)

    def moments(z):
        return np.stack([z[:, 0], z[:, 1], z[:, 0] ** 2, z[:, 0] * z[:, 1], z[:, 1] ** 2, z[:, 0] * z[:, 1] ** 2], -1)

    mean, error = mean_and_error(moments(z))
    exact = np.exp(log_prior) @ moments(np.asarray(points, float))
    assert (np.abs(mean - exact) < 4.5 * error).all()
    assert abs(exact[3] - exact[0] * exact[1]) > 10 * error[3]  # the layers do depend on each other


def test_prior_draws_of_three_layers():
    # E[g(z) / p(z)] = 1 under draws of p, for a density g inside it: layers in the wrong order would show.
    model, n = three_layers(), 40_000

    @once
    def weights(key):
        z = model.sample_prior(key, n)
        return z, model.log_prior(z)

    z, log_p = (np.asarray(a, float) for a in weights(jr.key(0)))
    pieces = np.split(z, (3, 5), axis=-1)
    log_g = norm.logpdf(pieces[2], 0.1, 0.7).sum(-1)
    for layer, own, above in zip(model.layers, pieces, pieces[1:], strict=False):
        h = trunk(layer.trunk, above)
        centre, scale = dense(layer.loc, h), np.exp(6 * np.tanh(dense(layer.log_scale, h) / 6))
        log_g += norm.logpdf(own, centre + 0.1 * scale, 0.8 * scale).sum(-1)
    ratio = np.exp(log_g - log_p)
    mean, error = mean_and_error(ratio)
    assert error < 0.02
    assert abs(mean - 1) < 4.5 * error


def test_pixel_means_at_the_start(key):
    mean = jnp.asarray([0.0, 0.2, 0.5, 1.0])
    model = DLGM(PIXELS, (2,), ((5,),), mean=mean, key=key)
    flat = eqx.tree_at(lambda m: m.logits.weight, model, jnp.zeros_like(model.logits.weight))
    np.testing.assert_allclose(flat.probabilities(jnp.ones((1, 2)))[0], [0.001, 0.2, 0.5, 0.999], rtol=1e-4)


def test_scales_of_layers_do_not_run_away():
    model = two_layers()
    wild = eqx.tree_at(lambda m: m.layers[0].log_scale.bias, model, jnp.full(1, 1e3))
    assert float(wild.layers[0](jnp.zeros((1, 1))).base_dist.scale[0, 0]) == pytest.approx(np.exp(6), rel=1e-3)


DIVERGENCES = {
    "one layer": (lambda: one_layer(2), lambda: amortised(2, 2)),
    "joint": (lambda: three_layers(), lambda: amortised(6, 2, 6)),
    "chain": (
        three_layers,
        lambda: Chain(amortised(3, 1, 4), amortised(2, 1, 5, inputs=3), amortised(1, 1, 6, inputs=2)),
    ),
}


@pytest.mark.parametrize("name", [pytest.param("one layer", marks=pytest.mark.slow), "joint", "chain"])
def test_divergence(name):
    model, encoder = (make() for make in DIVERGENCES[name])
    n = 20_000 * B

    @once
    def both(key):
        z, _, q, _ = draw(encoder.at(X).view(), key, n)
        return model.divergence(q, z), q.log_prob(z) - model.log_prior(z)

    closed, sampled = (np.asarray(a, float).reshape(-1, B) for a in both(jr.key(0)))
    mean, error = mean_and_error(closed - sampled)
    assert (error < 0.02 * np.abs(closed.mean(0)) + 0.02).all()
    assert (np.abs(mean) < 4.5 * error).all()


def test_divergence_given_the_layer_above():
    # Joint q: the draws of a layer's own variables are integrated out, so only those above matter.
    model, encoder = two_layers(), amortised(2, 2, 6)

    @once
    def at(key, shift):
        z, _, q, _ = draw(encoder.at(X).view(), key, B)
        return model.divergence(q, z), model.divergence(q, z + shift)

    below, above = (at(jr.key(0), jnp.asarray(shift)) for shift in ([1.0, 0.0], [0.0, 1.0]))
    np.testing.assert_allclose(below[0], below[1])
    assert np.abs(above[0] - above[1]).min() > 1e-3


def test_chain_divergence_by_hand():
    model, encoder = two_layers(), chain()

    @once
    def terms(key):
        z, _, q, _ = draw(encoder.at(X).view(), key, B)
        first, second = (layer.base_dist for layer in q.layers(z))
        return z, first.scale, second.loc, second.scale, model.divergence(q, z)

    z, lower_scale, loc, scale, own = (np.asarray(a, float) for a in terms(jr.key(0)))
    layer = model.layers[0]
    h = trunk(layer.trunk, z[:, 1:])
    log_p = norm.logpdf(z[:, :1], dense(layer.loc, h), np.exp(6 * np.tanh(dense(layer.log_scale, h) / 6)))
    kl = 0.5 * (scale**2 + loc**2 - 1) - np.log(scale)
    expected = kl - (0.5 * np.log(2 * np.pi * np.e) + np.log(lower_scale)) - log_p
    np.testing.assert_allclose(own, expected[:, 0], rtol=1e-4, atol=1e-4)


def test_one_network_per_layer(key):
    with pytest.raises(ValueError, match="one network per layer, got 1 for 2 layers"):
        DLGM(PIXELS, (2, 1), ((5,),), key=key)
