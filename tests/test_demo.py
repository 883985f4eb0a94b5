"""The command line and the demo."""

import json

import jax
import pytest
from typer.testing import CliRunner

from vgp import demo
from vgp.cli import app, main

FAMILIES = ("VGP", "FullRank", "AutoIAFNormal")


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch):
    # JAX reads it at import, so that here it only keeps the command from choosing a folder for the whole process.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
        # One of each kind: compiling all five is most of what a quick demo does.
        patch.setattr(demo, "FAMILIES", FAMILIES)
        return invoke("demo", "--quick", "--target", "banana", "--out", out), out


def test_demo_prints_a_table(quick):
    result, out = quick
    assert result.exit_code == 0, result.output
    for family in FAMILIES:
        assert family in result.output
    assert "banana, 2 dimensions" in result.output
    assert "0 is exact" in result.output and "100 steps" in result.output
    assert out.name in result.output.replace("\n", "")


def test_demo_writes_its_record(quick):
    _, out = quick
    record = json.loads((out / "demo.json").read_text())
    assert record["complete"] and record["quick"] and record["seed"] == 0
    assert record["versions"]["jax"] == jax.__version__
    assert [row["family"] for row in record["rows"]] == list(FAMILIES)
    assert not list(out.glob("*.tmp"))
    for row in record["rows"]:
        assert row["target"] == "banana" and row["steps"] == 100
        # The target is normalised, so no lower bound may stand above 0 by more than its error.
        assert -3 < row["elbo_lower"] < 4 * row["elbo_stderr"]
        assert row["elbo_lower"] <= row["elbo_upper"] + 4 * row["elbo_stderr"]
        assert (row["elbo_lower"] == row["elbo_upper"]) == (row["family"] != "VGP")
        assert row["seconds"] > 0 and row["measuring_seconds"] > 0
    assert sum(row["seconds"] for row in record["rows"]) < record["seconds"]


def test_demo_draws_pictures(quick):
    _, out = quick
    for name in ("banana.png", "banana-vgp.png"):
        content = (out / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 20_000


def test_ctrl_c_keeps_what_is_done(tmp_path, monkeypatch):
    done = demo.Row("banana", "VGP", -0.1, -0.1, 0.01, 0.4, 10, "converged", 1.0, 1.0, 0)

    def one_run(name, target, family, *rest):
        if family != "VGP":
            raise KeyboardInterrupt
        return done, None

    monkeypatch.setattr(demo, "_one_run", one_run)
    result = invoke("demo", "--out", tmp_path)
    assert result.exit_code == 130
    assert "after 1 of 25 runs" in result.output
    record = json.loads((tmp_path / "demo.json").read_text())
    assert not record["complete"] and len(record["rows"]) == 1


def test_an_error_in_a_run_keeps_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_one_run", lambda *_: 1 / 0)
    result = invoke("demo", "--out", tmp_path)
    assert isinstance(result.exception, ZeroDivisionError)
    assert json.loads((tmp_path / "demo.json").read_text())["complete"] is False


def test_help_and_version():
    assert "demo" in invoke("--help").output
    assert "--quick" in invoke("demo", "--help").output
    assert invoke("--version").output.startswith("vgp 0.")


def test_bad_arguments_get_one_sentence(tmp_path):
    result = invoke("demo", "--target", "bananna")
    assert result.exit_code == 1
    assert result.output == (
        "vgp: There is no target 'bananna'; take one of banana, x-shape, two-modes, funnel, eight-schools.\n"
    )
    (tmp_path / "file").write_text("")
    result = invoke("demo", "--out", tmp_path / "file")
    assert result.exit_code == 1 and result.output.count("\n") == 1 and "--out" in result.output


def test_compiled_programs_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    before = jax.config.values["jax_compilation_cache_dir"]
    seconds = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        main()
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "vgp" / "compiled")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
