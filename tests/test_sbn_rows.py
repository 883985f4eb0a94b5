"""Sigmoid belief networks under an inference network: a bound on the right evidence, by enumeration."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import moved
from jax.scipy.special import logsumexp

from vgp.amortised import AmortisedVGP
from vgp.amortised.linearised import Linearised
from vgp.bounds import Importance
from vgp.experiments import rows
from vgp.gradients import VALUES, VIMCO, DisARM, LocalExpectations, ScoreFunction
from vgp.meanfield import Bernoulli, Categorical, Poisson
from vgp.models import SBN
from vgp.montecarlo.enumeration import enumerate_states
from vgp.rivals.factorised import FactorisedEncoder

PIXELS, UNITS, B = 4, 3, 2
X = jnp.asarray([[1.0, 0, 1, 1], [0, 0, 1, 0]])
MODEL = moved(SBN(PIXELS, (UNITS,), key=jr.key(0)), 1)
STATES = jnp.asarray(enumerate_states([2] * UNITS), float)
ENCODERS = {
    "factorised": FactorisedEncoder((PIXELS, 5), UNITS, Bernoulli(), key=jr.key(2)),
    "vgp": AmortisedVGP((PIXELS, 5), UNITS, 4, 2, rank=3, meanfield=Bernoulli(), auxiliary_width=6, key=jr.key(2)),
    "vgp, logit": AmortisedVGP(
        (PIXELS, 5), UNITS, 4, 2, rank=3, meanfield=Bernoulli("logit"), auxiliary_width=6, key=jr.key(2)
    ),
}


def log_evidence():
    return jnp.stack([logsumexp(MODEL.at(x[None]).log_probs(STATES)) for x in X])


@pytest.mark.parametrize("name", ENCODERS)
def test_weights_have_the_evidence_for_mean(name):
    # exp of the bound with one inner and outer sample is unbiased for p(x): no constant, sign or factor can be wrong.
    encoder = moved(ENCODERS[name], 3)

    @jax.jit
    def values(key):
        target, family = MODEL.at(X), encoder.at(X, MODEL)
        return Importance(inner=2, split=False)(target, family, key, 20_000 * B, VALUES).reshape(-1, B)

    weights = np.exp(np.asarray(values(jr.key(4))) - np.asarray(log_evidence()))
    error = weights.std(0) / np.sqrt(len(weights))
    assert (error < 0.04).all(), error
    assert (np.abs(weights.mean(0) - 1) < 5 * error).all(), (weights.mean(0), error)


def exact(encoder):
    """The factorised bound and its derivative, all states summed over."""
    params, static = eqx.partition(encoder, eqx.is_inexact_array)

    def value(params):
        q = eqx.combine(params, static).at(X, MODEL).view().conditional(jnp.zeros((B, 0)))
        total = 0.0
        for state in STATES:
            z = jnp.broadcast_to(state, (B, UNITS))
            log_q = q.log_prob(z)
            total += jnp.mean(jnp.exp(log_q) * (MODEL.at(X).log_probs(z) - log_q))
        return total

    return flat(jax.jit(jax.grad(value))(params))


def flat(tree):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("gradient", [DisARM(), LocalExpectations(), ScoreFunction()], ids=lambda g: type(g).__name__)
def test_gradient_of_each_image(gradient):
    # Baselines are of draws of the same image: those of another one would show.
    encoder = moved(ENCODERS["factorised"], 3)
    params, static = eqx.partition(encoder, eqx.is_inexact_array)

    def one(key):
        def value(params):
            family = eqx.combine(params, static).at(X, MODEL)
            return Importance(inner=0)(MODEL.at(X), family, key, 200 * B, gradient).mean()

        return flat(jax.grad(value)(params))

    found = np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(5), 200)))
    error, right = found.std(0) / np.sqrt(len(found)), np.asarray(exact(encoder))
    assert error.max() < 0.03 * np.abs(right).max()
    assert (np.abs(found.mean(0) - right) < 5 * error + 1e-5).all()


def test_outer_draws_of_a_batch():
    encoder = moved(ENCODERS["vgp"], 3)
    values = jax.jit(lambda key: Importance(inner=1, outer=5)(MODEL.at(X), encoder.at(X), key, 2000 * B, VIMCO()))
    single = jax.jit(lambda key: Importance(inner=1)(MODEL.at(X), encoder.at(X), key, 2000 * B, VALUES))
    tight, loose = (np.asarray(f(jr.key(6))).reshape(-1, B).mean(0) for f in (values, single))
    assert (loose < tight).all() and (tight < np.asarray(log_evidence()) + 0.02).all()


@pytest.mark.parametrize("name", [name for name in rows.ROWS if name.startswith("sbn")])
def test_rows_build_and_step(name):
    row = rows.find(name)
    learner = eqx.filter_eval_shape(lambda: rows.build(row, (4, 4), jnp.full(16, 0.3), jr.key(0)))
    assert learner.model.dim == learner.encoder.dim == sum(row.latents)

    def value(learner):
        x = jnp.ones((2, 16))
        bound = row.make_bound(row.inner[-1][1])
        return bound(
            learner.model.at(x), learner.encoder.at(x, learner.model), jr.key(0), 2, row.make_gradient()
        ).mean()

    assert eqx.filter_eval_shape(eqx.filter_grad(value), learner) is not None


def test_what_an_inference_network_can_feed():
    with pytest.raises(ValueError, match="Bernoulli mean-field has mean='zero'"):
        AmortisedVGP((PIXELS, 5), UNITS, 4, meanfield=Bernoulli(), mean="affine", key=jr.key(0))
    with pytest.raises(ValueError, match="linearised= goes with a Normal .* got Poisson"):
        AmortisedVGP((PIXELS, 5), UNITS, 4, meanfield=Poisson(), linearised=1, key=jr.key(0))
    with pytest.raises(ValueError, match="an output for each number that r sees"):
        AmortisedVGP((PIXELS, 5), UNITS, 4, meanfield=Categorical(3), key=jr.key(0))


def test_an_auxiliary_model_that_follows_the_warp_of_coins():
    """Steps of scoring end where log q(z, ξ) is flat in ξ, and the precision there is one and the information of z."""
    options = {"meanfield": Bernoulli(), "latent_dim": 2, "start": 3.0, "linearised": 16}
    encoder = AmortisedVGP((PIXELS, 5), UNITS, 4, key=jr.key(0), **options)
    x = jr.bernoulli(jr.key(1), 0.5, (1, PIXELS)).astype(float)

    @eqx.filter_jit
    def found(encoder):
        view = encoder.at(x).view()

        def log_q(xi, z):  # all states at one ξ
            return view.conditional(jnp.broadcast_to(xi, (len(z), 2))).log_prob(z)

        r = view.posterior(STATES)
        flat = jax.vmap(lambda xi, z: jax.grad(lambda xi: log_q(xi, z[None])[0] - 0.5 * xi @ xi)(xi))(r.loc, STATES)
        scores = jax.vmap(jax.jacobian(lambda xi: log_q(xi, STATES)))(r.loc)  # (at, of, c)
        weights = jnp.exp(jax.vmap(lambda xi: log_q(xi, STATES))(r.loc))
        information = jnp.einsum("az,azi,azj->aij", weights, scores, scores)
        return r.loc, flat, information, r.factor @ r.factor.swapaxes(1, 2)

    loc, flat, information, precision = found(encoder)
    assert np.abs(loc).max() > 0.1
    np.testing.assert_allclose(flat, 0.0, atol=1e-3)
    np.testing.assert_allclose(precision, np.eye(2) + information, rtol=1e-3, atol=1e-3)
    assert np.abs(information).max() > 0.02


def test_a_unit_that_is_sure_leaves_the_gradient_finite():
    encoder = AmortisedVGP((PIXELS, 5), UNITS, 4, 2, meanfield=Bernoulli(), start=1.0, linearised=1, key=jr.key(0))
    encoder = eqx.tree_at(lambda q: q.loc.bias, encoder, jnp.array([40.0, -40.0, 0.0]))

    def value(encoder):
        return Importance(inner=2)(MODEL.at(X), encoder.at(X, MODEL), jr.key(1), B, DisARM()).mean()

    for leaf in jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(value))(encoder)):
        assert np.isfinite(leaf).all()


DEEP = moved(SBN(PIXELS, (UNITS, 2), key=jr.key(7)), 1)


def follower(**options):
    """A VGP over both layers in general position, with an auxiliary model that follows its warp from ξ = 0."""
    both = {"rank": 3, "meanfield": Bernoulli(), "auxiliary_width": 0, "linearised": 1, "start": 3.0, **options}
    return moved(AmortisedVGP((PIXELS, 5), UNITS + 2, 4, 2, key=jr.key(2), **both), 3)


def test_flips_of_an_auxiliary_model_that_follows_the_warp():
    view = follower().at(X).view()
    states = jnp.asarray(enumerate_states([2] * (UNITS + 2)), float)
    z = jnp.repeat(states, B, axis=0)  # every state at every image
    y = jr.normal(jr.key(8), (len(z), 2))

    def ratio(z):
        return view.log_latent(y) - view.posterior(z).log_prob(y)

    tried = jnp.stack([ratio(z.at[:, i].set(1 - z[:, i])) - ratio(z) for i in range(UNITS + 2)], axis=1)
    found = view.flips(z, y)
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found, tried, rtol=1e-3, atol=1e-4)
    assert follower(linearised=2).at(X).view().flips(z, y) is None
    assert follower(auxiliary_width=6).at(X).view().flips(z, y) is None


@pytest.mark.parametrize("meanfield", [Bernoulli(), None], ids=["binary", "normal"])
@pytest.mark.parametrize("options", [{}, {"rank": None}, {"inputs": "network"}], ids=["low rank", "full", "own inputs"])
def test_a_step_from_zero_is_the_step_from_a_guess_that_is_zero(meanfield, options, monkeypatch):
    encoder, z = follower(meanfield=meanfield, **options), jr.bernoulli(jr.key(9), 0.5, (2 * B, UNITS + 2)) * 1.0
    y = jr.normal(jr.key(8), (2 * B, 2))

    def value(encoder):
        return encoder.at(X).view().posterior(z).log_prob(y).sum()

    found = eqx.filter_value_and_grad(value)(encoder)
    monkeypatch.setattr("vgp.amortised.linearised.FromZero", lambda process: Linearised(process, 1))
    expected = eqx.filter_value_and_grad(value)(encoder)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert np.abs(found[1].inputs).max() > 1e-3


@pytest.mark.parametrize(
    "options", [{}, {"linearised": 0}, {"auxiliary_width": 6}], ids=["follows", "prior", "network"]
)
def test_known_flips_give_the_gradient_of_tried_ones(options, monkeypatch):
    # Draw by draw where all of the bound is known, in the mean where a part of it goes as in DisARM.
    params, static = eqx.partition(follower(**options), eqx.is_inexact_array)

    def found(key):
        def value(params):
            family = eqx.combine(params, static).at(X, DEEP)
            return Importance(inner=0)(DEEP.at(X), family, key, 50 * B, LocalExpectations()).mean()

        return flat(jax.grad(value)(params))

    def several():
        return np.asarray(jax.jit(lambda keys: jax.lax.map(found, keys))(jr.split(jr.key(9), 200)))

    known = several()
    monkeypatch.setattr(SBN, "flips", lambda *_: None)
    tried = several()
    if not options.get("auxiliary_width"):
        np.testing.assert_allclose(known, tried, rtol=1e-3, atol=2e-4)
    difference = known - tried
    error = difference.std(0) / np.sqrt(len(difference))
    assert (np.abs(difference.mean(0)) < 5 * error + 1e-4).all()
    assert np.abs(known.mean(0)).max() > 0.05


def test_an_auxiliary_model_without_a_network_is_not_for_everything():
    with pytest.raises(ValueError, match="goes with mean='zero' .* got mean='affine'"):
        AmortisedVGP((PIXELS, 5), UNITS, 4, 2, auxiliary_width=0, mean="affine", key=jr.key(0))
