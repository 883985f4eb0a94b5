"""DRAW: attention that is what it says, a bound on the right evidence, and a VGP that contains the mean-field."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from deep_problems import assert_unbiased, exact_log_q, log_evidence, mean_and_error, moved

from vgp.amortised import AmortisedVGP
from vgp.amortised.draw import DrawEncoder
from vgp.bounds import Importance, draw, log_q_sandwich
from vgp.compiling import once
from vgp.gp.jitter import cholesky
from vgp.gradients import DoublyReparameterised, Pathwise, StickingTheLanding
from vgp.kernels import ARD, Linear
from vgp.models import DRAW
from vgp.models.attention import PART, RAW, ROUND, WIDE, Layout, read, ring, tiling, window, write
from vgp.models.glimpse import glimpsed
from vgp.models.lstm import LSTM, Memory
from vgp.rivals.vae import GaussianEncoder

SHAPE, GLIMPSES, UNITS, B = (2, 3), 2, 4, 3
X = jnp.asarray([[1.0, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1]])

# ---------------------------------------------------------------- attention


def by_hand(raw, size, shape):
    """The filters of one window, from their definition in pixel coordinates that begin at one."""
    (height, width), (x, y, log_variance, log_stride, _) = shape, raw
    stride = (max(shape) - 1) / (size - 1) * np.exp(log_stride)
    filters = []
    for centre, pixels in ((x, width), (y, height)):
        own = np.zeros((size, pixels))
        for i in range(1, size + 1):
            mean = (pixels + 1) / 2 * (centre + 1) + (i - size / 2 - 0.5) * stride
            weights = [np.exp(-((a - mean) ** 2) / (2 * np.exp(log_variance))) for a in range(1, pixels + 1)]
            own[i - 1] = np.array(weights) / np.sum(weights)
        filters.append(own)
    return filters


def bent_back(raw):
    """Raw numbers that a window bends to these, by a tanh between its limits."""
    low, high = np.array([-1, -1, -2.5, -4, -4]), np.array([1, 1, 7, 0, 4])
    return jnp.asarray((low + high) / 2 + (high - low) / 2 * np.arctanh((2 * raw - low - high) / (high - low)))


def test_windows_read_and_write():
    rng = np.random.default_rng(0)
    raw = 0.3 * rng.normal(size=(4, 5))
    raw[:, 3] = -np.abs(raw[:, 3])  # no stride is wider than covers the image
    image, patch = rng.normal(size=(4, 5, 7)), rng.normal(size=(4, 3, 3))
    reading, writing = (once(lambda x, w=w: window(x, 3, (5, 7), reads=w))(bent_back(raw)) for w in (True, False))
    (seen,), drawn = read(reading, jnp.asarray(image)), write(writing, jnp.asarray(patch))
    for i in range(4):
        across, down = by_hand(raw[i], 3, (5, 7))
        gain = np.exp(raw[i, 4])
        np.testing.assert_allclose(reading.across[i], gain * across, atol=1e-5)
        np.testing.assert_allclose(writing.across[i], across / gain, atol=1e-5)
        np.testing.assert_allclose(reading.down[i], down, atol=1e-5)
        np.testing.assert_allclose(seen[i], gain * down @ image[i] @ across.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(drawn[i], down.T @ patch[i] @ across / gain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6)])
def test_windows_that_are_made_together(shape):
    raw = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 5)), float)
    together = Layout(shape, (2, 3), (True, False)).windows(*raw)
    alone = window(raw[0], 2, shape, reads=True), window(raw[1], 3, shape, reads=False)
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(5, 7), (6, 6)])
def test_gradient_of_a_glimpse(shape):
    layout, rng = Layout(shape, (2, 3), (True, False)), np.random.default_rng(2)
    raw, patch, logits = (jnp.asarray(rng.normal(size=(4, *size)), float) for size in ((10,), (3, 3), shape))
    x = jnp.asarray(rng.integers(0, 2, (4, *shape)), float)
    plain = glimpsed.__wrapped__  # the same glimpse, which automatic differentiation goes through

    def total(glimpse):
        def value(*given):
            canvas, seen = glimpse(layout, *given, x)
            return jnp.sum(jnp.sin(3 * canvas)) + jnp.sum(jnp.cos(2 * seen) * jnp.arange(1.0, 9.0).reshape(2, 2, 2))

        return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))(raw, patch, logits)

    (value, slopes), (expected, wanted) = total(glimpsed), total(plain)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for slope, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(slope, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
        assert (np.abs(want).max(0) > 1e-3).all()  # every number matters


@once
def attended(raw, size):
    layout = Layout((28, 28), (size, size), (True, False))
    x, patch = jnp.linspace(-1, 1, 28 * 28).reshape(1, 28, 28), jnp.linspace(-1, 1, size**2).reshape(1, size, size)

    def one(raw):
        canvas, seen = glimpsed(layout, jnp.tile(raw, 2)[None], patch, 0.5 * x, x)
        return jnp.sum(jnp.sin(canvas + jnp.sum(seen)))

    return jax.vmap(jax.value_and_grad(one))(raw)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_attention_at_extremes(size):
    # Windows outside of the image, tiny and huge strides, filters and intensities, and everything at once.
    far = [0.0, 3.0, -3.0, 30.0, -30.0, 1e6, -1e6, 1e30, -1e30]
    rows = [np.eye(5)[i] * value for i in range(5) for value in far]
    rows += [np.full(5, value) for value in far] + list(np.random.default_rng(0).normal(size=(50, 5)) * 100)
    raw = jnp.asarray(np.stack(rows), jnp.float32)
    values, slopes = attended(raw, size)
    assert np.isfinite(values).all() and np.isfinite(slopes).all()
    # Wherever it is, a window has a filter on the image, across and down.
    for side in once(lambda raw: window(raw, size, (28, 28), reads=False))(raw.at[:, 4].set(0.0)):
        assert (np.asarray(side).sum(-1).max(-1) > 0.99).all()


# ---------------------------------------------------------------- the recurrent cell


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("normalised", [False, True])
def test_cell(normalised):
    cell = moved(LSTM(2, 3, normalised=normalised, key=jr.key(0)), 0)
    rng = np.random.default_rng(1)
    x, h, c = rng.normal(size=(4, 2)), rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    found = once(lambda cell: cell(Memory(jnp.asarray(h), jnp.asarray(c)), jnp.asarray(x)))(cell)

    def norm(i, v):
        if not normalised:
            return v
        standard = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5)
        return standard * np.asarray(cell.gains[i]) + np.asarray(cell.shifts[i])

    gates = np.hstack([x, h]) @ np.asarray(cell.gates.weight) + np.asarray(cell.gates.bias)
    entry, forget, new, leave = (norm(i, gates[:, 3 * i : 3 * i + 3]) for i in range(4))
    inside = sigmoid(forget) * c + sigmoid(entry) * np.tanh(new)
    np.testing.assert_allclose(found.c, inside, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.h, sigmoid(leave) * np.tanh(norm(4, inside)), rtol=1e-4, atol=1e-5)
    assert LSTM(2, 3, key=jr.key(0)).gates.bias[3:6].min() == 1.0  # it remembers at first


# ---------------------------------------------------------------- model and encoder


def model(latents=1, seed=0, path="none"):
    return moved(DRAW(SHAPE, GLIMPSES, latents, UNITS, 2, path=path, key=jr.key(seed)), seed, 0.4)


FOLLOWS: dict[str, Any] = {"rank": 2, "linearised": 1, "auxiliary_width": 0}  # as in the rows
STRONG: dict[str, Any] = {"kernel": ARD(0.5, 0.5) + Linear(0.5, 0.5), "start": 3.0}  # or r would be next to q(ξ)
HEADS = {
    "mean-field": lambda dim: GaussianEncoder((UNITS,), dim, key=jr.key(1)),
    "vgp": lambda dim: AmortisedVGP((UNITS,), dim, 4, 1, auxiliary_width=4, key=jr.key(1)),
    "vgp, rank": lambda dim: AmortisedVGP((UNITS,), dim, 4, 2, rank=2, auxiliary_width=4, key=jr.key(1)),
    "vgp, r follows": lambda dim: AmortisedVGP((UNITS,), dim, 4, 2, **FOLLOWS, **STRONG, key=jr.key(1)),
    "vgp, inputs": lambda dim: AmortisedVGP((UNITS,), dim, 4, 1, inputs="network", auxiliary_width=4, key=jr.key(1)),
    "paper": lambda dim: AmortisedVGP((UNITS,), dim, 4, 1, sees="meanfield", auxiliary_width=4, key=jr.key(1)),
}


def encoder(p, name, seed=3):
    latents = p.latents
    made = moved(DrawEncoder(p, HEADS[name](latents), UNITS, 2, key=jr.key(seed)), seed, 0.2)
    wide = (0.3 * made.head.loc.weight, 0 * made.head.log_scale.weight, 0 * made.head.log_scale.bias + 0.2)
    return eqx.tree_at(lambda q: (q.head.loc.weight, q.head.log_scale.weight, q.head.log_scale.bias), made, wide)


@once
def tables(bounds, p, q, key, rows):
    return [b(p.at(X), q.at(X, p), key, rows // b.outer).reshape(-1, B) for b in bounds]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("mean-field", "vgp, r follows") else pytest.mark.slow) for n in HEADS]
)
def test_bounds_by_quadrature(name):
    p = model(path="ring" if name == "vgp, r follows" else "none")
    q = encoder(p, name)
    bounds = Importance(0, split=False), Importance(3, split=False), Importance(3), Importance(2, outer=4)
    single, inner, split, outer = (np.asarray(t, float) for t in tables(bounds, p, q, jr.key(0), 60_000))
    exact = np.asarray(log_evidence(p, X), float)
    for table in (single, inner, outer):
        assert_unbiased(table, exact)
    means, errors = zip(*map(mean_and_error, (single, inner, split, outer)), strict=True)
    assert (means[0] < means[1] + 3 * np.hypot(errors[0], errors[1])).all()
    assert (means[1] < means[3]).all() and (means[3] < exact + 3 * errors[3]).all()
    assert (np.abs(means[2] - means[1]) < 4 * np.hypot(errors[1], errors[2])).all()  # the same mean,
    assert errors[2].mean() < errors[1].mean()  # and less noise


@pytest.mark.slow
def test_sandwich_holds_the_exact_density():
    p = model()
    q = encoder(p, "vgp")

    @once
    def both(p, q):
        view = q.at(X, p).view()
        z, y, _, key = draw(view, jr.key(0), 10_000 * B)
        [(part, own, xi)] = view.parts(z, y)
        exact = exact_log_q(part, own, 1).reshape(GLIMPSES, -1).sum(0)
        return exact, log_q_sandwich(view, z, y, key, 3), xi

    exact, sides, _ = both(p, q)
    upper, lower, single = (np.asarray(side - exact, float) for side in sides)
    assert lower.mean() < 0 < upper.mean() < single.mean()
    for weights in (np.exp(-upper), np.exp(-single)):
        assert abs(weights.mean() - 1) < 5 * weights.std() / len(weights) ** 0.5


@pytest.mark.parametrize("path, own", [("none", "none"), ("ring", "ring"), ("ring", "none"), ("none", "ring")])
def test_a_drawing_is_what_the_model_draws(path, own):
    p = model(2, path=path)
    q = encoder(model(2, path=own), "vgp")

    @once
    def both(p, q):
        drawing = q.at(X, p).view().conditional(jr.normal(jr.key(0), (GLIMPSES, 2 * B, 1))).sample(jr.key(1))
        return drawing, p.canvases(drawing.z), q.at(X, p).view().run(jnp.zeros((GLIMPSES, 2 * B, 1)), z=drawing.z)

    drawing, canvases, again = both(p, q)
    assert canvases.shape == (GLIMPSES, 2 * B, 6) and drawing.z.shape == (2 * B, 4)
    for found in (canvases[-1], again.canvas):
        np.testing.assert_allclose(drawing.canvas, found, rtol=1e-4, atol=1e-5)
    for one, other in zip(jax.tree.leaves(drawing.process), jax.tree.leaves(again.process), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(drawing.z, again.z)


# ---------------------------------------------------------------- the mean-field within the VGP


@once
def values_and_slopes(bound, p, encoders, key):
    def mean(pair):
        p, q = pair
        each = bound(p.at(X), q.at(X, p), key, 4 * B)
        return jnp.mean(each), each

    return [eqx.filter_value_and_grad(mean, has_aux=True)((p, q)) for q in encoders]


@pytest.mark.parametrize("options", [{"auxiliary_width": 4}, FOLLOWS], ids=["r a network", "r follows"])
def test_amplitude_zero_is_draw(options):
    # The same draws, values and gradients, so the same gradient variance: the analytic divergence stays.
    p = model(2)
    plain = encoder(p, "mean-field")
    kernel = ARD(0.0, 0.5) + Linear(0.0, 0.5)
    head = AmortisedVGP((UNITS,), 2, 4, 2, kernel=kernel, **options, key=jr.key(0))
    shared = (plain.head.loc, plain.head.log_scale)
    head = eqx.tree_at(lambda q: (q.loc, q.log_scale), head, shared)
    ours = eqx.tree_at(
        lambda q: (q.reader, q.cell), DrawEncoder(p, head, UNITS, 2, key=jr.key(0)), (plain.reader, plain.cell)
    )
    first, second = values_and_slopes(Importance(2), p, (plain, ours), jr.key(5))
    ((_, each), (by_model, by_plain)), ((_, other), (model_ours, by_ours)) = first, second
    np.testing.assert_allclose(each, other, rtol=1e-5)
    same = [(by_model, model_ours)]
    same += [
        (get(by_plain), get(by_ours))
        for get in (lambda q: (q.reader, q.cell), lambda q: (q.head.loc, q.head.log_scale))
    ]
    for left, right in same:
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert np.abs(jax.tree.leaves(by_plain.cell)[0]).max() > 1e-4


def test_one_factorisation_for_all_glimpses(monkeypatch):
    p = model(2)
    q = encoder(p, "vgp")
    made = []
    monkeypatch.setattr("vgp.gp.conditioner.cholesky", lambda *args: made.append(args) or cholesky(*args))
    jax.eval_shape(lambda: Importance(2)(p.at(X), q.at(X, p), jr.key(0), B))
    assert len(made) == 1


# ---------------------------------------------------------------- gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean-field", "vgp, rank", "vgp, r follows"])
def test_estimators_agree(name):
    p = model()
    q = encoder(p, name)
    params, static = eqx.partition((p, q), eqx.is_inexact_array)
    gradients = [Pathwise(), StickingTheLanding(), DoublyReparameterised()]
    bound = Importance(2, split=False)

    @once
    def all_tables(params, keys):
        def one(key):
            def mean(params, gradient):
                p, q = eqx.combine(params, static)
                return jnp.mean(bound(p.at(X), q.at(X, p), key, 200 * B, gradient))

            return [jax.grad(mean)(params, gradient) for gradient in gradients]

        return jax.lax.map(one, keys)

    found = all_tables(params, jr.split(jr.key(0), 40))
    plain, *rest = [
        np.concatenate([np.asarray(a, float).reshape(40, -1) for a in jax.tree.leaves(t)], 1) for t in found
    ]
    for other in rest:
        mean, error = mean_and_error(plain - other)
        assert (np.abs(mean) < 5 * error + 1e-5).all()


def test_outer_draws_need_the_plain_gradient():
    p = model()
    q = encoder(p, "vgp")
    with pytest.raises(TypeError, match="DRAW"):
        jax.eval_shape(lambda: Importance(1, outer=2)(p.at(X), q.at(X, p), jr.key(0), B, DoublyReparameterised()))
    with pytest.raises(TypeError, match="integrates f out"):
        q.at(X, p).view(collapse=False)


@pytest.mark.parametrize("size", [2, 5])
def test_windows_start_where_the_image_is(size):
    image = np.zeros((28, 28))
    image[9:19, 9:19] = 1.0  # a blob in the middle, and nothing in the corners
    images = jnp.asarray(image, float)[None]
    tiles = window(jnp.asarray(tiling(size, (28, 28)), float)[None], size, (28, 28), reads=True)
    first, whole = read(tiles, images, jnp.ones_like(images))
    (corners,) = read(window(jnp.zeros((1, 5)), 2, (28, 28), reads=True), images)
    assert np.max(first) > 0.1
    assert np.max(corners) < 1e-3  # what a start at zero would see of it
    np.testing.assert_allclose(whole, 1.0, atol=1e-5)


# ---------------------------------------------------------------- the path


def test_a_ring_begins_with_all_of_the_image_and_goes_round_it_once():
    added, wide = ring(5, (56, 56), 64), 64 // WIDE
    np.testing.assert_allclose(added[:wide], 0.0, atol=1e-6)  # the whole is what a window sees by itself
    sides = window(jnp.asarray(tiling(5, (56, 56)) + added[wide:], float), 5, (56, 56), reads=False)
    down, across = (np.asarray(side[:, 2] @ jnp.arange(56.0), float) - 27.5 for side in (sides.down, sides.across))
    np.testing.assert_allclose(np.hypot(across, down), ROUND * 28.5, rtol=0.02)
    angles = np.unwrap(np.arctan2(down, across))
    assert (np.diff(angles) > 0).all() and 0.95 < (angles[-1] - angles[0]) / (2 * np.pi) < 1
    # The outer ones of five filters lie four fifths of the part apart.
    outer = np.asarray((sides.across[:, 4] - sides.across[:, 0]) @ jnp.arange(56.0), float)
    np.testing.assert_allclose(outer, 0.8 * PART * 56, rtol=0.02)


@pytest.mark.parametrize("glimpses", [1, 2, 12])
def test_a_ring_of_few_glimpses(glimpses):
    added = ring(2, (8, 8), glimpses)
    assert added.shape == (glimpses, RAW) and np.isfinite(added).all()
    np.testing.assert_array_equal(np.abs(added).max(1) > 0.1, np.arange(glimpses) > 0)


@once
def along_a_path(p, q, path):
    def drawn(p, q):
        q = q if path is None else eqx.tree_at(lambda q: q.path, q, path)
        return q.at(X, p).view().conditional(jr.normal(jr.key(0), (GLIMPSES, B, q.latent_dim))).sample(jr.key(1))

    def value(pair):
        drawing = drawn(*pair)
        return jnp.sum(jnp.sin(drawing.canvas)) + jnp.sum(jnp.cos(drawing.z))

    return eqx.filter_grad(value)((p, q)), drawn(p, q).z.reshape(B, GLIMPSES, -1)


def test_every_glimpse_has_its_place():
    p = model(2, path="ring")
    q = encoder(p, "vgp, r follows")
    (by_p, by_q), z = along_a_path(p, q, None)
    # What all glimpses add alike, the layers' biases could add.
    np.testing.assert_allclose(by_q.path.sum(0), by_q.reader.bias, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(by_p.path.sum(0), by_p.writer.bias[:RAW], rtol=1e-3, atol=1e-6)
    assert np.abs(by_q.path).max(1).min() > 1e-5 and np.abs(by_p.path).max(1).min() > 1e-5
    # The last place to read is that of the last glimpse, and the first one moves all that follows.
    for glimpse, moves in ((0, [True, True]), (1, [False, True])):
        _, other = along_a_path(p, q, q.path.at[glimpse].add(1.0))
        np.testing.assert_array_equal(np.abs(other - z).max((0, 2)) > 1e-6, moves)


def test_both_ways_along_a_path_have_one_gradient():
    # A drawing's canvas comes from the loop with a derivative of its own, the model's from a plain one.
    p = model(2, path="ring")
    q, z = encoder(p, "mean-field"), jr.normal(jr.key(3), (B, GLIMPSES * 2))

    @once
    def slopes(p, q):
        def drawn(p):
            return jnp.sum(jnp.sin(q.at(X, p).view().run(jnp.zeros((GLIMPSES, B, 0)), z=z).canvas))

        return [jax.grad(f)(p).path for f in (drawn, lambda p: jnp.sum(jnp.sin(p.canvases(z)[-1])))]

    one, other = slopes(p, q)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert np.abs(one).max() > 1e-2


def test_a_path_is_one_of_two():
    with pytest.raises(ValueError, match="path must be 'none' or 'ring', got 'round'"):
        DRAW(SHAPE, GLIMPSES, 1, UNITS, 2, path="round", key=jr.key(0))  # pyright: ignore[reportArgumentType]
