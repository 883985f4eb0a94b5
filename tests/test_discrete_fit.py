"""Fits of discrete and kept values, end to end, against enumeration and closed forms; and what is refused by name."""

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.optimize import minimize
from scipy.special import logsumexp

import vgp
from vgp.bounds import Analytic, General, Importance
from vgp.compiling import once
from vgp.diagnostics import LogRatios, log_prob
from vgp.gradients import ARM, VIMCO, DisARM, Pathwise, ScoreFunction
from vgp.kernels import ARD
from vgp.meanfield import Bernoulli, Beta, Categorical, Gamma, Mixed, Normal, Poisson
from vgp.montecarlo import enumerate_states, enumerated, kl
from vgp.plots import compare
from vgp.result import Settings, Status
from vgp.targets.discrete import ising_ring, mixture_assignments, noisy_or, two_mode_ring

matplotlib.use("Agg")
KEY = jr.key(0)


def fit(*args, **options):
    return vgp.fit(*args, **{"key": KEY, "progress": False, **options})


def target_of(problem):
    return vgp.target(problem.terms, problem.example, problem.constraints, touches=problem.touches)


def small(dim, meanfield):
    return vgp.VGP(dim, 8, 2, meanfield=meanfield, key=KEY)


def exactly(problem, n):
    states = jnp.asarray(enumerate_states([2] * n), float)
    return states, enumerated(once(jax.vmap(problem.log_density))(states), [2] * n)


def best_mean_field(log_p, states, tries=10):
    """The smallest KL(q ‖ p) of a factorised q, from several starts: half of them far out, near single states."""
    rng = np.random.default_rng(0)

    def divergence(logits):
        log_q = -(np.logaddexp(0, -logits) * states + np.logaddexp(0, logits) * (1 - states)).sum(1)
        q, ratio = np.exp(log_q), log_q - log_p
        return q @ ratio, (q * ratio) @ (states - 1 / (1 + np.exp(-logits)))

    starts = rng.normal(size=(tries, states.shape[1])) * np.repeat([0.5, 4.0], tries // 2)[:, None]
    return min(minimize(divergence, start, jac=True).fun for start in starts)


def held_against(problem, n, **options):
    """A default fit with KL(q ‖ p) of it and of the best mean-field, and the exact distribution."""
    states, exact = exactly(problem, n)
    fitted = fit(target_of(problem), **options)
    log_q = np.asarray(log_prob(fitted.family, states, KEY, 1000).value, float)
    assert np.exp(log_q).sum() == pytest.approx(1.0, abs=0.03)
    found = enumerated(log_q, [2] * n)
    ours = kl(found.log_probabilities, exact.log_probabilities)
    return fitted, ours, best_mean_field(exact.log_probabilities, np.asarray(states, float)), found, exact


# ---------------------------------------------------------------- against enumeration


@pytest.mark.parametrize(("n", "steps", "draws"), [(4, 250, 32), (8, 2500, 8)])
def test_a_frustrated_ring(n, steps, draws):
    fitted, ours, mean_field, found, exact = held_against(ising_ring(n), n, steps=steps, draws=draws)
    assert isinstance(fitted.family.meanfield, Bernoulli) and isinstance(fitted.settings.gradient, DisARM)
    assert ours < 0.1 * mean_field
    np.testing.assert_allclose(found.means, exact.means, atol=0.1)
    np.testing.assert_allclose(found.correlations, exact.correlations, atol=0.15)
    assert fitted.history[-50:].mean() < exact.log_normaliser + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "n"),
    [(ising_ring(8), 8), (ising_ring(10), 10), (ising_ring(12), 12), (two_mode_ring(12), 12), (noisy_or(8, 8), 8)],
    ids=["8", "10", "12", "two modes", "noisy-or"],
)
def test_multimodal_posteriors(problem, n):
    _, ours, mean_field, found, exact = held_against(problem, n, steps=6000)
    assert ours < 0.1 * mean_field
    np.testing.assert_allclose(found.means, exact.means, atol=0.05)
    np.testing.assert_allclose(found.correlations, exact.correlations, atol=0.1)


Y = np.array([0.4, 1.9, 1.1])
SHIFTS, CHANCES = np.array([-1.0, 0.0, 1.5]), np.array([0.5, 0.3, 0.2])


def shifted(y):
    kind = numpyro.sample("kind", dist.Categorical(jnp.asarray(CHANCES)))
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.deterministic("place", mu + jnp.asarray(SHIFTS)[kind])
    numpyro.sample("y", dist.Normal(mu + jnp.asarray(SHIFTS)[kind], 1.0), obs=y)


@pytest.fixture(scope="module")
def mixed():
    """A class and a real value of a NumPyro model, fitted."""
    target = vgp.from_numpyro(shifted, Y)
    return fit(target, steps=300)


def test_a_numpyro_model_with_a_class_and_a_real_value(mixed):
    covariance = np.eye(3) + np.ones((3, 3))
    log_joint = np.log(CHANCES) + [stats.multivariate_normal(np.full(3, s), covariance).logpdf(Y) for s in SHIFTS]
    p = np.exp(log_joint - logsumexp(log_joint))
    means = (Y[:, None] - SHIFTS).sum(0) / 4
    assert isinstance(mixed.family.meanfield, Mixed) and isinstance(mixed.settings.gradient, ScoreFunction)
    z = mixed.sample(jr.key(1), 4000)
    assert z["kind"].dtype == jnp.int32 and z["kind"].shape == z["mu"].shape == (4000,)
    np.testing.assert_allclose(np.bincount(np.asarray(z["kind"]), minlength=3) / 4000, p, atol=0.06)
    assert float(z["mu"].mean()) == pytest.approx(p @ means, abs=0.1)
    np.testing.assert_allclose(z["place"], z["mu"] + SHIFTS[np.asarray(z["kind"])], atol=1e-5)
    assert -0.15 < mixed.history[-50:].mean() - logsumexp(log_joint) < 0.03


@pytest.mark.slow
def test_assignments_of_a_mixture():
    problem = mixture_assignments(6, 2, weights=np.array([0.7, 0.3]))
    fitted = fit(target_of(problem), steps=1200)
    assert isinstance(fitted.family.meanfield.parts[0], Bernoulli)
    states = jnp.asarray(enumerate_states([2] * 6), float)
    exact = enumerated(once(jax.vmap(problem.marginals["assignments"]))(states), [2] * 6)
    together = np.einsum("s,sij->ij", exact.probabilities, states[:, :, None] == states[:, None, :])
    c = fitted.sample(jr.key(1), 4000)["assignments"]
    assert set(np.unique(c)) == {0.0, 1.0}
    np.testing.assert_allclose((c[:, :, None] == c[:, None, :]).mean(0), together, atol=0.1)
    np.testing.assert_allclose(c.mean(0), exact.means, atol=0.1)  # both orders of the components
    assert -0.6 < fitted.history[-50:].mean() - exact.log_normaliser < 0.05


POINTS = np.array([-2.1, -1.6, -2.4, 1.7, 2.2, 1.9])


def clustered(y):
    means = numpyro.sample("means", dist.Normal(0.0, 3.0).expand([2]))
    with numpyro.plate("rows", len(y)):
        which = numpyro.sample("which", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(means[which], 1.0), obs=y)


def test_values_of_an_event_are_single_ones():
    def model():
        numpyro.sample("coins", dist.Bernoulli(0.3).expand([3]).to_event(1))
        numpyro.sample("rates", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))

    target = vgp.from_numpyro(model).kept("rates")
    kinds = [(name, support, size) for name, support, size in target.supports()]
    assert kinds == [("coins", constraints.boolean, 3), ("rates", constraints.positive, 2)]
    u = jnp.array([1.0, 0.0, 1.0, 0.7, 1.9])
    exact = np.log([0.3, 0.7, 0.3]).sum() + stats.gamma(2.0).logpdf([0.7, 1.9]).sum()
    np.testing.assert_allclose(target.log_prob(u), exact, rtol=1e-5)


@pytest.mark.slow
def test_the_mixture_of_the_page_has_both_orders():
    # Given the assignments the means are Gaussian and independent, so that all is a sum over 64 of them.
    states = enumerate_states([2] * 6)
    own = states[:, None, :] == np.arange(2)[:, None]  # state, component, point
    precision = own.sum(-1) + 1 / 9
    means, total = (own @ POINTS) / precision, own @ POINTS
    log_joint = (0.5 * total**2 / precision - 0.5 * np.log(9 * precision)).sum(-1)
    p = np.exp(log_joint - logsumexp(log_joint))
    variance = p @ (means**2 + 1 / precision) - (p @ means) ** 2
    together = np.einsum("s,sij->ij", p, states[:, :, None] == states[:, None, :])
    fitted = fit(vgp.from_numpyro(clustered, jnp.asarray(POINTS)), bound=Importance(outer=4), steps=3000)
    assert isinstance(fitted.settings.gradient, VIMCO) and fitted.ess > 0.6
    np.testing.assert_allclose(fitted.sample(jr.key(1), 8000)["which"].mean(0), 0.5, atol=0.08)
    draws = fitted.sample(jr.key(1), 8000, resample=True)
    which = np.asarray(draws["which"])
    np.testing.assert_allclose(which.mean(0), p @ states, atol=0.05)
    np.testing.assert_allclose((which[:, :, None] == which[:, None, :]).mean(0), together, atol=0.05)
    np.testing.assert_allclose(draws["means"].mean(0), p @ means, atol=0.2)
    np.testing.assert_allclose(draws["means"].std(0), np.sqrt(variance), rtol=0.05)


def test_a_kept_rate_has_its_conjugate_posterior():
    counts = jnp.array([2.0, 4.0, 3.0, 1.0])

    def log_density(z):
        return dist.Gamma(2.0, 1.0).log_prob(z["rate"]) + dist.Poisson(z["rate"]).log_prob(counts).sum()

    target = vgp.target(log_density, {"rate": 1.0}, constraints.positive).kept("rate")
    fitted = fit(target, vgp.VGP(1, 8, meanfield=Gamma(1), key=KEY), steps=500, draws=32)
    assert isinstance(fitted.settings.gradient, Pathwise)
    rate, exact = np.asarray(fitted.sample(jr.key(1), 4000)["rate"]), stats.gamma(12.0, scale=1 / 5.0)
    np.testing.assert_allclose(np.quantile(rate, [0.05, 0.5, 0.95]), exact.ppf([0.05, 0.5, 0.95]), rtol=0.08)
    log_q = fitted.log_prob({"rate": jnp.array([1.5, 2.5, -1.0])}, KEY).value
    np.testing.assert_allclose(log_q[:2], exact.logpdf([1.5, 2.5]), atol=0.15)
    assert log_q[2] == -np.inf


# ---------------------------------------------------------------- what a fit shows


@pytest.fixture(scope="module")
def coins():
    """Three coins and two counts, as whole numbers."""

    def log_density(z):
        first, second, third = z["coins"]
        chance = jnp.where(first, 0.7, 0.3)
        return jnp.where(first & second, 1.0, 0.0) - third + dist.Binomial(2, chance).log_prob(z["counts"]).sum()

    example = {"coins": jnp.zeros(3, bool), "counts": jnp.zeros(2, int)}
    kinds = {"coins": constraints.boolean, "counts": constraints.integer_interval(0, 2)}
    target = vgp.target(log_density, example, kinds)
    family = small(5, Mixed((Bernoulli(), 3), (Categorical(3), 2)))
    fitted = fit(target, family, steps=80, draws=16)
    fitted._measured = {
        "elbo": [-1.0, -0.9, 0.01],
        "khat": 0.3,
        "khat_extended": 0.4,
        "ess": 0.9,
    }  # which takes seconds
    return fitted


def test_draws_are_whole_numbers(coins):
    for resample in (False, True):
        z = coins.sample(jr.key(1), 10 if resample else 50, resample=resample)  # the same shapes as for ArviZ
        assert z["coins"].dtype == bool and z["counts"].dtype == jnp.int32
        assert set(np.unique(z["counts"])) <= {0, 1, 2}


def test_log_q_of_all_states_sums_to_one(coins):
    states = enumerate_states([2, 2, 2, 3, 3])
    found = coins.log_prob({"coins": states[:, :3].astype(bool), "counts": states[:, 3:].astype(int)}, KEY)
    assert np.exp(found.value).sum() == pytest.approx(1.0, abs=0.02)
    outside = coins.log_prob({"coins": jnp.zeros((2, 3)), "counts": jnp.array([[0, 3], [0.5, 1]])}, KEY)
    assert np.all(outside.value == -np.inf) and np.all(outside.stderr == 0)


def test_summary_and_figure(coins):
    text = coins.summary()
    assert "coins[2]" in text and "counts[1]" in text and "nan" not in text
    row = next(line for line in text.splitlines() if line.startswith("counts[0]")).split()
    assert 0 < float(row[1]) < 2 and set(row[3:]) <= {"0", "1", "2"}
    axes = coins.plot().axes
    assert [a.get_title() for a in axes][1:] == ["draws, first two coordinates", "median, 50% and 90% intervals"]
    offsets = np.asarray(axes[1].collections[0].get_offsets())
    assert 0 < np.abs(offsets - np.round(offsets)).max() <= 0.2  # spread out, but not far


@pytest.mark.slow
def test_diagnostics_of_discrete_values(coins):
    measured = vgp.Fit(coins.target, coins.family, coins.settings, None, coins.histories, Status("", ""), 0.0)
    states = enumerate_states([2, 2, 2, 3, 3])
    values = {"coins": jnp.asarray(states[:, :3], bool), "counts": jnp.asarray(states[:, 3:], int)}
    evidence = logsumexp(once(jax.vmap(coins.target.density))(values))
    assert measured.elbo.lower - 4 * measured.elbo.stderr < measured.elbo.upper < evidence + 0.01
    assert measured.khat < 0.7 and 0 < measured.ess <= 1


def test_a_figure_in_two_dimensions_has_no_contours():
    target = vgp.target(lambda z: z[0] * z[1], jnp.zeros(2), constraints.boolean)
    settings = Settings(Importance(), DisARM(), "adam", 1, 1, None, 1, True)
    fitted = vgp.Fit(target, small(2, Bernoulli()), settings, None, np.zeros((1, 1), np.float32), Status("", ""), 0.0)
    assert len(fitted.plot().axes) == 3
    assert len(compare(target, {"q": fitted.sample(KEY, 50)}).axes) == 1


def test_arviz(coins):
    pytest.importorskip("arviz")
    posterior = coins.to_arviz(draws=50)["posterior"]
    assert posterior["coins"].shape == (1, 50, 3) and posterior["counts"].dtype.kind == "i"


@pytest.mark.slow
def test_restarts(coins):
    found = fit(coins.target, coins.family, steps=80, draws=16, restarts=2)
    assert found.histories.shape == (80, 2) and "bounds at the end" in found.summary()
    assert set(np.unique(found.sample(KEY, 200)["counts"])) == {0, 1, 2}


def test_saved_loaded_and_resumed_bit_for_bit(coins, tmp_path):
    coins.save(tmp_path / "fit.npz")
    loaded = vgp.load(tmp_path / "fit.npz", coins.target)
    on, again = (one.resume(steps=20, progress=False) for one in (coins, loaded))
    np.testing.assert_array_equal(on.histories, again.histories)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(on.family), jax.tree.leaves(again.family))
    with pytest.raises(ValueError, match="The values lie in the real line, and the family in {0, 1}; pass the target"):
        vgp.load(tmp_path / "fit.npz", vgp.target(lambda z: -jnp.sum(z**2), jnp.zeros(5)))


def thinned():
    n = numpyro.sample("n", dist.Poisson(3.0))  # impossible below 2
    numpyro.sample("k", dist.Binomial(n, 0.5), obs=2)


def test_impossible_values_are_named_and_a_penalty_advised():
    fitted = fit(vgp.from_numpyro(thinned), small(1, Poisson()), steps=120, draws=32)
    assert fitted.status.name == "diverged"
    assert "the log density is -inf at {'n': " in fitted.status.ending
    assert "a large finite penalty instead" in fitted.status.ending and "learning rate" not in fitted.status.ending
    assert not np.isfinite(fitted.elbo.lower) and "cannot be trusted" in str(fitted.status)
    assert str(fitted.status).count("penalty") == 1
    (told,) = [line for line in fitted.summary().splitlines() if line.startswith("k-hat  ")]
    assert told.endswith("do not trust (the ELBO is not finite)")


@pytest.mark.filterwarnings("error")
def test_the_elbo_of_an_impossible_draw_is_told_without_a_warning():
    ratios = np.array([0.0, -np.inf, 1.0], np.float32)
    found = LogRatios(ratios, ratios, ratios).elbo
    assert found.lower == found.upper == -np.inf and np.isnan(found.stderr)


# ---------------------------------------------------------------- what is refused


COINS = vgp.target(lambda z: 0.3 * jnp.sum(z["coins"]), {"coins": jnp.zeros(3)}, constraints.boolean)
CLASSES = vgp.target(lambda z: 0.3 * jnp.sum(z), jnp.zeros(3, int), constraints.integer_interval(0, 2))
RATE = vgp.target(lambda z: -z["rate"], {"rate": 1.0}, constraints.positive)
WHOLE = {"n": jnp.zeros(2, int)}


def counted(support):
    return lambda: fit(vgp.target(lambda z: 0.1 * jnp.sum(z["n"]), WHOLE, support))


def multinomial():
    numpyro.sample("m", dist.Multinomial(3, jnp.array([0.2, 0.8])))


def enumerated_site():
    numpyro.sample("coin", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})


def dependent():
    many = numpyro.sample("many", dist.Bernoulli(0.5))
    numpyro.sample("some", dist.Binomial(1 + many, 0.5))


def local(y):
    with numpyro.plate("rows", 3, subsample_size=2) as rows:
        coin = numpyro.sample("coin", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(coin, 1.0), obs=y[rows])


REAL = "'coins' lies in {0, 1}, and the family in the real line; use a vgp.VGP or vgp.families.Factorised with"
CASES = {
    "a Gaussian": (lambda: fit(COINS, vgp.families.MeanField(3, key=KEY)), REAL),
    "a full Gaussian": (lambda: fit(COINS, vgp.families.FullRank(3, key=KEY)), REAL),
    "a Normal mean-field": (lambda: fit(COINS, small(3, Normal(3))), REAL),
    "counts for coins": (
        lambda: fit(COINS, small(3, Poisson())),
        "'coins' lies.*the family in the whole numbers from 0",
    ),
    "coins for reals": (
        lambda: fit(vgp.target(lambda z: -jnp.sum(z**2), jnp.zeros(3)), small(3, Bernoulli())),
        "The values lie in the real line, and the family in {0, 1}",
    ),
    "too many classes": (
        lambda: fit(CLASSES, small(3, Categorical(4))),
        "The values lie in the whole numbers 0 to 2, and the family in the whole numbers 0 to 3",
    ),
    "shares for a rate": (lambda: fit(RATE.kept("rate"), small(1, Beta(1))), "'rate' lies in the positive numbers"),
    "not kept": (
        lambda: fit(RATE, small(1, Gamma(1))),
        r"'rate' lies in the real line, and the family in the positive.*: target.kept\('rate'\)",
    ),
    "a shape": (
        lambda: COINS.unconstrain({"coins": jnp.ones((5, 3))}),
        r"'coins' is of shape \(3,\), got \(5, 3\); where a batch is asked for, its axis comes first",
    ),
    "a word for a switch": (lambda: ScoreFunction("mean", "no"), "rao_blackwell is True or False, got 'no'"),
    "a kind for a mean-field": (
        lambda: vgp.families.Factorised(3, Bernoulli, key=KEY),
        "meanfield must be one of vgp.meanfield",
    ),
    "kept by another name": (lambda: RATE.kept("rat"), r"no values \['rat'\] to keep; the values are \['rate'\]"),
    "kept without a name": (lambda: CLASSES.kept("z"), "have no name to be kept by.*make the example a dict"),
    "from one": (
        counted(constraints.integer_interval(1, 4)),
        "'n' lies in the whole numbers 1 to 4.*write it as whole",
    ),
    "a single value": (counted(constraints.integer_interval(0, 0)), "'n' lies in the whole numbers 0 to 0"),
    "a million values": (counted(constraints.integer_interval(0, 10**6)), "'n' lies in.*1000000.*less than 1000"),
    "several limits": (counted(constraints.integer_interval(0, np.array([2, 3]))), "'n' lies in.*to one limit"),
    "dependent values": (counted(constraints.multinomial(4)), "discrete values of 'n' depend on each other"),
    "not a constraint": (counted("boolean"), "one of numpyro.distributions.constraints or None, got 'boolean'"),
    "not made": (counted(constraints.integer_interval), "one of numpyro.distributions.constraints or None, got <class"),
    "followed": (lambda: fit(COINS, gradient=Pathwise()), "cannot be followed; use vgp.gradients.ScoreFunction"),
    "coins in classes": (lambda: fit(CLASSES, gradient=ARM()), "ARM is for Bernoulli variables; use"),
    "one outer draw": (lambda: fit(COINS, gradient=VIMCO()), "VIMCO needs outer > 1; use"),
    "one draw": (lambda: fit(CLASSES, draws=1), "take 2 draws or more"),
    "general": (lambda: fit(COINS, bound=General()), "General follows the draws of z.*leave the bound out"),
    "analytic": (lambda: fit(COINS, bound=Analytic()), "Analytic follows the draws of z.*leave the bound out"),
    "split": (lambda: fit(COINS, bound=Importance(split=True)), "split=True needs"),
    "split of a rate": (lambda: fit(RATE.kept("rate"), bound=Importance(split=True)), "split=True needs a Normal"),
    "a start": (lambda: fit(COINS, start={"coins": jnp.ones(3)}), "this fit has discrete or kept ones; leave it out"),
    "terms of a stream": (
        lambda: vgp.target(
            lambda z, x: z, jnp.zeros(2), touches=np.eye(2, dtype=bool), data=vgp.Stream([np.ones(4)], num_data=4)
        ),
        "touches does not go with a vgp.Stream",
    ),
    "a multinomial site": (lambda: vgp.from_numpyro(multinomial), "discrete values of 'm' depend on each other"),
    "a marked site": (lambda: vgp.from_numpyro(enumerated_site), "'coin' is marked to be enumerated.*drop the mark"),
    "a support that moves": (lambda: vgp.from_numpyro(dependent), "support of the site 'some' depends on another"),
    "a local site": (
        lambda: vgp.from_numpyro(local, Y),
        "'coin' lies inside.*each row has its own; drop subsample_size",
    ),
}


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    call, match = CASES[name]
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        call()
    assert "\n" not in str(caught.value).strip()


def test_autovgp_is_for_continuous_latents():
    from numpyro.infer import SVI, Trace_ELBO

    from vgp.interop.numpyro import AutoVGP

    def started(model, **options):
        SVI(model, AutoVGP(model, **options), numpyro.optim.Adam(1e-3), Trace_ELBO()).init(KEY)

    with pytest.raises(ValueError, match="'kind' is discrete; .* or fit vgp.from_numpyro"):
        started(lambda: shifted(Y))
    with pytest.raises(TypeError, match="this family is not of the real line"):
        started(
            lambda: numpyro.sample("x", dist.Normal(0.0, 1.0)),
            family=lambda dim, key: vgp.VGP(dim, 4, kernel=ARD(0.1, 1.0), meanfield=Bernoulli(), key=key),
        )
