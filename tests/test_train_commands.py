"""The commands `vgp train`, `vgp evaluate` and `vgp sample`: what they write and print, and what they refuse."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from training_runs import TINY, assert_same, invoke, made

from vgp.checkpoint import read
from vgp.experiments import evaluate, folder, pictures, records
from vgp.experiments.folder import open_run

pytest_plugins = "training_fixtures"
pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, source, small):
    out = tmp_path_factory.mktemp("trained") / "new" / "run"
    return invoke("train", "tiny", "--data", source, "-o", out, "--epochs", 2), out


def test_train_evaluate_sample(trained, tmp_path, monkeypatch):
    result, out = trained
    assert result.exit_code == 0, result.output
    assert "tiny at epoch 2" in result.output and "all epochs are done" in result.output
    told = json.loads((out / "run.json").read_text())
    assert told["row"] == "tiny" and told["settings"]["epochs"] == 2 and told["protocol"] == "fixed"
    assert {"state.vgp", "run.json"} <= {path.name for path in out.iterdir()}

    measure = ("evaluate", out, "--samples", 20, "--results", tmp_path)
    result = invoke(*measure)
    assert result.exit_code == 0, result.output
    record = json.loads((out / "record-0.json").read_text())
    assert record["test_images"] == 21 and record["epochs"] == 2 and record["estimate_samples"] == 20
    assert json.loads((tmp_path / "train" / "tiny-kinds-fixed-2-0.json").read_text()) == record
    assert f"bound {record['bound']:.3f} ± " in result.output and "by 20 samples" in result.output

    with monkeypatch.context() as patch:
        figure = evaluate.Figure(3.0, 0.1)
        patch.setattr(evaluate, "bound", lambda *_, **__: evaluate.Bound(figure, figure))
        patch.setattr(evaluate, "estimate", lambda learner, pixels, *_, **__: evaluate.Figure(float(len(pixels)), 0.1))
        result = invoke(*measure[:-1], tmp_path / "part", "--images", 5, "--json")
    assert result.exit_code == 0 and not (tmp_path / "part").exists()  # a part is no record
    (record,) = json.loads(result.stdout)
    assert record["test_images"] == record["estimate"] == 5

    result = invoke("sample", out, "-n", 7)
    assert result.exit_code == 0, result.output
    names = ("samples.png", "samples-reconstructions.png")
    for name in names:
        assert (out / name).read_bytes().startswith(b"\x89PNG") and f"written: {out / name}" in result.output
    assert invoke("sample", out, "-n", 7, "-o", tmp_path / "other" / "a.png", "--seed", 1).exit_code == 0
    assert (tmp_path / "other" / "a.png").read_bytes() != (out / names[0]).read_bytes()


def test_a_finished_run_is_finished(trained):
    _, out = trained
    before = read(out / "state.vgp")
    kinds = json.loads((out / "run.json").read_text())["data"]
    result = invoke("train", "tiny", "--data", kinds, "-o", out, "--resume")
    assert result.exit_code == 0 and "tiny at epoch 2" in result.output and "all epochs are done" in result.output
    after = read(out / "state.vgp")
    assert before[1] == after[1]
    for name, array in before[0].items():
        np.testing.assert_array_equal(array, after[0][name])


def test_fresh_starts_anew(trained, source, tmp_path):
    out = tmp_path / "run"
    arguments = ("train", "tiny", "--data", source, "-o", out, "--epochs", 2)
    assert invoke(*arguments, "--seed", 1).exit_code == 0
    other = open_run(out).load()[0]
    assert invoke(*arguments, "--fresh").exit_code == 0
    anew = open_run(out).load()[0]
    assert_same(anew, open_run(trained[1]).load()[0])
    assert (anew.history != other.history).all()


def test_the_usual_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "tiny", "--data", source, "--epochs", 1).exit_code == 0
    assert folder.is_run(tmp_path / "runs" / "tiny-kinds-fixed")


def test_records_of_other_settings_stay(tmp_path):
    record = {"row": "tiny", "data": "d", "protocol": "fixed", "epochs": 2, "seed": 0, "configuration": {"rate": 0.1}}
    first = records.write(record, tmp_path)
    assert records.write(record | {"bound": 1.0}, tmp_path) == first  # measured again
    second = records.write(record | {"configuration": {"rate": 0.2}}, tmp_path)
    assert second != first and json.loads(first.read_text())["configuration"] == {"rate": 0.1}
    assert records.write(record | {"configuration": {"rate": 0.2}}, tmp_path) == second
    first.write_text("{")  # damaged, and not ours to replace
    assert records.write(record, tmp_path) not in (first, second)


def test_images_stand_in_a_grid():
    pixels = np.arange(5 * 6).reshape(5, 6) / 30
    sheet = pictures.grid(pixels, (2, 3))
    assert sheet.shape == (3 * 3 + 1, 2 * 4 + 1)
    for i, picture in enumerate(pixels):
        y, x = 3 * (i // 2) + 1, 4 * (i % 2) + 1
        np.testing.assert_array_equal(sheet[y : y + 2, x : x + 3], picture.reshape(2, 3))
    assert (sheet[0] == 0.5).all() and (sheet[7:, 5:] == 0.5).all()
    assert pictures.grid(np.zeros((1, 6)), (6,)).shape == (3, 15)


# ---------------------------------------------------------------- bad input


@pytest.fixture(scope="module")
def others(source, trained, tmp_path_factory):
    """Files beside the run that are not its own: other data, and runs that are damaged."""
    place = tmp_path_factory.mktemp("others")
    np.savez(place / "kinds.npz", train=made(65, 9), valid=made(20, 1), test=made(21, 2))
    np.savez(place / "gray.npz", train=np.linspace(0, 1, 390).reshape(65, 6))
    for name in ("cut", "garbled", "half"):
        (place / name).mkdir()
        for part in ("run.json", "state.vgp"):
            (place / name / part).write_bytes((trained[1] / part).read_bytes())
    (place / "cut" / "state.vgp").write_bytes((trained[1] / "state.vgp").read_bytes()[:1000])
    (place / "garbled" / "run.json").write_text('{"row": "tiny", ')
    (place / "half" / "run.json").write_text('{"row": "tiny"}')
    return place


TRAIN = ["train", "tiny", "--data", "SOURCE", "-o", "RUN"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "dlgm1-vea"], "There is no row 'dlgm1-vea'; the rows are dlgm1-vae, dlgm2-vae,"),
        (["train", "tiny", "--data", "gone.npz"], "/gone.npz'); check the name."),
        (TRAIN, "' already holds a run of tiny; pass --resume to go on with it, --fresh to start anew, or --out"),
        (["train", "dlgm1-vae", *TRAIN[2:]], "' is the folder of a run of tiny, not of dlgm1-vae; pass --out"),
        (["train", "dlgm1-vae", *TRAIN[2:], "--resume"], "of a run of tiny, not of dlgm1-vae; pass --out"),
        (["train", "tiny", "--data", "digits", "-o", "RUN"], "is a run on kinds, fixed, not on digits, dynamic; pass"),
        (["train", "tiny", "--data", "OTHERS/gray.npz", "--protocol", "dynamic", *TRAIN[4:]], "not on gray, dynamic;"),
        (["train", "tiny", "--data", "OTHERS/kinds.npz", "-o", "RUN", "--resume"], "is a run on kinds.npz, sha256 "),
        ([*TRAIN, "--resume", "--batch", 10], "' was trained with --batch 20, got 10; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--warmup", 3], "' was trained with --warmup 0, got 3; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--optimizer", "muon"], "' was trained with --optimizer adam, got muon;"),
        ([*TRAIN, "--resume", "--architecture", "literal"], "' was trained with --architecture deep, got literal;"),
        ([*TRAIN, "--resume", "--seed", 1], "' was trained with --seed 0, got 1; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--seeds", 2], "' was trained with --seeds 1, got 2; it cannot change, pass --out"),
        ([*TRAIN, "--resume", "--epochs", 1], "' is already at epoch 2, got --epochs 1; pass 2 or more, or --fresh"),
        (["train", "tiny", "--epochs", 0], "--epochs must be 1 or more, got 0."),
        (["train", "tiny", "--batch", 0], "--batch must be 1 or more, got 0."),
        (["train", "tiny", "--seeds", 0], "--seeds must be 1 or more, got 0."),
        (["train", "tiny", "--warmup", -1], "--warmup must be 0 or more, got -1."),
        (["train", "tiny", "--rate", 0], "--rate must be a positive number, got 0.0."),
        (["train", "tiny", "--rate", "nan"], "--rate must be a positive number, got nan."),
        (["train", "tiny", "--flip", "0.5"], "--flip must be 0 or more and less than 0.5, got 0.5;"),
        (["train", "tiny", "--dreams", "-1"], "--dreams must be 0 or more, got -1.0;"),
        (["train", "tiny", "--decay", "-1"], "--decay must be 0 or more, got -1.0;"),
        (["train", "tiny", "--decay", "0.1"], "--decay goes with --optimizer muon, got 'adam';"),
        (["train", "tiny", "--tail", "2"], "--tail must be between 0 and 1, the share of the run"),
        (["train", "tiny", "--tail", "0", "--optimizer", "rmsprop"], "the rate of rmsprop falls by itself, got 0.0."),
        ([*TRAIN, "--resume", "--dreams", "1"], "' was trained with --dreams 0.0, got 1.0;"),
        ([*TRAIN, "--resume", "--flip", "0.1"], "' was trained with --flip 0.0, got 0.1;"),
        (["train", "tiny", "--set", "width=3"], "A setting is NAME=VALUE with a name among architecture, joint,"),
        (["train", "tiny", "--set", "rank"], "A setting is NAME=VALUE with a name among architecture, joint,"),
        (["train", "tiny", "--set", "rank=many"], "The setting rank is of the kind int or None, got 'many'."),
        (["train", "tiny", "--set", "inner=8"], "of the kind tuple, such as inner='((0.0, 0),)', got '8'."),
        (["train", "tiny", "--set", "inner=((0.5, 8),)"], "pairs of a share of the run, rising from 0.0, and the K"),
        (["train", "tiny", "--set", "inner=()"], "pairs of a share of the run, rising from 0.0, and the K"),
        (["train", "tiny", "--set", "inner=(1, 2)"], "pairs of a share of the run, rising from 0.0, and the K"),
        (["train", "dlgm2-vgp", "--set", "above=((1, 2),)"], "The setting above must be pairs of one of latent_dim,"),
        (["train", "dlgm2-vgp", "--set", "above=(('name', 'x'),)"], "above must be pairs of one of latent_dim, scale"),
        (["train", "dlgm2-vgp", "--set", "above=(('rank', 'x'),)"], "The setting rank is of the kind int or None, got"),
        (["train", "dlgm2-vgp", "--set", "above=(('rank', 0),)"], "The setting rank must be 1 or more, got 0."),
        (["train", "dlgm1-vgp", "--set", "num_data=0"], "The setting num_data must be 1 or more, got 0."),
        (["train", "tiny", "--set", "rank=8"], "The setting rank does nothing in tiny, whose family is vae; leave it"),
        (["train", "tiny", "--set", "glimpses=8"], "The setting glimpses does nothing in tiny, whose model is dlgm;"),
        (["train", "tiny", "--set", "joint=True"], "The setting joint does nothing in tiny, which has one layer;"),
        (["train", "tiny", "--set", "gradient=ARM"], "gradient=ARM is for discrete variables, and those of tiny are"),
        (["train", "tiny", "--set", "clip=-1"], "The setting clip must be positive, got -1.0."),
        (["train", "dlgm1-nf80", "--set", "length=0"], "length must be 1 or more for dlgm1-nf80, got 0."),
        (["train", "dlgm1-vgp", "--set", "mean=affine", "--set", "noise=2"], "noise must be less than 1, the scale"),
        (["train", "tiny", "--set", "gradient=AbstractGradient"], "gradient must be the name of a class of"),
        (["train", "tiny", "--set", "batch=3", "--batch", 5], "--set batch=3 was given beside batch 5; leave one"),
        (
            ["train", "tiny", "--set", "gradient=ARMS"],
            "gradient must be the name of a class of vgp.gradients, got 'ARMS'",
        ),
        (["train", "tiny", "--set", "bound=iwae"], "bound must be 'importance' or 'analytic', got 'iwae'."),
        ([*TRAIN, "--resume", "--set", "outer=2"], "' was trained with --set outer=1, got 2; it cannot change, pass"),
        (["train", "tiny", "--optimizer", "sgd"], "--optimizer must be adam, muon or rmsprop, got 'sgd'."),
        (["train", "tiny", "--architecture", "wide"], "--architecture must be deep or literal, got 'wide'."),
        (["train", "tiny", "--protocol", "both"], "The protocol must be 'fixed' or 'dynamic', got 'both'"),
        ([*TRAIN[:4], "-o", "OTHERS/new", "--batch", 66], "A batch of 66 is larger than the 65 training images; pass"),
        ([*TRAIN[:4], "-o", "OTHERS/new", "--resume"], "There is no run in 'OTHERS/new' to resume; leave --resume out"),
        ([*TRAIN[:4], "-o", "OTHERS", "--resume", "--fresh"], "There is no run in 'OTHERS' to resume; leave --resume"),
        (["train", "tiny", "--data", "SOURCE", "--resume"], "no run in 'runs/tiny-kinds-fixed' to resume; leave"),
        ([*TRAIN[:4], "-o", "OTHERS/cut", "--resume"], "state.vgp' is not a saved fit of vgp, or damaged"),
        ([*TRAIN[:4], "-o", "OTHERS/garbled", "--resume"], "run.json' is damaged or another version's (JSON"),
        (["evaluate", "OTHERS/cut"], "state.vgp' is not a saved fit of vgp, or damaged; load an earlier copy."),
        (["evaluate", "OTHERS/garbled"], "garbled/run.json' is damaged or another version's (JSON"),
        (["evaluate", "OTHERS/half"], "run.json' is damaged or another version's (KeyError: 'settings'); put"),
        (["evaluate", "OTHERS"], "There is no run in 'OTHERS'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "OTHERS"], "There is no run in 'OTHERS'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "gone"], "There is no run in 'gone'; name a folder that `vgp train` wrote, with run.json."),
        (["sample", "RUN", "-n", 0], "-n must be 1 or more, got 0."),
        (["sample", "RUN", "-o", "OTHERS/a.txt"], "The picture must be a .png file, got 'OTHERS/a.txt'."),
        (["evaluate", "RUN", "--samples", 0], "--samples must be 1 or more, got 0."),
        (["evaluate", "RUN", "--inner", 0], "--inner must be 1 or more, got 0."),
        (["evaluate", "RUN", "--images", 0], "--images must be 1 or more, got 0."),
    ],
)
def test_bad_input_gets_one_sentence(trained, source, others, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    places = {"SOURCE": source, "RUN": trained[1], "OTHERS": others}

    def filled(text):
        return re.sub("|".join(places), lambda found: str(places[found[0]]), text)

    before = (trained[1] / "state.vgp").read_bytes()
    result = invoke(*(filled(str(argument)) for argument in arguments))
    assert result.exit_code == 1 and filled(sentence) in result.output, (result.output, result.exception)
    assert result.output.startswith("vgp: ") and result.output.count("\n") == 1
    assert (trained[1] / "state.vgp").read_bytes() == before and not any(tmp_path.iterdir())
    assert not (others / "new").exists()


def test_data_that_has_changed_is_refused(trained, source, tmp_path):
    path, out = tmp_path / "kinds.npz", tmp_path / "run"
    path.write_bytes(Path(source).read_bytes())
    assert invoke("train", "tiny", "--data", path, "-o", out, "--epochs", 1).exit_code == 0
    np.savez(path, train=made(65, 9), valid=made(20, 1), test=made(21, 2))
    for arguments in (("evaluate", out), ("train", "tiny", "--data", path, "-o", out, "--resume", "--epochs", 2)):
        result = invoke(*arguments)
        assert result.exit_code == 1 and "holds other images than those of the run" in result.output
        assert result.output.startswith("vgp: ") and result.output.count("\n") == 1


def test_a_run_is_found_from_another_folder(source, images, tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "kinds.npz").write_bytes(Path(source).read_bytes())
    monkeypatch.chdir(tmp_path / "here")
    assert invoke("train", "tiny", "--data", "kinds.npz", "-o", "run", "--epochs", 2).exit_code == 0
    assert json.loads(Path("run/run.json").read_text())["data"] == str(tmp_path / "here" / "kinds.npz")
    monkeypatch.chdir(tmp_path / "there")
    assert open_run(Path("../here/run")).images.origin == images.origin
    # The run has moved, and its images are gone from where they were: the sentence says what to do, and it works.
    moved = (tmp_path / "here" / "run").rename(tmp_path / "there" / "run")
    (tmp_path / "here" / "kinds.npz").rename(tmp_path / "there" / "kinds.npz")
    resume = ("train", "tiny", "--data", "kinds.npz", "-o", "run", "--resume")
    for arguments in (("sample", "run"), ("evaluate", "run"), resume):
        result = invoke(*arguments)
        assert result.exit_code == 1 and "here/kinds.npz', which is no file any more; put it back, or" in result.output
        assert result.output.startswith("vgp: ") and result.output.count("\n") == 1
    told = json.loads((moved / "run.json").read_text())
    (moved / "run.json").write_text(json.dumps(told | {"data": "kinds.npz"}))
    assert invoke(*resume).exit_code == 0
    assert json.loads((moved / "run.json").read_text())["data"] == str(tmp_path / "there" / "kinds.npz")


def test_images_that_have_a_name_keep_it(images):
    assert folder.Run(Path("run"), TINY, images, "digits", 0, 1).describe()["data"] == "digits"
