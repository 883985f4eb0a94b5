"""The example that runs the theorem: its map, its distances against closed forms, and what it shows."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

PATH = Path(__file__).resolve().parent.parent / "examples" / "universal_approximation.py"
spec = importlib.util.spec_from_file_location("universal_approximation", PATH)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

TARGETS = [example.BIMODAL, example.TWO_MODES, example.BANANA]
NORMAL = example.Target("normal", "N(0, 1)", (lambda z: [(1.0, 0.0, 1.0)],))


@pytest.fixture(autouse=True)
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def random_xi(n, c):
    return 2.0 * np.random.default_rng(0).standard_normal((n, c))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_true_map_matches_conditional_cdfs(target):
    xi = random_xi(500, len(target.conditionals))
    z = example.true_map(target, xi)
    for j, conditional in enumerate(target.conditionals):
        reached = example.cdf(z[:, j], conditional(z[:, :j].T))
        np.testing.assert_allclose(reached, ndtr(xi[:, j]), atol=1e-6)


def test_true_map_closed_forms():
    xi = random_xi(100, 2)
    expected = np.stack([2 * xi[:, 0], xi[:, 0] ** 2 + xi[:, 1]], axis=1)
    np.testing.assert_allclose(example.true_map(example.BANANA, xi), expected, atol=1e-9)
    # Far out one component is left, with half the mass: the upper tail must keep its digits.
    far = example.true_map(example.BIMODAL, np.array([[8.0]]))
    np.testing.assert_allclose(0.5 * norm.sf((far - 2) / 0.5), norm.sf(8.0), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_density_is_that_of_the_map(target):
    # p(f*(ξ)) |det ∂f*/∂ξ| = φ(ξ); the map is triangular, so the determinant is a product of two differences.
    c, step = len(target.conditionals), 1e-5
    xi = 0.5 * random_xi(50, c)
    log_det = np.zeros(50)
    for j in range(c):
        shift = step * np.eye(c)[j]
        up, down = example.true_map(target, xi + shift), example.true_map(target, xi - shift)
        log_det += np.log((up - down)[:, j] / (2 * step))
    log_p = example.log_density(target, example.true_map(target, xi))
    np.testing.assert_allclose(log_p + log_det, norm.logpdf(xi).sum(1), atol=2e-3)


@pytest.mark.parametrize("grid", ["even", "quantile"])
def test_process_interpolates_its_data(grid):
    s = example.variational_inputs(grid, 17, 1)
    assert s.shape == (17, 1) and np.all(np.isfinite(s))
    t = example.true_map(example.BIMODAL, s)
    between = (s[1:] + s[:-1]) / 2
    xi = np.concatenate([s, between, between[:1]])[None]
    mean, v, jitter = example.condition(example.Matern52(variance=1.0, weights=1.0), s, t, xi)
    np.testing.assert_allclose(mean[0, :17], t, atol=1e-6)
    assert np.all(v[0, :17] < 1e-9) and np.all(v[0, 17:] > 1e-7)
    assert float(jitter) == pytest.approx(1e-12)


def shifted_cells(target, shift, nodes):
    """The exact map, moved: every distance is then known."""
    c = len(target.conditionals)
    xi = example.product(np.linspace(-example.SPAN, example.SPAN, nodes), c)
    f_star = example.true_map(target, xi).reshape(*[nodes] * c, c)
    cells = example.Cells(
        jnp.asarray(xi.reshape(f_star.shape)), jnp.asarray(f_star + shift), jnp.full([nodes] * c, 1e-4)
    )
    return cells, f_star


@pytest.mark.parametrize("target, shift, nodes", [(NORMAL, [0.1], 1024), (example.BANANA, [0.0, 0.1], 192)])
def test_distances_of_a_shift(target, shift, nodes):
    shift = np.array(shift)
    cells, f_star = shifted_cells(target, shift, nodes)
    noise = example.ndtri(example.low_discrepancy(4096, len(shift)))
    z = example.true_map(target, noise) + shift
    kl, normalisation = example.divergence(target, cells, jnp.asarray(z), np.ones(4096))
    assert kl == pytest.approx(0.005, rel=0.05)  # given what comes before, a normal with sd 1 moves by 0.1
    assert normalisation == pytest.approx(1.0, abs=0.005)
    figures = example.map_distances(target, cells, f_star, 512)
    assert float(figures["rms"]) == pytest.approx((0.1**2 + len(shift) * 1e-4) ** 0.5, rel=1e-3)
    assert float(figures["w1"]) == pytest.approx(0.1 / len(shift), rel=0.02)
    if target is NORMAL:
        assert float(figures["ks"]) == pytest.approx(2 * ndtr(0.05) - 1, rel=0.01)


def test_density_integrates_to_one_and_gives_kl():
    # Independent of the points and the control variate of `divergence`: q log(q/p) on a fine grid of z.
    side, nodes, draws = 17, 1024, 4096
    setting = example.Setting((example.BIMODAL,), "even", (side,), nodes, draws, 512)
    row = example.measure(setting, "Matérn-5/2", side)[0]
    s = example.variational_inputs("even", side, 1)
    xi = example.quadrature(setting.targets, nodes, draws)[0]
    kernel = example.Matern52(variance=1.0, weights=1.0)
    mean, v, _ = example.condition(kernel, s, example.true_map(example.BIMODAL, s), xi)
    cells = example.Cells(jnp.asarray(xi[0]), mean[0], v[0])
    z = np.linspace(-7.0, 7.0, draws)
    log_q = np.asarray(example.log_q(cells, jnp.asarray(z[:, None])))
    q, width = np.exp(log_q), z[1] - z[0]
    assert q.sum() * width == pytest.approx(1.0, abs=2e-3)
    kl = np.sum(q * (log_q - example.log_density(example.BIMODAL, z[:, None]))) * width
    assert row["kl"] == pytest.approx(kl, rel=0.02)
    assert row["normalisation"] == pytest.approx(1.0, abs=0.01)


def test_matern_converges_and_the_proofs_kernel_stalls():
    sides = (9, 17, 33)
    setting = example.Setting((example.BIMODAL,), "even", sides, 1024, 4096, 512)
    rows = [example.measure(setting, "Matérn-5/2", side)[0] for side in sides]
    for name in example.DISTANCES:
        values = [row[name] for row in rows]
        assert values[0] > values[1] > values[2] > 0, name
    # errata, section 4: .58 and .33 at m = 17 and 33
    assert rows[1]["kl"] == pytest.approx(0.58, abs=0.02) and rows[2]["kl"] == pytest.approx(0.33, abs=0.02)
    stalled = example.measure(setting, "proof's ARD", 33)[0]
    assert stalled["condition_number"] > 1e14
    assert stalled["kl"] > 1.5 * rows[2]["kl"]


def test_two_targets_share_a_conditioner():
    # Whichever comes first, each target must get its own columns of A(ξ)t.
    both = (example.BIMODAL, NORMAL)
    settings = [example.Setting(targets, "even", (9,), 1024, 4096, 512) for targets in (both, both[::-1])]
    one, other = [example.measure(setting, "Matérn-5/2", 9) for setting in settings]
    assert [(row["target"], row["m"]) for row in one] == [("bimodal, 1-d", 9), ("normal", 9)]
    assert one[0]["w1"] > 2 * one[1]["w1"]
    for row, same in zip(one, reversed(other), strict=True):
        assert row["target"] == same["target"]
        for name in example.DISTANCES:
            assert row[name] == pytest.approx(same[name], rel=1e-6), name


def test_slopes_and_written_tables(tmp_path):
    line = {"inputs": "even", "c": 1, "kl_half": 1.0, "normalisation": 1.0, "jitter": 1e-12, "condition_number": 10.0}
    figures = [
        {"target": "bimodal, 1-d", "kernel": kernel, "m": m, **dict.fromkeys(example.DISTANCES, 3.0 * m**-1.5), **line}
        for kernel in example.KERNELS
        for m in (8, 16, 32)
    ]
    slopes = example.fit_slopes(figures)
    assert [row["kernel"] for row in slopes] == list(example.KERNELS)
    np.testing.assert_allclose(slopes[0]["kl"], [-1.5, np.log(3.0)])
    assert slopes[0]["rms_last"] == pytest.approx(-1.5)
    assert slopes[0]["noisy"] == pytest.approx(-2.5 / 6) and slopes[0]["noise_free"] == pytest.approx(-2.5)
    assert "noisy" not in slopes[1]  # the rates are Matérn's

    page = tmp_path / "docs" / "theorem.md"
    page.parent.mkdir()
    page.write_text(
        "before\n<!-- slopes -->\nold\n<!-- /slopes -->\nbetween\n<!-- figures -->\n<!-- /figures -->\nafter\n"
    )
    record = {"configuration": {"targets": {"bimodal, 1-d": "words"}}, "slopes": slopes, "figures": figures}
    example.write(record, tmp_path)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| bimodal, 1-d | even | Matérn-5/2 | -1.50 |" in text and "| Matérn-5/2 | 16 | 0.0469 |" in text
    assert json.loads((tmp_path / "results" / "universal_approximation.json").read_text())["slopes"] == slopes
    assert (tmp_path / "docs" / "images" / "universal_approximation.png").stat().st_size > 10_000
