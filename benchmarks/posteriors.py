"""Ten posteriors of posteriordb as NumPyro models, each called with its data and nothing else."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints


def _flat(name: str, *shape: int):
    support = constraints.independent(constraints.real, len(shape)) if shape else constraints.real
    return numpyro.sample(name, dist.ImproperUniform(support, (), event_shape=shape))


def _flat_positive(name: str):
    return numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ()))


def _regression(y, *columns):
    beta = _flat("beta", len(columns) + 1)
    sigma = _flat_positive("sigma")
    mean = beta[0] + sum(slope * jnp.asarray(column, float) for slope, column in zip(beta[1:], columns, strict=True))
    numpyro.sample("y", dist.Normal(mean, sigma), obs=jnp.asarray(y, float))


def eight_schools_centered(J, y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([J]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, jnp.asarray(sigma, float)), obs=jnp.asarray(y, float))


def nes(partyid7, real_ideo, race_adj, age_discrete, educ1, gender, income, **_):
    ages = [jnp.asarray(age_discrete) == age for age in (2, 3, 4)]
    _regression(partyid7, real_ideo, race_adj, *ages, educ1, gender, income)


def mesquite(weight, diam1, diam2, canopy_height, total_height, density, group, **_):
    _regression(weight, diam1, diam2, canopy_height, total_height, density, group)


def logearn_interaction(earn, height, male, **_):
    height, male = jnp.asarray(height, float), jnp.asarray(male, float)
    _regression(jnp.log(jnp.asarray(earn, float)), height, male, height * male)


def kidscore_interaction(kid_score, mom_hs, mom_iq, **_):
    beta = _flat("beta", 4)
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    hs, iq = jnp.asarray(mom_hs, float), jnp.asarray(mom_iq, float)
    mean = beta[0] + beta[1] * hs + beta[2] * iq + beta[3] * hs * iq
    numpyro.sample("y", dist.Normal(mean, sigma), obs=jnp.asarray(kid_score, float))


def arK(K, T, y):
    y = jnp.asarray(y, float)
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([K]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    lagged = jnp.stack([y[K - k : T - k] for k in range(1, K + 1)], axis=1)
    numpyro.sample("y", dist.Normal(alpha + lagged @ beta, sigma), obs=y[K:])


def _predator_prey(theta, start, years: int, substeps: int = 10):
    # Runge–Kutta of the fourth order in log populations, which stay positive that way.
    step = 1.0 / substeps

    def slope(log_z):
        u, v = jnp.exp(log_z[0]), jnp.exp(log_z[1])
        return jnp.stack([theta[0] - theta[1] * v, -theta[2] + theta[3] * u])

    def advance(log_z, _):
        a = slope(log_z)
        b = slope(log_z + 0.5 * step * a)
        c = slope(log_z + 0.5 * step * b)
        d = slope(log_z + step * c)
        return log_z + step / 6 * (a + 2 * b + 2 * c + d), None

    def year(log_z, _):
        log_z, _ = jax.lax.scan(advance, log_z, None, length=substeps, unroll=substeps)
        return log_z, log_z

    return jax.lax.scan(year, jnp.log(start), None, length=years)[1]


def lotka_volterra(N, ts, y_init, y):
    centre, spread = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(centre, spread, low=0.0).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    log_z = _predator_prey(theta, z_init, N)
    numpyro.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma), obs=jnp.asarray(y_init, float))
    numpyro.sample("y", dist.LogNormal(log_z, sigma), obs=jnp.asarray(y, float))


def diamonds(N, K, X, Y, **_):
    X = jnp.asarray(X, float)[:, 1:]
    centred = X - X.mean(0)
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([K - 1]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.LeftTruncatedDistribution(dist.StudentT(3.0, 0.0, 10.0), low=0.0))
    numpyro.sample("Y", dist.Normal(intercept + centred @ b, sigma), obs=jnp.asarray(Y, float))


def low_dim_gauss_mix(N, y):
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("prior_mu", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    mixing = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    numpyro.sample("y", dist.MixtureSameFamily(mixing, dist.Normal(mu, sigma)), obs=jnp.asarray(y, float))


def arma11(T, y):
    y = jnp.asarray(y, float)
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

    def advance(error, pair):
        before, now = pair
        error = now - (mu + phi * before + theta * error)
        return error, error

    first = y[0] - (mu + phi * mu)
    _, rest = jax.lax.scan(advance, first, (y[:-1], y[1:]))
    numpyro.sample("errors", dist.Normal(jnp.concatenate([first[None], rest]), sigma), obs=jnp.zeros(T))


# The reference's name of each posterior, and its model.
POSTERIORS = {
    "eight_schools-eight_schools_centered": eight_schools_centered,
    "nes2000-nes": nes,
    "mesquite-mesquite": mesquite,
    "earnings-logearn_interaction": logearn_interaction,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "arK-arK": arK,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "diamonds-diamonds": diamonds,
    "low_dim_gauss_mix-low_dim_gauss_mix": low_dim_gauss_mix,
    "arma-arma11": arma11,
}
