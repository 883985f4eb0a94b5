"""Deep exponential families: densities written out, summed and integrated, draws of the prior, and terms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import mean_and_error, moved
from scipy.special import logsumexp
from scipy.stats import gamma, poisson

import vgp
from vgp.compiling import once
from vgp.meanfield import Categorical, Gamma, Mixed
from vgp.models.exponential import DEF

COUNTS = 3
SHAPES = {
    "one layer": ((2,), ()),
    "poisson": ((3, 2), ("poisson",)),
    "gamma": ((2, 2), ("gamma",)),
    "poisson, gamma": ((3, 2, 1), ("poisson", "gamma")),
    "gamma, poisson": ((3, 2, 1), ("gamma", "poisson")),
}


def network(name, shape=0.7):
    latents, kinds = SHAPES[name]
    return moved(DEF(COUNTS, latents, kinds, shape=shape, key=jr.key(0)), 0, 0.4)


def weights(layer):
    return np.log1p(np.exp(np.asarray(layer.raw, float)))


def written_out(model, x, z):
    """log p(x | z₁) and log p(z_i | layer above) of every variable, in numpy."""
    pieces = np.split(np.asarray(z, float), np.cumsum(model.latents)[:-1], axis=-1)
    means = [above @ weights(layer) for layer, above in zip(model.layers, pieces[1:], strict=True)]
    means.append(np.ones_like(pieces[-1]))
    units = [
        poisson.logpmf(own, m) if kind == "poisson" else gamma.logpdf(own, model.shape, scale=m / model.shape)
        for kind, own, m in zip(model.kinds, pieces, means, strict=True)
    ]
    return poisson.logpmf(np.asarray(x), pieces[0] @ weights(model.weights)).sum(-1), np.concatenate(units, -1)


@once
def own_terms(model, x, z):
    return model.log_likelihood(x, z), model.log_prior(z), model.log_terms(x, z), model.probabilities(z)


def values(model, n, seed=0):
    """Counts and values within the support, none of them zero."""
    rng = np.random.default_rng(seed)
    own = [
        1.0 + rng.poisson(1.5, (n, size)) if kind == "poisson" else rng.gamma(2.0, 0.5, (n, size)) + 0.05
        for kind, size in zip(model.kinds, model.latents, strict=True)
    ]
    return jnp.asarray(rng.poisson(2.0, (n, COUNTS)), float), jnp.asarray(np.concatenate(own, -1), float)


@pytest.mark.parametrize("name", SHAPES)
def test_densities_written_out(name):
    model = network(name)
    x, z = values(model, 30)
    likelihood, prior, terms, rates = own_terms(model, x, z)
    expected = written_out(model, x, z)
    close = dict(rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(likelihood, expected[0], **close)
    np.testing.assert_allclose(prior, expected[1].sum(-1), **close)
    np.testing.assert_allclose(terms, np.column_stack(expected), **close)
    np.testing.assert_allclose(rates, np.asarray(z)[:, : model.latents[0]] @ weights(model.weights), rtol=1e-4)


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
def test_chances_sum_to_one(kind):
    # One count, one variable per layer: counts are summed, positive variables integrated over their logarithms.
    model = moved(DEF(1, (1, 1), (kind,), shape=1.5, key=jr.key(1)), 1, 0.3)
    line, cell = np.linspace(-12.0, 4.5, 80, retstep=True)
    positive, counts = (np.exp(line), line + np.log(cell)), (np.arange(60.0), np.zeros(60))
    axes = [counts, counts if kind == "poisson" else positive, positive]
    points = np.stack(np.meshgrid(*[values for values, _ in axes], indexing="ij"), -1).reshape(-1, 3)
    volume = np.stack(np.meshgrid(*[log_w for _, log_w in axes], indexing="ij"), -1).reshape(-1, 3).sum(-1)
    x, z = jnp.asarray(points[:, :1], float), jnp.asarray(points[:, 1:], float)
    likelihood, prior, *_ = (np.asarray(a, float) for a in own_terms(model, x, z))
    assert logsumexp(likelihood + prior + volume) == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize("name", [pytest.param("poisson, gamma", marks=pytest.mark.slow), "gamma, poisson"])
def test_prior_draws_have_the_moments_of_its_layers(name):
    # E z_l = E[z_{l+1}] W, and Cov(z_l, z_{l+1}) = Wᵀ Cov(z_{l+1}); the variance given the layer above is m or m²/α.
    model, n = network(name, shape=3.0), 30_000
    z = np.asarray(once(lambda key: model.sample_prior(key, n))(jr.key(0)), float)
    assert (z > 0).all(where=np.repeat([kind == "gamma" for kind in model.kinds], model.latents))
    pieces = np.split(z, np.cumsum(model.latents)[:-1], axis=-1)
    mean, covariance = np.ones(model.latents[-1]), np.eye(model.latents[-1]) / model.shape
    for i in reversed(range(3)):
        if i < 2:
            w, above, over = weights(model.layers[i]), pieces[i + 1], mean
            cross, mean, spread = w.T @ covariance, mean @ w, w.T @ covariance @ w
            own = mean if model.kinds[i] == "poisson" else (mean**2 + np.diag(spread)) / model.shape
            covariance = spread + np.diag(own)
            products = (pieces[i] - mean)[:, :, None] * (above - over)[:, None]
            found, error = mean_and_error(products)
            assert (np.abs(found - cross) < 4.5 * error).all()
        assert _near(pieces[i], mean) and _near((pieces[i] - mean) ** 2, np.diag(covariance))
    counts = np.repeat([kind == "poisson" for kind in model.kinds], model.latents)
    np.testing.assert_array_equal(z[:, counts], np.round(z[:, counts]))


def _near(draws, exact):
    found, error = mean_and_error(draws)
    return (np.abs(found - exact) < 4.5 * error).all()


@pytest.mark.parametrize("name", SHAPES)
def test_terms_touch_what_they_say(name):
    model = network(name)
    x, z = values(model, 30)
    changed = np.zeros((1 + model.dim, model.dim), bool)
    before = np.asarray(own_terms(model, x, z)[2])
    for i, step in enumerate(np.eye(model.dim)):
        after = np.asarray(own_terms(model, x, jnp.asarray(np.asarray(z) + step, float))[2])
        changed[:, i] = np.abs(after - before).max(0) > 1e-4
    np.testing.assert_array_equal(model.touches, changed)


def test_sparse_layers_stay_finite():
    model = DEF(COUNTS, (4, 3, 3), ("gamma", "poisson"), shape=0.02, key=jr.key(0))

    @once
    def drawn(key):
        z = model.sample_prior(key, 500)
        return z, model.log_terms(jnp.ones((500, COUNTS)), z)

    z, terms = drawn(jr.key(0))
    assert (np.asarray(z)[:, 4:7] == 0).all(-1).any()  # a layer of counts that is zero throughout
    assert np.isfinite(terms).all()


def test_means_at_the_start(key):
    mean = jnp.asarray([0.1, 2.0, 30.0])
    model = DEF(COUNTS, (3000, 1000), ("gamma",), mean=mean, key=key)
    np.testing.assert_allclose(model.probabilities(jnp.ones((1, 3000)))[0], mean, rtol=0.15)
    assert np.asarray(model.layers[0](jnp.ones((1, 1000)))).mean() == pytest.approx(1.0, abs=0.05)


def test_supports_and_no_closed_form():
    model = network("poisson, gamma")
    half = jnp.asarray(0.5)
    assert [bool(support(half)) for support in model.supports] == [False, True, True]
    assert model.at(jnp.ones((1, COUNTS))).divergence(None, jnp.ones((1, 6))) is None


BAD = {
    "1 of them for 2 layers, got 0": ((2, 2), (), 0.3),
    "'gamma' or 'poisson', got 'normal'": ((2, 2), ("normal",), 0.3),
    "must be positive, got -1": ((2,), (), -1.0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_layers(message, key):
    latents, kinds, shape = BAD[message]
    with pytest.raises(ValueError, match=message):
        DEF(COUNTS, latents, kinds, shape=shape, key=key)


BAD_DATA = {
    r"rows of 3 counts, got shape \(1, 4\)": np.ones((1, 4)),
    r"rows of 3 counts, got shape \(3,\); pass \(n, 3\), one datapoint as x\[None\]": np.ones(3),
    "whole numbers from 0 on, got -1": np.array([[2.0, -1.0, 0.0]]),
    "whole numbers from 0 on, got 0.5": np.array([[2.0, 0.5, 0.0]]),
    "whole numbers from 0 on, got nan": np.array([[2.0, np.nan, 0.0]]),
}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("message", BAD_DATA)
def test_bad_data(message, key):
    with pytest.raises(ValueError, match=message):
        DEF(COUNTS, (2,), key=key).at(jnp.asarray(BAD_DATA[message]))


def test_compiled_data_are_not_looked_at(key):
    model = DEF(COUNTS, (2,), key=key)
    found = jax.jit(lambda x: model.at(x).log_probs(jnp.ones((2, 2))))(jnp.ones((1, COUNTS)))
    np.testing.assert_allclose(found, model.at(jnp.ones((1, COUNTS), int)).log_probs(jnp.ones((2, 2))), rtol=1e-5)


def known(model, x, n=200_000):
    """log p(x), and the posterior's mean, by a large sample of the prior."""
    z = model.sample_prior(jr.key(1), n)
    log_weights = model.log_likelihood(jnp.broadcast_to(x, (len(z), x.shape[-1])), z)
    return logsumexp(log_weights) - np.log(len(z)), jax.nn.softmax(log_weights) @ z


@pytest.mark.slow
def test_a_small_count_that_the_data_pin_down():
    # A Poisson is as wide as its mean tells, and its bound is tens of nats away; classes can be as sure as need be.
    model = DEF(4, (2, 1), ("poisson",), shape=2.0, mean=jnp.full(4, 5.0), key=jr.key(0))
    x = jnp.array([[2.0, 1.0, 9.0, 4.0]])
    log_p, mean = known(model, x)
    family = vgp.VGP(3, 8, 2, meanfield=Mixed((Categorical(6), 2), (Gamma(1), 1)), key=jr.key(2))
    fit = vgp.fit(model.at(x), family, key=jr.key(0), steps=1500, progress=False)
    assert log_p - 0.03 < fit.elbo.lower < log_p + 4 * fit.elbo.stderr + 0.01
    assert fit.ess > 0.9
    np.testing.assert_allclose(fit.sample(jr.key(1), 4000).mean(0), mean, atol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gamma", "poisson"])
def test_a_posterior_is_fitted(kind):
    model = DEF(4, (2, 1), (kind,), shape=2.0, key=jr.key(0))
    weights = np.array([[0.2, 0.1, 0.3, 0.05], [0.05, 0.2, 0.1, 0.2]]), np.array([[8.0, 12.0]])
    raw = [jnp.asarray(np.log(np.expm1(each)), float) for each in weights]
    model = eqx.tree_at(lambda m: (m.weights.raw, m.layers[0].raw), model, raw)
    x = jnp.array([[2.0, 1.0, 3.0, 2.0]])
    log_p, mean = known(model, x)
    fit = vgp.fit(model.at(x), key=jr.key(0), steps=800, progress=False)
    assert log_p - 0.3 < fit.elbo.lower < log_p + 4 * fit.elbo.stderr
    np.testing.assert_allclose(fit.sample(jr.key(2), 5000).mean(0), mean, rtol=0.05)
