"""Summaries and figures."""

import dataclasses
import re

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import vgp
from vgp.plots import _running_mean, compare, plot
from vgp.result import Fit, Text
from vgp.summary import named_columns
from vgp.targets.shapes import banana, eight_schools


@pytest.fixture(scope="module")
def warped():
    family = vgp.VGP(2, num_data=8, key=jr.key(0))
    return vgp.fit(banana(), family, key=jr.key(1), steps=60, draws=8, progress=False)


@pytest.fixture(scope="module")
def schools():
    family = vgp.families.MeanField(10, key=jr.key(0))
    return vgp.fit(eight_schools(), family, key=jr.key(1), steps=60, draws=8, start=None, progress=False)


def like(fit, target=None, **changes):
    """The same fit, measured already, with some of its parts exchanged."""
    measured = {"elbo": (-1.0, -0.9, 0.01), "khat": 0.3, "khat_extended": 0.4}
    parts = {"family": fit.family, "settings": fit.settings, "history": fit.histories, "measured": measured, **changes}
    return Fit(target, state=None, status=fit.status, seconds=1.0, **parts)


def header(text):
    return {line[:15].strip(): line[16:] for line in text.splitlines()}


# ---------------------------------------------------------------- summary


def test_summary_of_a_vgp(warped):
    text = warped.summary()
    assert isinstance(text, Text) and repr(text) == text
    assert text.startswith(str(warped.status))
    lines = header(text)
    low, high = lines["ELBO"].split("]")[0][1:].split(", ")
    assert float(low) == pytest.approx(warped.elbo.lower, abs=0.01)
    assert float(high) == pytest.approx(warped.elbo.upper, abs=0.01)
    assert lines["k-hat"].startswith(f"{warped.khat:.2f}")
    assert lines["k-hat, extended"].startswith(f"{warped.khat_extended:.2f}")
    assert "num_data 8, latent_dim 2" in text and "effective dimension" in text and re.search("jitter 1e-(06|12)", text)
    assert lines["run"].startswith("60 steps")
    assert "restarts" not in lines
    assert "z[0]" in text and "z[1]" in text


def test_summary_has_the_users_names_and_right_figures(schools):
    text = schools.summary()
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and line[0] in "mt"}
    assert set(rows) == {"mu", "tau", *(f"theta[{i}]" for i in range(8))}
    draws = schools.sample(jr.key(5), 4000)
    for name, column in named_columns(draws):
        mean, sd, *_ = map(float, rows[name])
        assert mean == pytest.approx(column.mean(), abs=6 * column.std() / np.sqrt(4000))
        assert sd == pytest.approx(column.std(), rel=0.25)
        assert float(rows[name][2]) < float(rows[name][3]) < float(rows[name][4])
    assert "num_data" not in text and "extended" not in text


@pytest.mark.parametrize(
    ("khat", "word", "advice"), [(0.3, "good", ""), (0.6, "usable", "resample=True"), (0.9, "do not trust", "num_data")]
)
def test_summary_says_whether_to_trust(warped, khat, word, advice):
    measured = {"elbo": (-1.0, -0.9, 0.01), "khat": khat, "khat_extended": khat}
    line = header(like(warped, measured=measured).summary())["k-hat"]
    assert line.startswith(f"{khat:.2f}  {word}") and advice in line


def test_summary_and_plot_without_a_target(warped, tmp_path):
    assert warped.elbo.lower < 0  # measured, and so in the file
    warped.save(tmp_path / "fit.vgp")
    loaded = vgp.load(tmp_path / "fit.vgp")
    text = loaded.summary()
    assert header(text)["ELBO"] == header(warped.summary())["ELBO"]
    assert "vgp.load(path, target)" in text and "z[0]" not in text
    assert len(loaded.plot().axes) == 3
    loaded._measured = {}
    assert "ELBO" not in header(loaded.summary())


def test_summary_of_several_restarts(warped):
    settings = dataclasses.replace(warped.settings, restarts=2)
    history = np.concatenate([warped.histories, np.full_like(warped.histories, -7.0)], 1)
    assert header(like(warped, settings=settings, history=history).summary())["restarts"].endswith(", -7")


def test_summary_of_many_values_is_one_page(schools):
    target = vgp.target(lambda z: -0.5 * jnp.sum(z["w"] ** 2), {"w": jnp.zeros((5, 10))})
    text = like(schools, target, family=vgp.families.MeanField(50, key=jr.key(0))).summary()
    assert "w[0,0]" in text and "w[3,9]" in text and "w[4,0]" not in text
    assert text.endswith("… and 10 more")


# ---------------------------------------------------------------- figures


def test_plot_in_two_dimensions(warped):
    history, draws, warp = plot(warped).axes
    # The light trace and the running mean.
    assert [np.size(line.get_xdata()) for line in history.lines] == [60, 60]
    low, high = history.get_ylim()
    assert low < warped.history[-1] < high
    points = np.asarray(draws.collections[-1].get_offsets())
    assert points.shape == (1500, 2)
    assert np.std(points[:, 0]) == pytest.approx(float(jnp.std(warped.sample(jr.key(2), 1500)[:, 0])), rel=0.2)
    assert len(warp.lines) == 22
    # The middle line of the grid runs through the mean at ξ = 0.
    centre = np.asarray(warped.family.view().conditional(jnp.zeros((1, 2))).base_dist.loc[0])
    centre = np.asarray(warped.family.place(jnp.asarray(centre)))
    middle = np.stack(warp.lines[5].get_data(), -1)
    assert np.abs(middle - centre).sum(1).min() < 0.1


def test_plot_in_ten_dimensions(schools):
    _, draws, intervals = plot(schools).axes
    assert np.shape(draws.collections[-1].get_offsets()) == (1500, 2)
    assert [label.get_text() for label in intervals.get_yticklabels()][:3] == ["mu", "tau", "theta[0]"]
    medians = np.asarray(intervals.lines[0].get_xdata())
    assert len(medians) == 10 and medians[1] > 0  # tau, on its own scale


def test_contours_show_what_a_narrow_fit_misses():
    target = banana()
    figure = compare(target, {"narrow": 0.1 * jr.normal(jr.key(0), (200, 2))}, {"narrow": "a note"})
    (axis,) = figure.axes
    assert axis.get_title() == "narrow\na note"
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    assert left < -4 and right > 4 and bottom < -2 and top > 6


def test_compare_has_a_panel_per_family():
    draws = {name: jr.normal(jr.key(0), (50, 2)) for name in "abc"}
    assert [axis.get_title() for axis in compare(banana(), draws).axes] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="2 dimensions, got one with 10"):
        compare(eight_schools(), draws)


def test_history_with_skipped_steps(warped):
    history = warped.histories.copy()
    history[::3] = np.nan
    history[:5] = -1e9
    axis = plot(like(warped, history=history)).axes[0]
    assert axis.get_ylim()[0] > -1e3
    assert np.isnan(_running_mean(np.full(4, np.nan))).all()
    np.testing.assert_allclose(_running_mean(np.r_[np.nan, np.arange(1.0, 200)])[-1], 197.5)


def test_figures_show_in_a_notebook(schools):
    assert plot(schools)._repr_png_().startswith(b"\x89PNG")
