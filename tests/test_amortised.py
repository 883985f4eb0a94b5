"""The amortised VGP: at every datapoint the same family as everywhere."""

from functools import partial

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
    amortised,
    chain,
    moved,
    one_layer,
    values,
)
from scipy.stats import norm

import vgp
from vgp.amortised import AmortisedVGP, Chain
from vgp.amortised.vgp import JITTER
from vgp.bounds import Importance, draw, log_q_sandwich
from vgp.compiling import once
from vgp.families.process import each_times
from vgp.gp import Conditioner
from vgp.gradients import DoublyReparameterised, Pathwise, StickingTheLanding
from vgp.kernels import ARD, Linear
from vgp.rivals.planar import PlanarEncoder
from vgp.rivals.vae import GaussianEncoder

# ---------------------------------------------------------------- without a warp it is the mean-field


def twins(dim=2):
    """An amortised VGP as it starts but for an amplitude of zero, and the mean-field with the same weights."""
    kernel = ARD(0.0, 0.5) + Linear(0.0, 0.5)
    ours = AmortisedVGP((PIXELS, 5), dim, 4, 2, kernel=kernel, auxiliary_width=4, key=jr.key(0))
    shared = moved((ours.trunk, ours.loc, ours.log_scale), 0)
    plain = GaussianEncoder((PIXELS, 5), dim, key=jr.key(1))

    def place(q):
        return eqx.tree_at(lambda q: (q.trunk, q.loc, q.log_scale), q, shared)

    return place(ours), place(plain)


@once
def values_and_gradients(bound, gradient, model, encoders, key, n):
    def mean(pair):
        model, encoder = pair
        each = bound(model.at(X), encoder.at(X, model), key, n, gradient)
        return jnp.mean(each), each

    found = [eqx.filter_value_and_grad(mean, has_aux=True)((model, encoder)) for encoder in encoders]
    return [(each, slopes) for (_, each), slopes in found]


@pytest.mark.parametrize(
    "bound, gradient",
    [
        pytest.param(Importance(inner=3), StickingTheLanding(), marks=pytest.mark.slow),
        (Importance(inner=2, outer=3), DoublyReparameterised()),
    ],
    ids=["inner", "outer"],
)
def test_amplitude_zero_is_the_mean_field(bound, gradient, key):
    ours, plain = twins()
    model = one_layer(2)
    first, second = values_and_gradients(bound, gradient, model, (ours, plain), key, 4 * B)
    (each, (by_model, by_ours)), (other, (model_plain, by_plain)) = first, second
    np.testing.assert_allclose(each, other, atol=1e-5)

    def pick(g):
        return jax.tree.leaves((g.trunk, g.loc, g.log_scale))

    ours_all, plain_all = jax.tree.leaves(by_model) + pick(by_ours), jax.tree.leaves(model_plain) + pick(by_plain)
    for first, second in zip(ours_all, plain_all, strict=True):
        np.testing.assert_allclose(first, second, atol=2e-5)
        assert np.abs(second).max() > 1e-4  # so that agreement says something
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_ours))
    assert np.abs(by_ours.outputs.weight).max() > 1e-4  # amplitude zero is no place to be stuck in


@pytest.mark.slow
def test_gradients_are_finite_at_amplitude_zero(key):
    kernel = ARD(0.0, 0.5) + Linear(0.0, 0.5)
    q = AmortisedVGP((PIXELS, 5), 2, 4, 2, kernel=kernel, inputs="network", rank=2, auxiliary_width=4, key=key)
    [(each, slopes)] = values_and_gradients(Importance(inner=2), Pathwise(), one_layer(2), (q,), key, B)
    assert np.isfinite(each).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


# ---------------------------------------------------------------- at x it is the family of everywhere


def dense(layer, x):
    return x @ np.asarray(layer.weight) + np.asarray(layer.bias)


def by_hand(encoder, i):
    """`vgp.VGP` with what the network gives for datapoint i, and the network's features."""
    h = np.asarray(X[i])
    for layer in encoder.trunk.layers:
        h = np.tanh(dense(layer, h))
    outputs = dense(encoder.outputs, h).reshape(-1, sum(encoder.meanfield.outputs(encoder.dim)))
    if encoder.basis is not None:
        outputs = np.asarray(encoder.basis) @ outputs
    inputs = np.asarray(encoder.inputs)
    if encoder.moved is not None:
        inputs = inputs + dense(encoder.moved, h).reshape(inputs.shape)
    linear = encoder.linear
    if encoder.tilted is not None:
        tilts = dense(encoder.tilted, h).reshape(encoder.dim, encoder.latent_dim)
        linear = linear.at[: encoder.dim].add(tilts)
    family = vgp.VGP(
        encoder.dim,
        inputs.shape[0],
        encoder.latent_dim,
        inputs=jnp.asarray(inputs),
        kernel=encoder.kernel,
        mean="zero" if linear is None else "affine",
        meanfield=encoder.meanfield,
        loc=jnp.asarray(dense(encoder.loc, h)),
        scale=jnp.asarray(np.exp(-8) + np.exp(dense(encoder.log_scale, h)), jnp.float32),
        key=jr.key(0),
    )
    if linear is not None:
        family = eqx.tree_at(lambda f: f.linear, family, linear)
    return eqx.tree_at(lambda f: f.whitened, family, jnp.asarray(outputs)), h


@once
def of_vgp(family, z, xi, f):
    """Mean, scale and log joint density of z given ξ and given (ξ, f), by way of the place."""
    w, volume = family.place.inverse(z), family.place.log_volume
    with pytest.MonkeyPatch.context() as patch:  # the one thing that differs
        patch.setattr("vgp.gp.structure.Conditioner", partial(Conditioner, jitter=JITTER))
        views = family.view(), family.view(collapse=False)
    given = []
    for view, y in zip(views, (xi, (xi, f)), strict=True):
        q = view.conditional(y).base_dist
        given.append((family.place(q.loc), q.scale * family.place.factor, view.log_joint(w, y) - volume))
    return given


@once
def of_encoder(encoder, z, xi, f):
    given = []
    for collapse, y in ((True, xi), (False, (xi, f))):
        view = encoder.at(X).view(collapse)
        q = view.conditional(y).base_dist
        given.append((q.loc, q.scale, view.log_joint(z, y)))
    return given


slow = pytest.mark.slow
VARIANTS = {
    "general": {},
    "learned scale": {"scale": "learned"},
    "rank": {"rank": 2},
    "inputs from the network": {"inputs": "network"},
    "rank and inputs": {"rank": 3, "inputs": "network"},
    "affine": {"mean": "affine"},
    "linear part from the network": {"rank": 2, "mean": "network"},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            n, marks=pytest.mark.slow if n in ("learned scale", "rank", "inputs from the network", "affine") else ()
        )
        for n in VARIANTS
    ],
)
def test_is_a_vgp_at_every_datapoint(name):
    encoder = moved(AmortisedVGP((PIXELS, 5), 2, 4, 3, auxiliary_width=4, key=jr.key(3), **VARIANTS[name]), 3)
    rng = np.random.default_rng(0)
    n, k = 2 * B, 3  # two rows for every datapoint, and inner samples
    z, xi, f = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((n, 2), (k, n, 3), (k, n, 2)))
    ours = of_encoder(encoder, z, xi, f)
    scales = []
    for i in range(B):
        theirs = of_vgp(by_hand(encoder, i)[0], z[i::B], xi[:, i::B], f[:, i::B])
        for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(own[:, i::B], np.broadcast_to(other, own[:, i::B].shape), rtol=5e-4, atol=5e-4)
        scales.append(ours[0][1][:, i])
    assert np.std(np.stack(scales)[..., 0], axis=0).max() > 1e-2  # datapoints differ, so that mixing them up shows


def test_scale_by_the_process():
    # With scale="gp" the second block of outputs drives the scale by its mean, and the amplitude adds to it.
    encoder = moved(AmortisedVGP((PIXELS, 5), 1, 4, 1, kernel=ARD(0.3), auxiliary_width=4, key=jr.key(3)), 3)
    family, _ = by_hand(encoder, 0)
    xi = np.array([[0.4]])
    s, k = np.asarray(encoder.inputs, float), encoder.kernel
    omega, variance = float(k.weights), float(k.variance)
    gram = np.exp(-0.5 * omega * (s - s.T) ** 2) + JITTER * np.eye(4)
    cross = np.exp(-0.5 * omega * (xi - s.T) ** 2)
    weights = np.linalg.solve(np.linalg.cholesky(gram), cross.T).T
    f, drive = (weights @ np.asarray(family.whitened, float))[0]
    noise = np.exp(float(encoder.meanfield.log_scale[0]) + 6 * np.tanh(drive / 6))
    spread = np.sqrt(variance * (1 - (weights**2).sum()) + noise**2)
    loc, scale = float(family.place.loc[0]), float(family.place.factor[0])
    q = once(lambda xi: encoder.at(X[:1]).view().conditional(xi))(jnp.asarray(xi, jnp.float32)).base_dist
    assert float(q.loc[0, 0]) == pytest.approx(loc + scale * f, rel=1e-3)
    assert float(q.scale[0, 0]) == pytest.approx(scale * spread, rel=1e-3)


@pytest.mark.parametrize("mean", [pytest.param("zero", marks=pytest.mark.slow), "network"])
def test_auxiliary_sees_data_and_residual(mean):
    # r(ξ | x, z) and r(f | x, ξ, z), written out for every row.
    encoder = amortised(2, 3, factorised=True, mean=mean)
    rng = np.random.default_rng(0)
    z, xi, f = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2 * B, 2), (2, 2 * B, 3), (2, 2 * B, 2)))

    @once
    def ours(encoder):
        return [encoder.at(X).view(collapse).posterior(z).log_prob(y) for collapse, y in ((True, xi), (False, (xi, f)))]

    r, c, expected = encoder.auxiliary, 3, [[], []]
    for i in range(2 * B):
        family, h = by_hand(encoder, i % B)
        e = (np.asarray(z[i]) - np.asarray(family.place.loc)) / np.asarray(family.place.factor)
        g = [e, dense(encoder.outputs, h).reshape(4, -1)[:, :2] @ e]
        if mean == "network":
            g.append(dense(encoder.tilted, h).reshape(2, 3).T @ e)
        g = np.concatenate(g)
        out = dense(r.last, np.tanh(dense(r.second, np.tanh(dense(r.from_g, g) + dense(r.from_x, h)))))
        loc, scale = dense(r.slope, g) + out[:c], np.exp(out[c : 2 * c])
        of_xi = norm.logpdf(xi[:, i], loc, scale).sum(-1)
        of_f = norm.logpdf(f[:, i], out[2 * c : 2 * c + 2], np.exp(out[2 * c + 2 :])).sum(-1)
        expected[0].append(of_xi)
        expected[1].append(of_xi + of_f)
    for own, other in zip(ours(encoder), expected, strict=True):
        np.testing.assert_allclose(own, np.stack(other, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_rows_belong_to_datapoints_in_turn(key):
    # n = 2b rows of b datapoints are one row each of the data twice over, in the outer draws too.
    bound, encoder, model = Importance(inner=2, outer=2), amortised(2, 2), one_layer(2)
    folded = values(bound, model, encoder, key, 2 * B)
    tiled = values(bound, model, encoder, key, 2 * B, jnp.tile(X, (2, 1)))
    np.testing.assert_allclose(folded.reshape(-1), tiled.reshape(-1), rtol=1e-5, atol=1e-5)
    assert np.ptp(folded[0]) > 1e-2


@pytest.mark.slow
def test_starts_near_the_mean_field_with_no_gap(key):
    encoder, model = AmortisedVGP((PIXELS, 5), 2, 4, 2, auxiliary_width=4, key=key), one_layer(2)

    @once
    def gap(encoder):
        view = encoder.at(X).view()
        z, y, q, inner_key = draw(view, key, 1000 * B)
        return q.base_dist.scale, log_q_sandwich(view, z, y, inner_key, 8)

    scale, sides = gap(encoder)
    np.testing.assert_allclose(scale, 1.0, atol=0.2)  # σ(x) = 1 at the start, in 1 + amplitude
    assert float(jnp.mean(sides.single - sides.lower)) == pytest.approx(0.0, abs=0.02)
    assert model.dim == encoder.dim


def test_a_smaller_basis_and_the_layers_that_are_no_matrices(key):
    usual, small = (
        AmortisedVGP((PIXELS, 5), 2, 4, 2, rank=3, inputs="network", mean="network", reach=reach, key=key)
        for reach in (1.0, 0.2)
    )
    np.testing.assert_allclose(small.basis, 0.2 * usual.basis, rtol=1e-6)
    assert [layer.blocks for layer in (usual.loc, usual.log_scale)] == [1, 1]
    assert [layer.blocks for layer in (usual.outputs, usual.moved, usual.tilted)] == [0, 0, 0]  # left to Adam


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("rank", [0, 5, -1])
def test_rank_out_of_range(rank, key):
    with pytest.raises(ValueError, match="rank must be between 1 and num_data = 4"):
        AmortisedVGP((PIXELS, 5), 2, 4, rank=rank, key=key)


def test_inputs_unknown(key):
    # The types say so too, and in the tests they are checked first.
    with pytest.raises(Exception, match="inputs"):
        AmortisedVGP((PIXELS, 5), 2, 4, inputs="local", key=key)


def test_sticking_the_landing_needs_one_outer_draw(key):
    with pytest.raises(TypeError, match="biased"):
        values(Importance(inner=1, outer=2), one_layer(), amortised(), key, B, X, StickingTheLanding())


def test_a_chain_is_of_hierarchical_families(key):
    mixed = Chain(PlanarEncoder((PIXELS, 5), 2, 2, key=key), amortised(inputs=2))
    with pytest.raises(TypeError, match="A Chain is of families .* got Planar"):
        once(mixed.at)(X)


def test_a_chain_has_no_auxiliary_model_of_its_own(key):
    with pytest.raises(TypeError, match="one auxiliary model per layer"):
        once(lambda z: chain().at(X).view().posterior(z))(jnp.zeros((B, 2)))


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 1)])
def test_rows_times_the_matrix_of_their_datapoint(lead, monkeypatch):
    rows, matrices, slopes = (jr.normal(jr.key(i), s) for i, s in enumerate([(*lead, 5, 4), (5, 4, 6), (*lead, 5, 6)]))
    expected = np.stack([np.asarray(rows)[..., i, :] @ np.asarray(matrices)[i] for i in range(5)], axis=-2)
    by_rows, by_matrices = jax.vjp(each_times, rows, matrices)[1](slopes)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(each_times(rows, matrices), expected, rtol=1e-4, atol=1e-5)
    found = jax.vjp(each_times, rows, matrices)[1](slopes)
    np.testing.assert_allclose(found[0], by_rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], by_matrices, rtol=1e-4, atol=1e-5)
