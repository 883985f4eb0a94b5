"""Every mean-field: its probabilities, its link, f integrated out, its draws and their gradients, and its extremes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from numpy.polynomial.hermite_e import hermegauss
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import expit, ndtr, ndtri

import vgp
from vgp.bounds import draw, log_q_sandwich
from vgp.compiling import once
from vgp.kernels import ARD
from vgp.meanfield import (
    Bernoulli,
    Beta,
    Categorical,
    Delta,
    Exponential,
    Gamma,
    Geometric,
    LogNormal,
    Mixed,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    matching,
)
from vgp.meanfield.matching import check, told

DIM, DRAWS = 3, 20_000
F = np.array([-0.8, 0.1, 1.0])
CONTINUOUS = {
    "gamma": Gamma(DIM, initial=1.5),
    "gamma, driven": Gamma(DIM, "gp", 1.5),
    "exponential": Exponential(),
    "log-normal": LogNormal(DIM, initial=0.5),
    "beta": Beta(DIM, initial=3.0),
    "student": StudentT(DIM, initial=0.7),
}
MEANFIELDS = {
    "probit": Bernoulli(),
    "logit": Bernoulli("logit"),
    "categorical": Categorical(3),
    "poisson": Poisson(),
    "negative binomial": NegativeBinomial(DIM, initial=2.0),
    "negative binomial, driven": NegativeBinomial(DIM, "gp", 2.0),
    "geometric": Geometric(),
    **CONTINUOUS,
    "mixed": Mixed((Bernoulli(), 1), (Normal(1, "gp", 0.6), 1), (Gamma(1, "gp", 2.0), 1)),
}


def few(names):
    """What is driven is tested each time, and what is the same but for that now and then."""
    return [pytest.param(n, marks=pytest.mark.slow) if f"{n}, driven" in names else n for n in names]


def sticks(f):
    """The mean of a variable of three classes, its two breaks written out: equally likely classes at f = 0."""
    first, second = ndtr(f[:DIM] + ndtri(1 / 3)), ndtr(f[DIM:])
    return (1 - first) * second + 2 * (1 - first) * (1 - second)


LINKS = {"probit": ndtr, "logit": expit, "log": np.exp, "identity": lambda f: f}
MEANS = {
    "categorical": sticks,
    "log-normal": lambda f: np.exp(f + 0.5 * 0.5**2),
    "mixed": lambda f: np.array([ndtr(f[0]), f[1], np.exp(f[2])]),
}


def inputs(meanfield):
    """f and what drives the rest, in general position."""
    drawn, driven = meanfield.outputs(DIM)
    f = np.resize(F, drawn) - 0.3 * (np.arange(drawn) >= DIM)
    return jnp.asarray(f, float), jnp.asarray(np.linspace(-0.4, 0.5, driven), float) if driven else None


def points(support):
    """Values that cover a support, and the log weight of each: of a sum, or of the trapezoidal rule."""
    if support.is_discrete:
        last = {"{0, 1}": 1, "the whole numbers from 0 on": 300}.get(told(support))
        z = np.arange(1 + (support.upper_bound if last is None else last)) + 0.0
        return z, np.zeros(len(z))
    low, high, curve = {
        "the positive numbers": (-25.0, 8.0, np.exp),
        "the unit interval": (-14.0, 14.0, lambda t: 1 / (1 + np.exp(-t))),
        "the real line": (-10.0, 10.0, np.sinh),
    }[told(support)]
    t = np.linspace(low, high, 4001)
    return curve(t), np.log(np.gradient(curve(t)))


def grid(meanfield):
    """The points of all variables side by side; a column that is shorter is filled with points of no weight."""
    columns = [points(s) for s, n in meanfield.supports for _ in range(DIM if n is None else n)]
    most = max(len(z) for z, _ in columns)
    z = np.stack([np.pad(z, (0, most - len(z)), mode="edge") for z, _ in columns], -1)
    log_w = np.stack([np.pad(w, (0, most - len(w)), constant_values=-np.inf) for _, w in columns], -1)
    return jnp.asarray(z, float), jnp.asarray(log_w, float)


@pytest.fixture(scope="module", params=few(MEANFIELDS))
def case(request):
    """A mean-field with its probabilities at all points and its draws, compiled once."""
    name = request.param
    meanfield = MEANFIELDS[name]
    z, log_w = grid(meanfield)

    @once
    def found(meanfield, f, drive):
        q = meanfield.given(f, drive)
        mass = jnp.exp(q.each(z) + log_w)
        return mass, q.sample(jr.key(0), (DRAWS,)), q.log_prob(z[:50]), q.slopes(z), q.each(z)

    return name, meanfield, z, [np.asarray(x, float) for x in found(meanfield, *inputs(meanfield))]


def test_classes_may_stand_for_counts():
    counts, others = [("n", constraints.nonnegative_integer, 2)], [("n", constraints.integer_interval(0, 4), 2)]
    for classes in (2, 5):
        check(Categorical(classes), counts)
        check(Mixed((Categorical(classes), 1), (Poisson(), 1)), counts)
    for meanfield in (Bernoulli(), Normal(2), Beta(2), Gamma(2)):
        with pytest.raises(ValueError, match="'n' lies in the whole numbers from 0 on, and the family in"):
            check(meanfield, counts)
    for meanfield in (Categorical(4), Poisson()):  # fewer classes than there are, and more
        with pytest.raises(ValueError, match="'n' lies in the whole numbers 0 to 4, and the family in the whole"):
            check(meanfield, others)


def test_counts_beyond_the_classes_have_no_mass():
    q = Categorical(3).given(jnp.zeros(4), None)
    beyond = q.each(jnp.array([[0.0, 2.0], [3.0, 1.0], [2.0, 40.0]]))
    np.testing.assert_allclose(beyond[0], -np.log(3), rtol=1e-4)
    np.testing.assert_array_equal(np.isneginf(beyond), [[False, False], [True, False], [False, True]])


def test_probabilities_sum_to_one(case):
    *_, (mass, _, log_prob, _, each) = case
    np.testing.assert_allclose(mass.sum(0), 1.0, atol=2e-3)
    np.testing.assert_allclose(log_prob, each[:50].sum(-1), rtol=1e-5)


def test_means_are_what_the_links_promise(case):
    name, meanfield, z, (mass, *_) = case
    mean = MEANS[name] if name in MEANS else LINKS[meanfield.link]
    promised = mean(np.asarray(inputs(meanfield)[0], float))
    np.testing.assert_allclose((mass * z).sum(0), promised, rtol=5e-3, atol=5e-3)  # f is bent a little


# f and the second number s of each, as the docstrings have them.
WRITTEN_OUT = {
    "poisson": lambda f, s: stats.poisson(np.exp(f)),
    "geometric": lambda f, s: stats.geom(1 / (1 + np.exp(f)), loc=-1),
    "negative binomial": lambda f, s: stats.nbinom(s, s / (s + np.exp(f))),
    "gamma": lambda f, s: stats.gamma(s, scale=np.exp(f) / s),
    "exponential": lambda f, s: stats.expon(scale=np.exp(f)),
    "log-normal": lambda f, s: stats.lognorm(s, scale=np.exp(f)),
    "beta": lambda f, s: stats.beta(2 * s * expit(f), 2 * s * expit(-f)),
    "student": lambda f, s: stats.t(4.0, loc=f, scale=s),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_densities_written_out(name):
    meanfield = MEANFIELDS[name]
    f = np.array([-0.3, 0.0, 0.4])  # where what is bent is straight
    second = np.exp(np.asarray(getattr(meanfield, "log_extra", 0.0)))
    q = WRITTEN_OUT[name](f, second)
    z = np.array([[1.0, 3.0, 2.0], [0.0, 2.0, 5.0]]) if meanfield.support.is_discrete else np.array([[0.2, 0.5, 0.9]])
    exact = q.logpmf(z) if meanfield.support.is_discrete else q.logpdf(z)
    np.testing.assert_allclose(meanfield.given(jnp.asarray(f, float), None).each(jnp.asarray(z)), exact, rtol=2e-3)


def test_draws_have_these_probabilities(case):
    _, _, z, (mass, draws, *_) = case
    for i in range(DIM):
        below = np.cumsum(mass[:, i])
        edges = np.searchsorted(below, np.linspace(0.02, 0.98, 25))
        expected = below[edges]
        counted = (draws[:, i, None] <= np.asarray(z)[edges, i] + 1e-6).mean(0)
        error = np.sqrt(expected * np.maximum(1 - expected, 0) / DRAWS)
        assert (np.abs(counted - expected) < 5 * error + 5e-3).all()


def test_numbers_of_outputs_and_features(case):
    name, meanfield, z, (_, draws, _, slopes, _) = case
    classes = 3 if name == "categorical" else 1
    shown = jax.eval_shape(meanfield.seen, jnp.asarray(draws, float))
    assert shown.shape == (DRAWS, meanfield.features(DIM)) == (DRAWS, classes * DIM)
    assert draws.shape == (DRAWS, DIM) and slopes.shape == z.shape
    assert np.abs(slopes).max(0).min() > 0.05  # of use as weights, those of a categorical too
    supports = [s for s, n in meanfield.supports for _ in range(DIM if n is None else n)]
    assert all(bool(s(jnp.asarray(draws[:, i], float)).all()) for i, s in enumerate(supports))


@pytest.mark.parametrize("name", ["probit", "categorical", "log-normal"])
def test_f_integrates(name):
    meanfield = MEANFIELDS[name]
    mean, drive = inputs(meanfield)
    z, _ = grid(meanfield)
    z = z[:: max(1, len(z) // 50)]
    variance, breaks = jnp.array([0.6]), len(mean) // DIM
    x, w = hermegauss(30)
    nodes = np.stack(np.meshgrid(*[x] * breaks, indexing="ij"), -1).reshape(-1, breaks)
    weights = np.stack(np.meshgrid(*[w / w.sum()] * breaks, indexing="ij"), -1).reshape(-1, breaks).prod(1)

    @once
    def both(meanfield):
        f = mean + jnp.sqrt(variance) * jnp.repeat(jnp.asarray(nodes, float), DIM, axis=1)
        at = jax.vmap(lambda one: meanfield.given(one, drive).each(z))(f)
        return jnp.exp(meanfield.integrated(mean, variance, drive).each(z)), jnp.tensordot(
            jnp.asarray(weights, float), jnp.exp(at), 1
        )

    assert meanfield.collapses
    np.testing.assert_allclose(*both(meanfield), atol=1e-3)


@pytest.mark.parametrize("name", MEANFIELDS)
def test_what_can_be_followed_is_known_beforehand(name):
    meanfield = MEANFIELDS[name]
    q = meanfield.given(*inputs(meanfield))
    assert meanfield.reparameterised == all(q.reparameterised) == (name in CONTINUOUS)
    parts = getattr(meanfield, "parts", (meanfield,))
    assert meanfield.link == ", ".join(part.link for part in parts)


def test_what_integrates_and_what_does_not():
    assert not Bernoulli("logit").collapses and not Poisson().collapses and not MEANFIELDS["mixed"].collapses
    assert Mixed((Bernoulli(), 2), (LogNormal(1), 1), (Delta(), 1)).collapses
    with pytest.raises(TypeError, match="integrated out of a Poisson mean-field in closed form; use vgp.bounds.Imp"):
        Poisson().integrated(jnp.zeros(1), jnp.ones(1), None)


@pytest.mark.parametrize("name", few(CONTINUOUS))
def test_gradients_follow_the_draws(name):
    # Of the mean of what the auxiliary model sees, which depends on every parameter, against quadrature.
    meanfield = CONTINUOUS[name]
    f, drive = inputs(meanfield)
    z, log_w = grid(meanfield)
    arrays, rest = eqx.partition((meanfield, f, drive), eqx.is_inexact_array)

    def by_points(arrays):
        meanfield, f, drive = eqx.combine(arrays, rest)
        q = meanfield.given(f, drive)
        assert q.reparameterised == [True] and len(q.scored) == 0
        return jnp.sum(jnp.exp(q.each(z) + log_w) * meanfield.seen(z))

    def by_draws(arrays, key):
        meanfield, f, drive = eqx.combine(arrays, rest)
        return meanfield.seen(meanfield.given(f, drive).sample(key, (400,))).mean(0).sum()

    @once
    def both(arrays):
        return jax.grad(by_points)(arrays), jax.lax.map(
            lambda k: jax.grad(by_draws)(arrays, k), jr.split(jr.key(1), 60)
        )

    for exact, found in zip(*map(jax.tree.leaves, both(arrays)), strict=True):
        mean, error = found.mean(0), found.std(0) / 60**0.5
        assert (np.abs(mean - exact) < 5 * error + 5e-3).all()


@pytest.mark.parametrize("name", [n for n in few(MEANFIELDS) if n != "mixed"])
def test_extremes_stay_finite(name):
    # Probabilities driven to 0 or 1, rates and shapes to nothing or beyond all bounds.
    meanfield = MEANFIELDS[name]
    unbounded = name == "student"  # on the real line f is a place, and there may be no limit
    values = np.array([-1e4, -50.0, 50.0, 1e4] if unbounded else [-1e20, -1e4, -50.0, 50.0, 1e4, 1e20])
    drawn, driven = meanfield.outputs(DIM)
    f = jnp.asarray(np.repeat(np.tile(values, 2)[:, None], drawn, 1), float)
    drive = jnp.asarray(np.repeat(np.repeat([-1e4, 1e4], len(values))[:, None], driven, 1), float) if driven else None
    z, _ = grid(meanfield)
    z = jnp.concatenate([z[:: max(1, len(z) // 5)][:6], z[-1:]])[:, None]

    @once
    def found(arrays, rest):
        def total(arrays):
            meanfield, f = eqx.combine(arrays, rest)
            q = meanfield.given(f, drive)
            each = [q.each(z)]
            if any(q.reparameterised):
                drawn = q.sample(jr.key(0))
                each += [q.each(drawn), meanfield.seen(drawn)]
            if meanfield.collapses:
                each.append(meanfield.integrated(f, jnp.ones((len(f), 1)), drive).each(z))
            return sum(jnp.sum(x / 1e6) for x in each), [*each, jax.lax.stop_gradient(q.slopes(z))]

        return jax.value_and_grad(total, has_aux=True)(arrays)

    values = found(*eqx.partition((meanfield, f), eqx.is_inexact_array))
    assert all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(values))


# ---------------------------------------------------------------- the whole family


def family_of(meanfield):
    made = vgp.VGP(2, 4, 1, kernel=ARD(0.3, 0.5), meanfield=meanfield, key=jr.key(0))
    rng = np.random.default_rng(1)
    moved = jax.tree.map(
        lambda x: x + jnp.asarray(0.2 * rng.normal(size=x.shape), float) if eqx.is_inexact_array(x) else x, made
    )
    # r stays at the prior, which covers all that may have generated z.
    return eqx.tree_at(lambda f: f.auxiliary, moved, made.auxiliary)


@pytest.mark.parametrize(
    "meanfield",
    [Bernoulli(), pytest.param(Poisson(), marks=pytest.mark.slow), Gamma(2)],
    ids=lambda m: type(m).__name__,
)
def test_the_sandwich_holds_log_q(meanfield):
    x, w = (jnp.asarray(part, float) for part in hermegauss(40))
    log_w = jnp.log(w / w.sum())

    @once
    def found(family):
        view = family.view()
        z, y, _, key = draw(view, jr.key(2), 400)
        mean, variance, drive = view.process.warp(x[:, None])
        f = mean + jnp.sqrt(variance) * x[:, None, None]  # noise of f, ξ, variable
        each = family.meanfield.given(f, drive).each(z[:, None, None])
        given = logsumexp(each + log_w[:, None, None], axis=1).sum(-1)  # the variables are independent given ξ
        return z, log_q_sandwich(view, z, y, key, 200), logsumexp(given + log_w, axis=1)

    z, log_q, exact = found(family_of(meanfield))
    assert isinstance(meanfield, Bernoulli) == meanfield.collapses
    above, below = np.asarray(log_q.upper - exact), np.asarray(log_q.lower - exact)
    error = 4 * above.std() / 20 + 1e-3
    assert -error < above.mean() < 0.1 and -0.1 < below.mean() < 4 * below.std() / 20 + 1e-3
    assert np.mean(log_q.single - exact) > above.mean()
    np.testing.assert_array_equal(z, np.round(z) if not isinstance(meanfield, Gamma) else z)


# ---------------------------------------------------------------- choosing and refusing


def test_one_is_found_for_every_support():
    supports = [
        ("a", constraints.boolean, 2),
        ("b", constraints.integer_interval(0, 1), 1),
        ("c", constraints.integer_interval(0, 3), 2),
        ("d", constraints.nonnegative_integer, 1),
        ("e", constraints.positive, 1),
        ("f", constraints.greater_than(0.0), 2),
        ("g", constraints.interval(0.0, 1.0), 1),
        ("h", constraints.open_interval(0, 1), 1),
        ("i", constraints.real, 2),
    ]
    found = matching(supports)
    assert [type(part) for part in found.parts] == [Bernoulli, Categorical, Poisson, Gamma, Beta, Normal]
    assert found.sizes == (3, 2, 1, 3, 2, 2)
    check(found, supports)
    nested = Mixed((found, 13))
    check(nested, supports)
    assert nested.outputs(13) == found.outputs(13)
    assert isinstance(matching(supports[:1]), Bernoulli)


def chosen(support):
    return lambda: matching([("k", support, 3)])


BAD = {
    "is 'probit' or 'logit', got 'cloglog'": lambda: Bernoulli("cloglog"),
    "a whole number, 2 or more, got 1": lambda: Categorical(1),
    "a whole number, 2 or more, got 2.5": lambda: Categorical(2.5),
    "'learned' or 'gp', got 'fixed'": lambda: Gamma(2, "fixed"),
    "Beta mean-field must be positive, got 0.0": lambda: Beta(2, initial=0.0),
    "freedom of a StudentT mean-field must be positive, got -1.0": lambda: StudentT(2, freedom=-1.0),
    "needs a block at least": lambda: Mixed(),
    r"a pair of a mean-field and a number, got Bernoulli\(": lambda: Mixed(Bernoulli()),
    r"a pair of a mean-field and a number, got \(3,": lambda: Mixed((3, Bernoulli())),
    "has 1 or more variables, got 2.0 of them": lambda: Mixed((Bernoulli(), 2.0)),
    "has 1 or more variables, got True of them": lambda: Mixed((Bernoulli(), True)),
    "Binomial mean-field is of 1 or more variables, got 2.5 of them": lambda: NegativeBinomial(2.5),
    "Normal mean-field is of 1 or more variables, got -1 of them": lambda: Normal(-1),
    r"one of vgp.meanfield, such as Bernoulli\(\), got <class": lambda: vgp.VGP(2, meanfield=Poisson, key=jr.key(0)),
    "This Mixed mean-field is of 3 variables, and the family of 4": lambda: Mixed((Bernoulli(), 3)).outputs(4),
    "This Gamma mean-field is of 2 variables, and the family of 3": lambda: vgp.VGP(
        3, meanfield=Gamma(2), key=jr.key(0)
    ),
    "This Normal mean-field is of 2 variables": lambda: vgp.VGP(3, meanfield=Normal(2), key=jr.key(0)),
    "loc and scale are for values on the real line": lambda: vgp.VGP(
        2, meanfield=Bernoulli(), loc=jnp.ones(2), key=jr.key(0)
    ),
    "'k' lies in the whole numbers 1 to 4, for which there is no mean": chosen(constraints.integer_interval(1, 4)),
    "'k' lies in the whole numbers 0 to 0.*sum it out": chosen(constraints.integer_interval(0, 0)),
    "'k' lies in the whole numbers 0 to 9999.*less than 1000": chosen(constraints.integer_interval(0, 9999)),
    r"\[3 4\].*write it as whole numbers from 0": chosen(constraints.integer_interval(0, np.array([3, 4]))),
    "'k' lies in IntegerPositive.*write it as whole numbers from 0": chosen(constraints.positive_integer),
    "'k' lies in Simplex.*leave it out of kept": chosen(constraints.simplex),
}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("message", BAD)
def test_bad_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        BAD[message]()
    assert "\n" not in str(caught.value)
