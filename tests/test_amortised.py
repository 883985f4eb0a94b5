"""The amortised VGP: at every datapoint the same family as everywhere, with bounds and gradients that are right."""

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
    assert_unbiased,
    chain,
    exact_log_q,
    log_evidence,
    mean_and_error,
    moved,
    normal_nodes,
    numbers,
    one_layer,
    two_layers,
    values,
)
from scipy.stats import multivariate_normal, norm

import vgp
from vgp.amortised import AmortisedVGP, Chain
from vgp.amortised.vgp import JITTER
from vgp.bounds import Importance, draw, log_q_sandwich
from vgp.compiling import once
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


# ---------------------------------------------------------------- bounds against quadrature

CASES = {
    "one": (one_layer, amortised),
    "joint": (two_layers, lambda: amortised(2, 2, 6)),
    "chain": (two_layers, chain),
}


@pytest.fixture(scope="module", params=[pytest.param("one", marks=pytest.mark.slow), "joint", "chain"])
def case(request):
    """The evidence, and tables of values: K = 0, K = 4, K = 4 with the closed-form part, K = M = 4."""
    model, encoder = (make() for make in CASES[request.param])
    bounds = Importance(0, split=False), Importance(4, split=False), Importance(4), Importance(4, outer=4)
    tables = numbers(bounds, model, encoder)
    return np.asarray(log_evidence(model, X), float), *tables


def test_bounds_and_their_order(case):
    exact, single, inner, _, outer = case
    for table in (single, inner, outer):  # the mean of the weights is p(x) itself
        assert_unbiased(table, exact)
    means, errors = zip(*map(mean_and_error, (single, inner, outer)), strict=True)
    margins = [3 * np.hypot(errors[0], errors[1]), 3 * np.hypot(errors[1], errors[2]), 3 * errors[2]]
    for low, high, margin in zip(means, (*means[1:], exact), margins, strict=True):
        assert (low < high - margin).all()  # each is tighter, and none exact


def test_split_has_the_same_mean(case):
    _, _, plain, split, _ = case
    mean, error = mean_and_error(plain - split)  # of the same draws
    assert (plain - split).std() > 0.1  # not one and the same
    assert (error < 0.02).all()
    assert (np.abs(mean) < 4.5 * error).all()


@pytest.mark.slow
def test_single_sample_bound_by_quadrature():
    # K = 0, with ξ and the noise integrated on a grid and every term written out.
    model, encoder = one_layer(), amortised()
    [table] = numbers([Importance(inner=0)], model, encoder)
    mean, error = mean_and_error(table)
    points, weights = normal_nodes(2, 48)
    view = encoder.at(X).view()

    @once
    def bound():
        xi = jnp.repeat(points[:, :1], B, axis=0)  # row j of datapoint j modulo b
        q = view.conditional(xi).base_dist
        z = q.loc + q.scale * jnp.repeat(points[:, 1:], B, axis=0)
        r = view.posterior(z).base_dist

        def log_normal(value, loc, scale):
            return -0.5 * ((value - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

        log_q = log_normal(z, q.loc, q.scale) + log_normal(xi, 0.0, 1.0) - log_normal(xi, r.loc, r.scale)
        log_p = model.log_likelihood(jnp.tile(X, (len(points), 1)), z) + log_normal(z, 0.0, 1.0)[:, 0]
        return jnp.sum((log_p - log_q[:, 0]).reshape(-1, B) * jnp.exp(weights)[:, None], axis=0)

    assert (error < 0.02).all()
    assert (np.abs(mean - np.asarray(bound())) < 4.5 * error + 1e-3).all()


def prior_like(factorised):
    """Variational inputs far from all ξ: q(f | ξ) is then the same everywhere, and r(f | x, ξ, z) can be inside it."""
    encoder = amortised(kernel=ARD(0.5), factorised=factorised)
    encoder = eqx.tree_at(lambda q: q.inputs, encoder, jnp.asarray([[-9.0], [-7.0], [7.0], [9.0]]))
    if not factorised:
        return encoder
    narrow = encoder.auxiliary.last.bias.at[3].add(-1.0)
    return eqx.tree_at(lambda q: q.auxiliary.last.bias, encoder, narrow)


@pytest.mark.slow
@pytest.mark.parametrize("factorised", [False, True])
def test_bounds_that_keep_f(factorised):
    model, encoder = one_layer(), prior_like(factorised)
    exact = np.asarray(log_evidence(model, X))
    bounds = (
        Importance(inner=2, split=False, collapse=False),
        Importance(inner=0, split=False, collapse=False),
        vgp.bounds.General(),
        Importance(inner=0, split=False),
    )
    tight, kept, printed, collapsed = numbers(bounds, model, encoder)
    assert_unbiased(tight, exact)
    if not factorised:  # where r(f | ξ, z) is q(f | ξ), all that has to do with f cancels
        np.testing.assert_allclose(kept, printed, atol=1e-4)
        return
    (mean, error), (best, best_error) = mean_and_error(kept), mean_and_error(collapsed)
    assert (mean < best - 3 * np.hypot(error, best_error)).all()
    assert (printed.mean(0) < exact).all()


@pytest.mark.slow
def test_warm_up_weighs_the_likelihood(key):
    model, encoder = one_layer(), amortised()

    @once
    def at(weight):
        z = draw(encoder.at(X).view(), key, 4 * B)[0]
        bound = Importance(inner=2)(model.at(X, weight), encoder.at(X), key, 4 * B)
        return bound, model.log_likelihood(jnp.tile(X, (4, 1)), z)

    (none, likelihood), (half, _), (whole, _) = (at(jnp.asarray(w)) for w in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(half, (none + whole) / 2, atol=1e-4)
    np.testing.assert_allclose(whole - none, likelihood, atol=1e-4)


# ---------------------------------------------------------------- log q(z | x), from both sides


@once
def sandwich(encoder, key, n, inner):
    view = encoder.at(X).view()
    z, y, _, inner_key = draw(view, key, n)
    if isinstance(encoder, Chain):
        first, second = view.parts(z, y)
        exact = exact_log_q(first[0], first[1], 1) + exact_log_q(second[0], second[1], 1)
    else:
        exact = exact_log_q(view, z, encoder.latent_dim)
    return exact, log_q_sandwich(view, z, y, inner_key, inner)


ENCODERS = {
    "c = 1": amortised,
    "c = 2": lambda: amortised(2, 2),
    "linearised": lambda: amortised(2, 1, linearised=1),
    "chain": chain,
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ("c = 1", "c = 2") else ()) for n in ENCODERS]
)
def test_sandwich_holds_the_exact_density(name):
    encoder = ENCODERS[name]()
    n = 12_000 if name == "c = 2" else 30_000
    exact, sides = sandwich(encoder, jr.key(0), n, 4)
    upper, lower, single = (np.asarray(side - exact, float) for side in sides)
    error = {side: v.std() / n**0.5 for side, v in (("upper", upper), ("lower", lower), ("single", single))}
    assert upper.mean() > 3 * error["upper"]
    assert lower.mean() < -3 * error["lower"]
    assert single.mean() > upper.mean() + 3 * np.hypot(error["upper"], error["single"])  # K = 0 is the loosest
    # Each is exact in the mean of its weights: q̂ from r alone, 1/q̂ with the ξ that generated z.
    for weights in (np.exp(lower), np.exp(-upper), np.exp(-single)):
        deviation = weights.std() / n**0.5
        assert deviation < 0.02
        assert abs(weights.mean() - 1) < 5 * deviation


@pytest.mark.parametrize("steps", [1, 2])
def test_linearised_auxiliary_is_exact_for_a_linear_warp(steps):
    # Any guess will do: log q(z) is then the same number for every ξ, and the one of linear algebra.
    encoder = amortised(3, 2, kernel=Linear(0.4, np.full(2, 0.5)), scale="learned", linearised=steps)
    encoder = eqx.tree_at(lambda q: q.auxiliary.last, encoder, jax.tree.map(jnp.zeros_like, encoder.auxiliary.last))

    @once
    def both(encoder):
        view = encoder.at(X).view()
        z, y, _, _ = draw(view, jr.key(0), 4 * B)
        found = view.log_joint(z, y) - view.posterior(z).log_prob(y)
        points = jnp.concatenate([jnp.zeros((1, 2)), jnp.eye(2)])[:, None]
        q = view.conditional(jnp.broadcast_to(points, (3, 4 * B, 2))).base_dist
        return z, found, q.loc, q.scale

    z, found, loc, scale = (np.asarray(a, float) for a in both(encoder))
    for i in range(4 * B):
        slope = (loc[1:, i] - loc[0, i]).T
        covariance = slope @ slope.T + np.diag(scale[0, i] ** 2)
        expected = multivariate_normal(loc[0, i], covariance).logpdf(z[i])
        assert found[i] == pytest.approx(expected, abs=2e-3)
    assert np.abs(slope).max() > 0.05


# ---------------------------------------------------------------- gradients, the model's own among them


def estimates(bound, gradients, pair, batches=40, n=300 * B):
    """Gradients of batches with respect to every weight of model and encoder, by each estimator from the same keys."""
    params, static = eqx.partition(pair, eqx.is_inexact_array)

    @once
    def tables(params, keys):
        def one(key):
            def mean(params, gradient):
                model, encoder = eqx.combine(params, static)
                return jnp.mean(bound(model.at(X), encoder.at(X, model), key, n, gradient))

            return [jax.grad(mean)(params, gradient) for gradient in gradients]

        return jax.lax.map(one, keys)

    made = []
    for model, encoder in tables(params, jr.split(jr.key(0), batches)):
        layers = getattr(encoder, "layers", (encoder,))
        groups = {"decoder": model, "auxiliary": [q.auxiliary for q in layers], "encoder": encoder}
        leaves = {name: [np.asarray(a, float) for a in jax.tree.leaves(group)] for name, group in groups.items()}
        made.append({k: np.concatenate([a.reshape(batches, -1) for a in v], 1) for k, v in leaves.items()})
    return made


BOUNDS = {
    "inner": (Importance(inner=2), one_layer, amortised),
    "unsplit": (Importance(inner=2, split=False), one_layer, amortised),
    "outer": (Importance(inner=1, outer=3), one_layer, amortised),
    "linearised": (Importance(inner=1, split=False), one_layer, lambda: amortised(linearised=1)),
    "chain": (Importance(inner=1), two_layers, chain),
    "chain, outer": (Importance(inner=1, outer=3), two_layers, chain),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "outer" else pytest.mark.slow) for name in BOUNDS]
)
def test_estimators_agree_with_the_model_learned(name):
    bound, model, encoder = BOUNDS[name]
    others = [DoublyReparameterised()] + ([StickingTheLanding()] if bound.outer == 1 else [])
    plain, *rest = estimates(bound, [Pathwise(), *others], (model(), encoder()))
    for group in ("decoder", "auxiliary"):
        mean, error = mean_and_error(plain[group])
        assert np.median(np.abs(mean) / np.maximum(error, 1e-12)) > 10, group  # a wrong factor would show
    for other, gradient in zip(rest, others, strict=True):
        for group in plain:
            mean, error = mean_and_error(plain[group] - other[group])
            assert (np.abs(mean) < 5 * error + 1e-5).all(), (group, type(gradient).__name__)


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
