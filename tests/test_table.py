"""`vgp table`, on made-up records."""

import importlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vgp.cli import app
from vgp.experiments import records
from vgp.experiments.published import MNIST, SIGNS, SKETCH, SOURCES, TABLES
from vgp.experiments.rows import ROWS
from vgp.experiments.table import architecture, grouped, markdown, read

RECORD = {
    **{"row": "dlgm1-vae", "data": "mnist", "protocol": "fixed", "seed": 0, "bound": 94.0, "bound_stderr": 0.25},
    **{"bound_samples": 1, "sandwich": None, "estimate": 89.0, "estimate_stderr": 0.23, "estimate_samples": 5000},
    **{"train_bound": 90.0, "epochs": 400, "seconds": 300.0, "hardware": "a machine", "commit": "abc"},
    **{"date": "2026-01-01", "versions": {}, "configuration": {"latents": [50], "hidden": [[200, 200]]}},
}
CONTRACT = (
    *("row", "protocol", "bound", "bound_stderr", "estimate", "estimate_stderr", "epochs", "seconds", "hardware"),
    *("commit", "configuration", "seed", "data", "bound_samples", "estimate_samples", "sandwich"),
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # keeps the command from choosing a folder
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def write(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()

    def write(**changes):
        path = folder / f"{len(list(folder.iterdir())):03}.json"
        path.write_text(json.dumps(RECORD | changes))
        return path

    return write


def invoke(folder, *arguments):
    return CliRunner().invoke(app, ["table", *arguments, "--results", str(folder)])


def cells(folder, row, name="mnist"):
    """The cells of a row of the Markdown table, without its first."""
    lines = [line.strip("| ").split(" | ") for line in markdown(name, folder).splitlines() if line.startswith("|")]
    return next(line[1:] for line in lines if line[0].split("<br>")[-1] == row)


def test_the_paper_has_twelve_rows_in_its_order(tmp_path):
    assert len(MNIST.entries) == 12 and len(SKETCH.entries) == 6
    result = invoke(tmp_path, "mnist")
    assert result.exit_code == 0, result.output
    lines = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    places = [lines.index(entry.row) for entry in MNIST.entries]
    assert places == sorted(places)
    assert result.stdout.count("not yet run") == 24
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "79.88" in result.stdout and "≈ 88.71" in result.stdout and "= 84.65" in result.stdout


def test_quotations_are_numbers_with_a_known_kind_and_source():
    for published in TABLES.values():
        for entry in (*published.entries, *published.others):
            assert entry.source is None or entry.source in SOURCES
            for figure in (*entry.paper, *entry.fixed, *entry.dynamic):
                assert float(figure.printed) > 70 and figure.kind in SIGNS


def test_a_row_of_the_paper_may_be_several_of_ours(write, tmp_path):
    for entry in MNIST.entries:
        assert set(entry.also) <= set(ROWS)
    write(row="dlgm2-vgp", protocol="dynamic", estimate=86.0)
    assert "best of" not in cells(tmp_path, "dlgm2-vgp")[-1] and "iw20" not in cells(tmp_path, "dlgm2-vgp")[-1]
    write(row="dlgm2-vgp-iw20", protocol="dynamic", estimate=82.0)
    ours = cells(tmp_path, "dlgm2-vgp")[-1].split("<br>")
    assert "≈ 82.00 ± 0.23" in ours and "dlgm2-vgp-iw20" in ours and ours[-1] == "best of 2 settings"
    assert "not in the paper" not in markdown("mnist", tmp_path)
    write(row="dlgm2-vgp", protocol="dynamic", estimate=81.0, epochs=900)
    assert "dlgm2-vgp-iw20" not in cells(tmp_path, "dlgm2-vgp")[-1].split("<br>")


def test_belief_networks_have_a_table_of_their_own(write, tmp_path):
    write(row="sbn1-linear", bound=116.0, estimate=111.0)
    write(row="dlgm1-vae")
    assert [record["row"] for record in read(tmp_path, "discrete")] == ["sbn1-linear"]
    assert [record["row"] for record in read(tmp_path, "mnist")] == ["dlgm1-vae"]
    published, ours, dynamic = cells(tmp_path, "sbn1-linear", "discrete")
    assert published == "110.3" and ours.startswith("≤ 116.00") and dynamic == "not yet run"
    assert "| paper |" not in markdown("discrete", tmp_path) and "the paper" not in markdown("discrete", tmp_path)


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_no_records_are_a_note_on_stderr(tmp_path, folder):
    result = invoke(tmp_path / folder, "sketch")
    assert result.exit_code == 0 and result.stdout.count("not yet run") == 12
    assert "no records of 'sketch' in" in result.stderr and result.stderr.count("\n") == 1
    assert "no records" not in result.stdout
    assert json.loads(invoke(tmp_path / folder, "mnist", "--json").stdout) == []


def test_seeds_are_averaged(write, tmp_path):
    write(seed=0, bound=94.0, estimate=89.0, seconds=300.0)
    write(seed=1, bound=95.0, estimate=89.4, seconds=500.0)
    ours = cells(tmp_path, "dlgm1-vae")[3].split("<br>")
    # The test images are the same for both, so the standard error stays that of one.
    assert ours == [
        *("≤ 94.50 ± 0.25", "≈ 89.20 ± 0.23", "z 50, hidden 200-200", "400 epochs, 400 s", "2 seeds, range 0.40"),
    ]
    assert cells(tmp_path, "dlgm1-vae")[4] == "not yet run"


def test_of_two_records_of_a_seed_the_newer_counts(write, tmp_path):
    write(date="2026-02-01", estimate=89.0)
    write(date="2026-01-01", estimate=85.0)
    (group,) = grouped(read(tmp_path, "mnist"))
    assert [record["estimate"] for record in group.records] == [89.0]


def test_the_best_group_of_each_protocol_is_shown(write, tmp_path):
    write(estimate=89.0, bound=93.0)
    write(estimate=88.0, bound=94.0, epochs=800)
    write(estimate=88.5, epochs=800, configuration={"latents": [40]})
    write(estimate=70.0, data="digits")
    write(estimate=86.0, protocol="dynamic")
    fixed, dynamic = cells(tmp_path, "dlgm1-vae")[3:]
    assert "≈ 88.00" in fixed and "800 epochs" in fixed and "1 seed" in fixed and "best of 3 settings" in fixed
    assert "≈ 86.00" in dynamic and "settings" not in dynamic


def test_what_a_run_began_with_is_said(write, tmp_path):
    write()
    write(protocol="dynamic", configuration={"begun": "dlgm1-iwae50 at epoch 7"})
    fixed, dynamic = cells(tmp_path, "dlgm1-vae")[3:]
    assert "begun with dlgm1-iwae50 at epoch 7" in dynamic and "begun" not in fixed


def test_a_stage_counts_the_epochs_that_it_began_with(write, tmp_path):
    stage = {"data": "sketch", "row": "draw-sketch-vgp", "epochs": 20}
    write(**stage, configuration={"begun": "draw-sketch-vgp at epoch 180"})
    write(**stage, configuration={"begun": "draw-sketch at epoch 280"})
    lines = [line for line in markdown("sketch", tmp_path).splitlines() if "begun with draw-sketch" in line]
    assert lines[0].startswith("| DRAW + VGP, 200 epochs") and "at epoch 180" in lines[0]
    assert lines[1].startswith("| DRAW + VGP, 300 epochs") and "at epoch 280" in lines[1] and len(lines) == 2


def test_figures_of_different_samples_are_not_averaged(write, tmp_path):
    write(row="dlgm2-iwae50", bound_samples=50)
    write(row="dlgm2-iwae50", bound_samples=50, seed=1, estimate_samples=100, estimate=90.0)
    ours = cells(tmp_path, "dlgm2-iwae50")[3]
    assert "≤ 94.00 ± 0.25, k=50" in ours and "≈ 89.00 ± 0.23<br>" in ours and "1 seed" in ours


def test_a_run_without_figures_is_never_best(write, tmp_path):
    write(bound=float("nan"), estimate=float("nan"), configuration={})
    assert cells(tmp_path, "dlgm1-vae")[3].startswith("≤ —<br>≈ —<br>400 epochs")
    write()
    assert cells(tmp_path, "dlgm1-vae")[3].startswith("≤ 94.00")
    assert json.loads(invoke(tmp_path, "mnist", "--json").stdout)[0]["estimate"] is None


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_figure_that_is_not_finite_is_written_as_null_and_shown_as_a_dash(tmp_path, odd):
    figures = {"bound": odd, "bound_stderr": odd, "estimate_stderr": odd, "sandwich": [odd, 92.75]}
    path = records.write(RECORD | figures, tmp_path)
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    nulls = {"bound": None, "bound_stderr": None, "estimate_stderr": None, "sandwich": [None, 92.75]}
    assert kept == RECORD | nulls
    assert cells(tmp_path, "dlgm1-vae")[3].startswith("≤ —<br>≈ 89.00 ± —<br>z 50")
    assert "[—, 92.75]" in invoke(tmp_path, "mnist", "--all").stdout
    assert json.loads(invoke(tmp_path, "mnist", "--json").stdout, parse_constant=pytest.fail)[0]["bound"] is None


def test_a_benchmark_writes_null_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    path = importlib.import_module("record").write("made-up", {}, [{"elbo": float("nan"), "steps": 3}], tmp_path)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["figures"] == [{"elbo": None, "steps": 3}]


def test_rows_that_the_paper_does_not_have_stand_below(write, tmp_path):
    write(row="dlgm1-hvm")
    write(row="dlgm1-iwae50")
    text = markdown("mnist", tmp_path)
    assert text.index("draw-vgp |") < text.index("not in the paper") < text.index("| dlgm1-hvm")
    assert cells(tmp_path, "dlgm1-iwae50")[:3] == ["—", "≈ 87.10", "≈ 84.78"]
    lines = invoke(tmp_path, "mnist").stdout.splitlines()
    assert sum(line.startswith("───") for line in lines) == 2


def test_sketch_has_a_row_per_number_of_epochs(write, tmp_path):
    unmeasured = {"estimate": None, "estimate_samples": None}
    for epochs in (50, 200):
        write(row="draw-sketch", data="sketch", epochs=epochs, bound=400.0 + epochs, **unmeasured)
    text = markdown("sketch", tmp_path)
    at = {line.split("<br>")[0]: line for line in text.splitlines()}
    assert "not yet run | not yet run" in at["| DRAW, 100 epochs"] and "≤ 526.8" in at["| DRAW, 100 epochs"]
    assert "≤ 600.00" in at["| DRAW, 200 epochs"] and "≈" not in at["| DRAW, 200 epochs"]
    assert "≤ 450.00" in text[text.index("not in the paper") :]


def test_json_is_a_list_of_our_records(write, tmp_path):
    write()
    write(seed=1)
    write(data="digits")
    ours = json.loads(invoke(tmp_path, "mnist", "--json").stdout)
    assert [record["seed"] for record in ours] == [0, 1]
    for record in ours:
        assert set(record) == set(CONTRACT)
        assert record["configuration"] == RECORD["configuration"]


def test_json_counts_the_epochs_of_all_runs_behind_a_record(write, tmp_path):
    write(row="draw-sketch", data="sketch", epochs=100)
    begun = RECORD["configuration"] | {"begun": "draw-sketch at epoch 260"}
    write(row="draw-sketch-vgp", data="sketch", epochs=40, configuration=begun)
    ours = json.loads(invoke(tmp_path, "sketch", "--json").stdout)
    assert [record["epochs"] for record in ours] == [100, 300]


def test_all_lists_every_record(write, tmp_path):
    for seed in range(3):
        write(seed=seed, row="dlgm1-vgp", sandwich=[91.25, 92.75])
    result = invoke(tmp_path, "mnist", "--all")
    assert result.stdout.count("dlgm1-vgp") == 3 and "not yet run" not in result.stdout
    assert result.stdout.count("[91.25, 92.75]") == 3 and "002.json" in result.stdout


def test_markdown_is_a_table(write, tmp_path):
    write()
    result = invoke(tmp_path, "mnist", "--markdown")
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 14 and {line.count("|") for line in lines} == {7}
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"
    assert result.stdout.strip() == markdown("mnist", tmp_path).strip()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("estimate"), "Expected the key 'estimate' in the record"),
        (lambda record: record.update(bound="94"), "Expected a number or null as 'bound' in the record"),
        (lambda record: record.update(protocol="static"), "Expected 'fixed' or 'dynamic' as 'protocol'"),
        (lambda record: record.update(seed=True), "Expected a whole number as 'seed'"),
    ],
)
def test_a_malformed_record_is_one_sentence(write, tmp_path, change, message):
    path, record = write(), dict(RECORD)
    change(record)
    path.write_text(json.dumps(record))
    result = invoke(tmp_path, "mnist")
    assert result.exit_code == 1 and not result.stdout
    assert message in result.stderr and path.name in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(("text", "message"), [("{", "Expected JSON in"), ("[]", "Expected a JSON object in")])
def test_a_file_that_is_no_record_is_one_sentence(write, tmp_path, text, message):
    write().write_text(text)
    result = invoke(tmp_path, "mnist")
    assert result.exit_code == 1 and message in result.stderr and "000.json" in result.stderr


def test_other_bad_input(tmp_path):
    result = invoke(tmp_path, "cifar")
    assert result.exit_code == 1
    assert result.stderr == "vgp: There is no table 'cifar'; take one of mnist, sketch, discrete.\n"
    assert "got both" in invoke(tmp_path, "mnist", "--json", "--markdown").stderr


def test_architecture_in_a_few_words():
    configuration = {"latents": [100, 50], "hidden": [[200, 200], [100, 100]], "m": 32, "rank": None, "batch": 200}
    assert architecture(configuration) == "z 100-50, hidden 200-200 / 100-100, m 32"
    assert architecture({}) == ""


def test_architecture_of_the_rows():
    words = {name: architecture(json.loads(json.dumps(row.configuration()))) for name, row in ROWS.items()}
    assert words["dlgm1-vae"] == "z 50, hidden 200-200"
    assert words["dlgm1-iwae50"] == "z 50, hidden 200-200, M 50"
    assert words["dlgm1-nf80"] == "z 50, hidden 200-200, length 80"
    assert words["dlgm1-hvm"] == "z 50, hidden 200-200, c 32, K 8"
    assert words["dlgm1-vgp-shared"].endswith(", m 100, c 16, rank 64, K 8")
