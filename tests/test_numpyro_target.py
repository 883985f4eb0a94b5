"""`vgp.from_numpyro`: NumPyro's own numbers, every support, subsampled plates, and what is refused by name."""

import inspect
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_uniform
from numpyro.infer.util import potential_energy
from scipy import stats

import vgp
from vgp import diagnostics
from vgp.compiling import once
from vgp.families import FullRank, Place

Y = np.array([0.3, -1.2, 0.8, 2.1, -0.4])
X = np.array([1.0, 2.0, -1.0, 0.5, 3.0])


def intervals(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 3.0))
    share = numpyro.sample("share", dist.Beta(2.0, 5.0))
    middle = numpyro.sample("middle", dist.Uniform(-1.0, 3.0))
    numpyro.sample("y", dist.Normal(middle + share, rate), obs=y)


def shares(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    locs = numpyro.sample("locs", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, 0.7)), obs=y)


def cutpoints(y):
    steps = dist.TransformedDistribution(
        dist.Normal(0.0, 1.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()
    )
    cuts = numpyro.sample("cuts", steps)
    numpyro.sample("y", dist.OrderedLogistic(0.3, cuts), obs=(y > 0).astype(int))


def correlated(y):
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    sds = numpyro.sample("sds", dist.HalfNormal(2.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.MultivariateNormal(0.0, scale_tril=sds[:, None] * factor), obs=y[:3])


def nested(y):
    with numpyro.plate("group", 2, dim=-2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        with numpyro.plate("row", 5, dim=-1):
            effect = numpyro.sample("effect", dist.StudentT(3.0, mean, 1.0))
            numpyro.sample("y", dist.Normal(effect, 0.5), obs=jnp.stack([y, -y]))


def improper(y):
    loc = numpyro.sample("loc", dist.ImproperUniform(constraints.real, (), (2,)))
    sd = numpyro.sample("sd", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("y", dist.Normal(loc.sum(), sd), obs=y)
    numpyro.factor("ridge", -jnp.sum(loc**4))


def derived(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    pair = numpyro.deterministic("pair", jnp.stack([x, 2 * x]))
    numpyro.sample("y", dist.Normal(pair.sum(), 1.0), obs=y)


def weighed(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with handlers.mask(mask=y > 0):
        numpyro.sample("kept", dist.Normal(x, 1.0), obs=y)
    with handlers.scale(scale=3.0):
        numpyro.sample("thrice", dist.Normal(x, 2.0), obs=y)


MODELS = {m.__name__: m for m in (intervals, shares, cutpoints, correlated, nested, improper, derived, weighed)}


def prototype(model, *args):
    seeded = handlers.substitute(handlers.seed(model, 0), substitute_fn=init_to_uniform)
    trace = handlers.trace(seeded).get_trace(*args)
    return {k: site for k, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A model, its latent sites, its target, and a few points with their values and log densities."""
    model = MODELS[request.param]
    target = vgp.from_numpyro(model, Y)

    @once
    @jax.vmap
    def at(u):
        z = target.constrain(u)
        return z, target.log_prob(u), target.unconstrain(z)

    u = jr.normal(jr.key(1), (6, target.dim)) * jnp.array([1.0, 1.0, 1.0, 1.0, 3.0, 3.0])[:, None]
    return model, prototype(model, Y), target, u, at(u)


def test_log_densities_are_numpyros_own(case):
    model, sites, _, u, (_, log_p, _) = case
    bare = {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in sites.items()}
    unravel = ravel_pytree(bare)[1]
    theirs = once(jax.vmap(lambda v: -potential_energy(model, (Y,), {}, unravel(v))))(u[:4])
    np.testing.assert_allclose(log_p[:4], theirs, rtol=1e-5, atol=1e-5)


def test_values_have_the_sites_names_shapes_and_supports(case):
    _, sites, target, u, (z, _, _) = case
    assert set(target.layout.names) == set(sites)
    for name, site in sites.items():
        assert z[name].shape == (len(u), *site["value"].shape)
        assert bool(jnp.all(site["fn"].support(z[name]))), name
    assert len(target.coordinates()) == target.dim == u.shape[1]


def test_values_lead_back_to_their_point(case):
    *_, u, (_, _, back) = case
    np.testing.assert_allclose(back[:4], u[:4], atol=2e-3)


def test_masks_scales_and_factors_count_as_they_should():
    at = vgp.from_numpyro(weighed, Y).log_prob(jnp.array([0.7]))
    prior, kept = stats.norm(0, 1).logpdf(0.7), stats.norm(0.7, 1).logpdf(Y[Y > 0]).sum()
    assert float(at) == pytest.approx(prior + kept + 3 * stats.norm(0.7, 2).logpdf(Y).sum(), rel=1e-5)
    at = vgp.from_numpyro(improper, Y).log_prob(jnp.array([0.7, -0.2, 0.4]))  # flat in loc and sd, sd = exp(0.4)
    expected = stats.norm(0.5, np.exp(0.4)).logpdf(Y).sum() - 0.7**4 - 0.2**4 + 0.4
    assert float(at) == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- subsampled plates


def by_index(x, y, size):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    numpyro.deterministic("pair", jnp.stack([sd, 2 * slope]))
    with numpyro.plate("rows", len(y), subsample_size=size) as rows:
        numpyro.sample("y", dist.Normal(slope * x[rows], sd), obs=y[rows])


def by_subsample(x, y, size):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y), subsample_size=size):
        x, y = (numpyro.subsample(jnp.asarray(a), event_dim=0) for a in (x, y))
        numpyro.sample("y", dist.Normal(slope * x, sd), obs=y)


POINT = jnp.array([0.3, 0.8])  # log sd and slope, in the order of their names


def parts():
    """log p of the prior, and of each row, at POINT."""
    sd = np.exp(0.3)
    prior = stats.halfnorm(0, 1).logpdf(sd) + 0.3 + stats.norm(0, 2).logpdf(0.8)
    return prior, stats.norm(0.8 * X, sd).logpdf(Y)


@pytest.mark.parametrize("model", [by_index, by_subsample])
def test_a_batch_is_scaled_once_and_all_batches_average_to_the_whole(model):
    target = vgp.from_numpyro(model, X, Y, 2)
    prior, rows = parts()
    assert target.num_data == 5
    assert float(once(target.log_prob)(POINT)) == pytest.approx(prior + rows.sum(), rel=1e-5)
    batches = np.array(list(itertools.combinations(range(5), 3)))  # not the model's own batch size

    @once
    @jax.vmap
    def on(batch):
        return eqx.tree_at(lambda t: t.rows, target, batch, is_leaf=lambda x: x is None).log_prob(POINT)

    values = np.asarray(on(batches))
    np.testing.assert_allclose(values, prior + 5 / 3 * rows[batches].sum(1), rtol=1e-5)
    assert values.mean() == pytest.approx(prior + rows.sum(), rel=1e-5)


def test_random_batches_are_even_and_without_repeats():
    target = vgp.from_numpyro(by_index, X, Y, 2)
    batches = np.asarray(once(jax.vmap(lambda k: target.minibatch(k, 3).rows))(jr.split(jr.key(0), 3000)))
    assert all(len(set(batch)) == 3 for batch in batches.tolist())
    np.testing.assert_allclose(np.bincount(batches.ravel(), minlength=5) / 3000, 0.6, atol=4 * (0.24 / 3000) ** 0.5)
    with pytest.raises(TypeError, match="no subsampled plate"):
        vgp.from_numpyro(by_index, X, Y, None).minibatch(jr.key(0), 2)


def test_a_fit_on_batches_is_measured_on_all_rows_and_draws_every_site():
    target, whole = vgp.from_numpyro(by_index, X, Y, 2), vgp.from_numpyro(by_index, X, Y, None)
    place = Place(jnp.array([0.3, 0.1]), jnp.array([0.3, 0.3]))
    options = {"batch_size": 2, "steps": 150, "draws": 8, "start": place, "progress": False}
    fit = vgp.fit(target, FullRank(2, key=jr.key(0)), key=jr.key(0), **options)
    expected = diagnostics.log_ratios(whole, fit.family, fit._key).elbo
    assert fit.elbo.lower == pytest.approx(expected.lower, rel=1e-4)
    # Batches are noisy, and their bound is that of the whole on average.
    assert fit.history[-100:].std() > 2 * expected.stderr
    error = fit.history[-100:].std() / 10
    assert abs(fit.history[-100:].mean() - expected.lower) < 4 * error + 0.2
    draws = fit.sample(jr.key(1), 7)
    assert {name: value.shape for name, value in draws.items()} == {"sd": (7,), "slope": (7,), "pair": (7, 2)}
    np.testing.assert_allclose(draws["pair"], jnp.stack([draws["sd"], 2 * draws["slope"]], 1), rtol=1e-6)


# ---------------------------------------------------------------- arguments


TRACES = []


def counted(x, y, *, low):
    TRACES.append(1)
    slope = numpyro.sample("slope", dist.Uniform(-4.0, 4.0))
    numpyro.sample("y", dist.Normal(slope * x, low), obs=y)


def test_new_data_of_the_same_shape_compiles_nothing():
    log_prob = eqx.filter_jit(lambda target, u: target.log_prob(u))
    first, second = (vgp.from_numpyro(counted, X, y, low=np.array([scale])) for y, scale in ((Y, 1.0), (Y + 1, 2.0)))
    u = jnp.array([0.4])
    one, before = float(log_prob(first, u)), len(TRACES)
    two = float(log_prob(second, u))
    assert len(TRACES) == before
    slope = 8 / (1 + np.exp(-0.4)) - 4
    jacobian = np.log((slope + 4) * (4 - slope) / 8) - np.log(8)
    assert one == pytest.approx(jacobian + stats.norm(slope * X, 1.0).logpdf(Y).sum(), rel=1e-5)
    assert two == pytest.approx(jacobian + stats.norm(slope * X, 2.0).logpdf(Y + 1).sum(), rel=1e-5)


def by_largest(group, y):
    with numpyro.plate("groups", int(group.max()) + 1):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


def by_choice(group, y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(mean[group][group > -1], 1.0), obs=y[group > -1])


@pytest.mark.parametrize("model", [by_largest, by_choice])
def test_a_model_that_needs_its_arguments_values_has_them(model):
    group, mean = np.array([0, 2, 1, 0, 2]), np.array([0.1, -0.2, 0.3])
    target = vgp.from_numpyro(model, group, Y)
    expected = stats.norm.logpdf(mean).sum() + stats.norm(mean[group], 1).logpdf(Y).sum()
    assert float(once(target.log_prob)(jnp.asarray(mean))) == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- data, observed and new


def two_outcomes(y):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("rows", 5):
        numpyro.sample("first", dist.Normal(loc, sd), obs=y)
    numpyro.sample("second", dist.Normal(loc + jnp.ones(2), sd), obs=y[:2])
    numpyro.factor("nothing", 0.0 * loc)


def test_new_data_follow_the_likelihood_of_each_row_of_values():
    target = vgp.from_numpyro(two_outcomes, Y)
    observed = target.observed()
    assert set(observed) == {"first", "second"}
    np.testing.assert_allclose(observed["first"], Y, rtol=1e-6)
    n = 4000
    values = {"loc": jnp.repeat(jnp.array([2.0, -3.0]), n // 2), "sd": jnp.full(n, 0.5)}
    drawn = jax.tree.map(np.asarray, target.predict(jr.key(1), values))
    assert {name: value.shape for name, value in drawn.items()} == {"first": (n, 5), "second": (n, 2)}
    noise = {name: (value - np.asarray(values["loc"])[:, None]) / 0.5 for name, value in drawn.items()}
    noise["second"] -= 2  # one of its own units, in standard deviations
    together = np.concatenate([noise["first"], noise["second"]], 1)
    np.testing.assert_allclose(together.mean(0), 0.0, atol=4 / n**0.5)
    np.testing.assert_allclose(np.cov(together.T), np.eye(7), atol=4 * (2 / n) ** 0.5)  # each draw its own noise


def test_data_beside_an_improper_prior():
    np.testing.assert_allclose(vgp.from_numpyro(improper, Y).observed()["y"], Y, rtol=1e-6)


# ---------------------------------------------------------------- what is refused


def marked():
    coin = numpyro.sample("coin", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
    numpyro.sample("x", dist.Normal(coin, 1.0))


def depends():
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    numpyro.sample("below", dist.Uniform(0.0, top))


def simple(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def empty_plate(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def without_latent(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def two_plates(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    for name in ("here", "there"):
        with numpyro.plate(name, 5, subsample_size=2) as rows:
            numpyro.sample(f"y_{name}", dist.Normal(mean, 1.0), obs=y[rows])


def local(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 5, subsample_size=2) as rows:
        own = numpyro.sample("own", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(own, 1.0), obs=y[rows])


GAP = np.where(np.arange(5) == 3, np.nan, Y)


@pytest.mark.parametrize(
    ("model", "args", "error", "says"),
    [
        (marked, (), ValueError, "The site 'coin' is marked to be enumerated.*sum it out of the model"),
        (depends, (), ValueError, "The support of the site 'below' depends on another site"),
        (simple, (X, GAP), ValueError, "The observed site 'y' is NaN at row 3"),
        (simple, (GAP, Y), ValueError, "observed site 'y' is NaN at row 3; look for a NaN in what"),
        (simple, (X[:0], Y[:0]), ValueError, r"The observed site 'y' is empty \(shape \(0,\)\)"),
        (empty_plate, (Y[:0],), ValueError, "The plate 'rows' has no rows: the data is empty"),
        (without_latent, (Y,), ValueError, r"no latent sample sites.*its sites are \['y'\]"),
        (lambda: None, (), ValueError, "no latent sample sites.*its sites are none"),
        (two_plates, (Y,), ValueError, r"At most one plate may be subsampled, and \['here', 'there'\] are"),
        (local, (Y,), ValueError, "The latent site 'own' lies inside the subsampled plate 'rows'"),
    ],
)
def test_models_that_cannot_be_fitted_are_refused_by_name(model, args, error, says):
    with pytest.raises(error, match=says):
        vgp.from_numpyro(model, *args)


def test_what_is_not_a_model_is_refused():
    unchecked = inspect.unwrap(vgp.from_numpyro)  # without the types that tests check first
    with pytest.raises(TypeError, match="needs a model, a function with numpyro.sample sites, got str"):
        unchecked("model")


def test_values_of_every_site_are_needed_for_the_way_back():
    with pytest.raises(ValueError, match=r"\['sd'\] are missing"):
        vgp.from_numpyro(two_outcomes, Y).unconstrain({"loc": 0.0})


# ---------------------------------------------------------------- constraints per leaf of a function's values

EXAMPLE = {
    "cuts": jnp.arange(3.0),
    "factor": jnp.eye(3),
    "rates": jnp.ones(2),
    "shares": jnp.ones(3) / 3,
}
SUPPORTS = {
    "cuts": constraints.ordered_vector,
    "factor": constraints.corr_cholesky,
    "rates": constraints.positive,
    "shares": constraints.simplex,
}


def test_log_jacobian_is_the_determinant_over_all_leaves():
    target = vgp.target(lambda z: 0.0 * jnp.sum(z["rates"]), EXAMPLE, SUPPORTS)
    assert target.dim == 3 + 3 + 2 + 2

    def free(u):  # as many of the values as there are degrees of freedom
        z = target.constrain(u)
        below = z["factor"][jnp.tril_indices(3, -1)]
        return jnp.concatenate([z["cuts"], below, z["rates"], z["shares"][:2]])

    @once
    @jax.vmap
    def both(u):
        return target.log_jacobian(u), jnp.linalg.slogdet(jax.jacfwd(free)(u))[1], target.constrain(u)

    ours, theirs, z = both(jr.normal(jr.key(2), (5, 10)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    for name, support in SUPPORTS.items():
        assert bool(jnp.all(support(z[name]))), name


# ---------------------------------------------------------------- beside other models, and missing rows


def test_a_target_inside_of_another_model_keeps_its_sites_to_itself():
    def inner(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("inner", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    target = vgp.from_numpyro(inner, jnp.array([0.5, 1.0]))

    def outer():
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([1]).to_event(1))
        numpyro.factor("inside", target.log_prob(u))

    trace = handlers.trace(handlers.seed(outer, 0)).get_trace()
    assert set(trace) == {"u", "inside"}


def test_a_masked_row_may_be_missing():
    def model(y):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)), handlers.mask(mask=~jnp.isnan(y)):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=jnp.where(jnp.isnan(y), 0.0, y))

    whole, gap = np.array([1.0, 2.0], np.float32), np.array([1.0, np.nan, 2.0], np.float32)
    u = jnp.array([0.3])
    assert np.isclose(vgp.from_numpyro(model, gap).log_prob(u), vgp.from_numpyro(model, whole).log_prob(u), rtol=1e-6)


def test_predictions_are_as_many_as_were_observed():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    predicted = vgp.from_numpyro(model, jnp.zeros(4)).predict(jr.key(0), {"m": jnp.array([100.0, -100.0, 0.0])})
    assert predicted["y"].shape == (3, 4)
    assert np.std(predicted["y"][0]) > 0.1
    assert (predicted["y"][0] > 90).all() and (predicted["y"][1] < -90).all()


def test_a_parameter_of_the_model_is_refused_by_name():
    def model():
        numpyro.sample("z", dist.Normal(numpyro.param("centre", 0.0), 1.0))

    with pytest.raises(ValueError, match="a parameter 'centre', which has no posterior"):
        vgp.from_numpyro(model)
