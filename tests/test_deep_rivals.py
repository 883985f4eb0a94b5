"""The rivals of the amortised VGP: mean-field, hierarchical, planar and Hamiltonian, each against what is exact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import (
    PIXELS,
    B,
    X,
    assert_unbiased,
    covering,
    exact_log_q,
    log_evidence,
    mean_and_error,
    moved,
    numbers,
    one_layer,
    two_layers,
    values,
)
from scipy.stats import norm

from vgp.amortised import Chain
from vgp.bounds import Importance, draw, log_q_sandwich
from vgp.compiling import once
from vgp.gradients import DoublyReparameterised, Pathwise, StickingTheLanding
from vgp.rivals import hvi, planar
from vgp.rivals.hvi import HamiltonianEncoder
from vgp.rivals.hvm import HierarchicalEncoder
from vgp.rivals.planar import PlanarEncoder
from vgp.rivals.vae import GaussianEncoder


def mean_field(dim=2, seed=1, inputs=PIXELS):
    return covering(moved(GaussianEncoder((inputs, 5), dim, key=jr.key(seed)), seed))


def hierarchical(dim=2, latent_dim=1, seed=6, **options):
    made = HierarchicalEncoder((PIXELS, 5), dim, latent_dim, width=4, auxiliary_width=4, key=jr.key(seed), **options)
    return covering(moved(made, seed, 0.2))


def flow(dim=2, length=3, seed=3, size=0.2):
    made = covering(moved(PlanarEncoder((PIXELS, 5), dim, length, key=jr.key(seed)), seed, size))
    return eqx.tree_at(lambda q: q.log_scale.bias, made, made.log_scale.bias + 0.3)


def hamiltonian(dim=2, leapfrogs=3, seed=4, size=0.3):
    made = moved(HamiltonianEncoder((PIXELS, 5), dim, leapfrogs, width=4, key=jr.key(seed)), seed, size)
    return eqx.tree_at(lambda q: q.log_step, covering(made), jnp.log(jnp.linspace(0.3, 0.5, dim)))


ENCODERS = {
    "mean-field": mean_field,
    "hierarchical": hierarchical,
    "planar": flow,
    "hamiltonian": hamiltonian,
}


@pytest.fixture(scope="module")
def model():
    return one_layer(2)


@pytest.fixture(scope="module")
def exact(model):
    return np.asarray(log_evidence(model, X), float)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", ENCODERS)
def test_weights_have_the_evidence_as_their_mean(name, model, exact):
    encoder = ENCODERS[name]()
    inner = 2 if name == "hierarchical" else 0
    bounds = Importance(inner, split=False), Importance(inner, outer=4), Importance(inner)
    one, many, split = numbers(bounds, model, encoder)
    assert_unbiased(one, exact)
    assert_unbiased(many, exact)
    (low, low_error), (high, high_error) = mean_and_error(one), mean_and_error(many)
    assert (low < high - 3 * np.hypot(low_error, high_error)).all()
    assert (high < exact - 3 * high_error).all()
    mean, error = mean_and_error(one - split)
    if name in ("planar", "hamiltonian"):  # no closed-form part
        np.testing.assert_allclose(one, split)
    else:
        assert (error < 0.03).all() and (one - split).std() > 0.1
        assert (np.abs(mean) < 4.5 * error).all()


@pytest.mark.slow
def test_a_chain_of_mean_fields():
    model = two_layers()
    encoder = Chain(mean_field(1, 1), mean_field(1, 5, inputs=1))
    [table] = numbers([Importance(inner=0, split=False)], model, encoder)
    assert_unbiased(table, log_evidence(model, X))


def test_importance_weighted_autoencoder_written_out(model, key):
    # Gaussian q in numpy, at the very draws of the bound.
    encoder = mean_field()

    @once
    def parts(key):
        z = draw(encoder.at(X).view(), key, 3 * B)[0]
        return z, model.log_likelihood(jnp.tile(X, (3, 1)), z)

    z, likelihood = (np.asarray(a, float) for a in parts(key))
    h = np.tanh(X @ encoder.trunk.layers[0].weight + encoder.trunk.layers[0].bias)
    loc = np.tile(h @ encoder.loc.weight + encoder.loc.bias, (3, 1))
    scale = np.tile(np.exp(-8) + np.exp(h @ encoder.log_scale.weight + encoder.log_scale.bias), (3, 1))
    log_ratio = likelihood + norm.logpdf(z).sum(-1) - norm.logpdf(z, loc, scale).sum(-1)
    expected = np.log(np.exp(log_ratio).reshape(3, B).mean(0))
    own = values(Importance(inner=0, outer=3), model, encoder, key, B)[0]
    np.testing.assert_allclose(own, expected, rtol=1e-4)


@pytest.mark.parametrize("name", [pytest.param("hierarchical", marks=pytest.mark.slow), "planar", "hamiltonian"])
def test_rows_belong_to_datapoints_in_turn(name, model, key):
    encoder, bound = ENCODERS[name](), Importance(inner=1)
    folded = values(bound, model, encoder, key, 2 * B)
    tiled = values(bound, model, encoder, key, 2 * B, jnp.tile(X, (2, 1)))
    np.testing.assert_allclose(folded.reshape(-1), tiled.reshape(-1), rtol=1e-4, atol=1e-4)
    assert np.ptp(folded[0]) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["planar", "hamiltonian"])
def test_the_gradient_is_that_of_the_value(name, model, key):
    # Along a direction in all weights at once, the model's among them: nothing is held fixed by mistake.
    pair = (model, ENCODERS[name]())
    params, static = eqx.partition(pair, eqx.is_inexact_array)
    direction = jax.tree.map(lambda leaf: 0 * leaf, params)
    direction = moved(direction, 0, 1.0)

    @once
    def both(step):
        def value(step):
            model, encoder = eqx.combine(jax.tree.map(lambda p, d: p + step * d, params, direction), static)
            return jnp.mean(Importance(inner=1)(model.at(X), encoder.at(X, model), key, 20 * B))

        return jax.value_and_grad(value)(step)

    h = 0.01
    (up, _), (down, _), (_, slope) = (both(jnp.asarray(s)) for s in (h, -h, 0.0))
    assert abs(float(slope)) > 0.1
    assert float(up - down) / (2 * h) == pytest.approx(float(slope), rel=0.05)


# ---------------------------------------------------------------- the hierarchical model


@pytest.mark.parametrize("scale", ["gp", "learned"])
def test_hierarchical_warp_written_out(scale):
    encoder = hierarchical(scale=scale)
    rng = np.random.default_rng(0)
    xi = jnp.asarray(rng.normal(size=(2, 2 * B, 1)), jnp.float32)
    q = once(lambda xi: encoder.at(X).view().conditional(xi))(xi).base_dist
    for i in range(2 * B):
        h = np.tanh(X[i % B] @ encoder.trunk.layers[0].weight + encoder.trunk.layers[0].bias)
        from_x = h @ encoder.from_x.weight + encoder.from_x.bias
        first = np.tanh(xi[:, i] @ encoder.from_xi.weight + encoder.from_xi.bias + from_x)
        out = np.tanh(first @ encoder.second.weight + encoder.second.bias) @ encoder.outputs
        spread = np.exp(-8) + np.exp(h @ encoder.log_scale.weight + encoder.log_scale.bias)
        loc = h @ encoder.loc.weight + encoder.loc.bias + spread * out[:, :2]
        drive = 6 * np.tanh(out[:, 2:] / 6) if scale == "gp" else 0.0
        noise = spread * np.exp(encoder.meanfield.log_scale + drive)
        np.testing.assert_allclose(q.loc[:, i], loc, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(q.scale[:, i], np.broadcast_to(noise, loc.shape), rtol=1e-4)


@pytest.mark.slow
def test_hierarchical_sandwich():
    encoder, n = hierarchical(), 30_000

    @once
    def both(key):
        view = encoder.at(X).view()
        z, y, _, inner_key = draw(view, key, n)
        return exact_log_q(view, z, 1), log_q_sandwich(view, z, y, inner_key, 3)

    exact, sides = both(jr.key(0))
    upper, lower, single = (np.asarray(side - exact, float) for side in sides)
    assert lower.mean() < -3 * lower.std() / n**0.5
    assert single.mean() > upper.mean() > 3 * upper.std() / n**0.5
    for weights in (np.exp(lower), np.exp(-upper)):
        error = weights.std() / n**0.5
        assert error < 0.02 and abs(weights.mean() - 1) < 5 * error


@pytest.mark.slow
def test_hierarchical_starts_as_the_mean_field(model, key):
    made = HierarchicalEncoder((PIXELS, 5), 2, 2, width=4, auxiliary_width=4, key=key)
    plain = mean_field()
    shared = (plain.trunk, plain.loc, plain.log_scale)
    made = eqx.tree_at(lambda q: (q.trunk, q.loc, q.log_scale), made, shared)
    both = [values(Importance(inner=2), model, q, key, 2 * B) for q in (made, plain)]
    np.testing.assert_allclose(*both, atol=1e-5)


# ---------------------------------------------------------------- planar flows


@pytest.mark.parametrize("size", [0.4, 1.5])
def test_planar_density_by_change_of_variables(size, monkeypatch):
    family = flow(3, 4, size=size).at(X)
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(2 * B, 3)), jnp.float32)

    def drawn(noise):
        monkeypatch.setattr(planar, "standard_normal", lambda *_: noise)
        return family.draw(jr.key(0), 2 * B)

    @once
    def both(noise):
        slopes = jax.jacfwd(lambda e: drawn(e).z)(noise)
        return drawn(noise), slopes

    (z, log_q, score), slopes = both(noise)
    assert score is None
    for i in range(2 * B):
        own = np.asarray(slopes[i, :, i], float)
        _, volume = np.linalg.slogdet(own)
        assert log_q[i] == pytest.approx(norm.logpdf(noise[i]).sum() - volume, rel=1e-3, abs=1e-3)
        rest = np.delete(np.asarray(slopes[i]), i, axis=1)
        assert np.abs(rest).max() == 0  # rows do not touch each other
    straight = family.loc + family.scale * noise.reshape(2, B, 3)
    assert np.abs(z - straight.reshape(-1, 3)).max() > 0.05  # the flow does something


@pytest.mark.parametrize("size", [0.3, 1.0, 2.0])
def test_planar_steps_can_be_inverted(size):
    # wᵀû > −1 where wᵀu itself is not, and û only adds to u along w.
    encoder = moved(PlanarEncoder((PIXELS, 5), 2, 20, key=jr.key(0)), 0, size)
    family = once(lambda: encoder.at(X))()
    product = np.sum(np.asarray(family.u, float) * np.asarray(family.w, float), axis=-1)
    assert (product > -1 - 1e-5).all()
    h = np.tanh(X @ encoder.trunk.layers[0].weight + encoder.trunk.layers[0].bias)
    steps = (h @ encoder.steps.weight + encoder.steps.bias).reshape(B, 20, 5).swapaxes(0, 1)
    u, w, b = np.split(steps, (2, 4), axis=-1)
    np.testing.assert_allclose(family.w, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(family.b, b, rtol=1e-4, atol=1e-5)
    raw = np.sum(u * w, axis=-1)
    np.testing.assert_allclose(product, np.logaddexp(0, raw) - 1, rtol=1e-3, atol=1e-3)
    across = np.stack([-w[..., 1], w[..., 0]], -1)
    np.testing.assert_allclose(np.sum(family.u * across, -1), np.sum(u * across, -1), rtol=1e-3, atol=1e-3)
    if size > 0.5:
        assert raw.min() < -1


@pytest.mark.parametrize("product", [-10.0, -17.3, -1000.0])
def test_planar_density_is_finite_at_the_hinge(product, monkeypatch):
    # At wᵀz + b = 0 the volume is 1 + wᵀû = softplus(wᵀu), next to nothing: rounding must not make it less than that.
    encoder = PlanarEncoder((PIXELS, 5), 2, 1, key=jr.key(0))
    w = np.array([1.7, -0.9])
    step = jnp.asarray([*(product * w / (w @ w)), *w, 0.0], jnp.float32)
    new = (0 * encoder.loc.weight, 0 * encoder.steps.weight, step)
    encoder = eqx.tree_at(lambda q: (q.loc.weight, q.steps.weight, q.steps.bias), encoder, new)
    monkeypatch.setattr(planar, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    z, log_q, _ = once(lambda: encoder.at(X).draw(jr.key(0), B))()
    np.testing.assert_allclose(z, 0.0, atol=1e-6)
    base = 2 * norm.logpdf(0) - 2 * np.log(1 + np.exp(-8))
    assert np.isfinite(log_q).all()
    assert (log_q > base + 5).all()
    if product > -12:
        np.testing.assert_allclose(log_q, base - np.log(np.logaddexp(0, product)), rtol=0.05)


@pytest.mark.parametrize("gradient", [StickingTheLanding(), DoublyReparameterised()], ids=["stl", "dreg"])
@pytest.mark.parametrize("name", ["planar", "hamiltonian"])
def test_what_has_no_density_goes_with_pathwise(name, gradient, model, key):
    with pytest.raises(TypeError, match="use vgp.gradients.Pathwise"):
        values(Importance(inner=0), model, ENCODERS[name](), key, B, X, gradient)


# ---------------------------------------------------------------- Hamiltonian dynamics


class Listener(eqx.Module):
    """Stands in for the reverse model, and hears where the momentum ended."""

    heard: list = eqx.field(static=True)

    def latent(self, e):
        self.heard.append(e)
        return self

    def log_prob(self, v):
        self.heard.append(v)
        return jnp.zeros(len(v))


def dynamics(encoder, model, monkeypatch):
    """(z₀, v₀) ↦ (z, v) and log q(z₀, v₀), by way of the family itself."""

    def run(z, v, step=None):
        heard = []
        family = (encoder if step is None else eqx.tree_at(lambda q: q.log_step, encoder, step)).at(X, model)
        noise = iter([(z - jnp.tile(family.loc, (2, 1))) / jnp.tile(family.scale, (2, 1)), v])
        family = eqx.tree_at(lambda f: f.reverse, family, Listener(heard))
        monkeypatch.setattr(hvi, "standard_normal", lambda *_: next(noise))
        drawn = family.draw(jr.key(0), 2 * B)
        e, momentum = heard
        return drawn.z, momentum, drawn.log_q, e

    return run


def start(dim=2):
    rng = np.random.default_rng(0)
    return (jnp.asarray(rng.normal(size=(2 * B, dim)), jnp.float32) for _ in range(2))


@pytest.mark.parametrize("leapfrogs", [1, 3])
def test_leapfrogs_keep_volume_and_can_be_undone(leapfrogs, model, monkeypatch):
    encoder = hamiltonian(2, leapfrogs)
    run = dynamics(encoder, model, monkeypatch)
    z0, v0 = start()

    @once
    def everything(z0, v0):
        def both(pair):
            return jnp.concatenate(run(*jnp.split(pair, 2, axis=-1))[:2], axis=-1)

        slopes = jax.jacfwd(both)(jnp.concatenate([z0, v0], -1))
        z, v, log_q, e = run(z0, v0)
        back = run(z, -v)[:2]
        family = encoder.at(X, model)
        return slopes, (z, v, log_q, e), back, (family.loc, family.scale)

    slopes, (z, _, log_q, e), (z_back, v_back), (loc, scale) = everything(z0, v0)
    for i in range(2 * B):
        assert np.linalg.det(np.asarray(slopes[i, :, i], float)) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(z_back, z0, atol=1e-4)
    np.testing.assert_allclose(-v_back, v0, atol=1e-4)
    assert np.abs(z - z0).max() > 0.3
    loc, scale = np.tile(loc, (2, 1)), np.tile(scale, (2, 1))
    np.testing.assert_allclose(log_q, norm.logpdf(z0, loc, scale).sum(-1) + norm.logpdf(v0).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(e, (z - loc) / scale, rtol=1e-4, atol=1e-4)


def test_dynamics_keep_the_energy(model, monkeypatch):
    # To second order in the step: the same path in twice the steps has a quarter of the error.
    errors = []
    for leapfrogs, size in ((4, 0.2), (8, 0.1)):
        run = dynamics(hamiltonian(2, leapfrogs), model, monkeypatch)

        @once
        def energies(z0, v0, run=run, size=size):
            z, v, *_ = run(z0, v0, jnp.full(2, jnp.log(size)))

            def energy(z, v):
                return 0.5 * jnp.sum(v**2, -1) - model.log_likelihood(jnp.tile(X, (2, 1)), z) - model.log_prior(z)

            return energy(z, v) - energy(z0, v0), z - z0

        change, way = energies(*start())
        assert np.abs(way).max() > 0.3
        errors.append(np.abs(change).max())
    assert errors[0] < 0.1
    assert errors[1] < 0.4 * errors[0]


def test_hamiltonian_log_q_has_the_reverse_model(model, key, monkeypatch):
    # log q(z₀) + log q(v₀) − log r(v | x, z), r written out.
    encoder = hamiltonian()
    run = dynamics(encoder, model, monkeypatch)
    z0, v0 = start()

    @once
    def parts(z0, v0):
        _, v, log_q, e = run(z0, v0)
        family = encoder.at(X, model)
        noise = iter([(z0 - jnp.tile(family.loc, (2, 1))) / jnp.tile(family.scale, (2, 1)), v0])
        monkeypatch.setattr(hvi, "standard_normal", lambda *_: next(noise))
        return v, log_q, e, family.draw(key, 2 * B).log_q

    v, log_q, e, own = (np.asarray(a, float) for a in parts(z0, v0))
    r = encoder.reverse
    h = np.tile(np.tanh(X @ encoder.trunk.layers[0].weight + encoder.trunk.layers[0].bias), (2, 1))
    first = np.tanh(e @ r.from_g.weight + r.from_g.bias + h @ r.from_x.weight + r.from_x.bias)
    out = np.tanh(first @ r.second.weight + r.second.bias) @ r.last.weight + r.last.bias
    log_r = norm.logpdf(v, e @ r.slope.weight + r.slope.bias + out[:, :2], np.exp(out[:, 2:])).sum(-1)
    np.testing.assert_allclose(own, log_q - log_r, rtol=1e-4, atol=1e-4)


def test_hamiltonian_needs_the_model(key):
    with pytest.raises(TypeError, match="pass it: at"):
        hamiltonian().at(X)


def test_hamiltonian_gradient_is_pathwise(model, key):
    # The same call with the estimator that applies, as a check on the refusals above.
    assert values(Importance(inner=0), model, hamiltonian(), key, B, X, Pathwise()).shape == (1, B)
