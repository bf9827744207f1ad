"""Tests of the trained models. Requires the extra `learn` (`make test-learn`)."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightgbm")
np = pytest.importorskip("numpy")

from thermocline.learn import cli, conformal, export, features, generate, history, insensitive, untouched, vms, workloads  # noqa: E402
from thermocline.learn.commands import DIFFERENCE_MAX  # noqa: E402
from thermocline.report import into  # noqa: E402

SPEC = generate.Spec(vms=6000, days=9, customers=60)
DAY = vms.DAY


@pytest.fixture(scope="module")
def known() -> features.Known:
    return features.known(generate.generate(SPEC, seed=3))


def quiet(_: str) -> None:
    pass


def test_onnx_predictions_equal_the_trainers(known: features.Known) -> None:
    trained = untouched.train(known, 0.05, 8 * DAY)
    later = known.where(known.vms.arrival >= 8 * DAY)
    inputs = features.matrix(later, trained.encoding)
    inputs = inputs[features.answerable(later, inputs)]
    predicted = trained.booster.predict(inputs.astype(np.float64), num_threads=1)
    assert np.abs(predicted - export.run(export.untouched_model(trained, 0.05), inputs)).max() < DIFFERENCE_MAX
    of = workloads.generate(158, seed=3)
    forest = insensitive.train(of, 1.82, 0.02, seed=3, progress=quiet, folds=10)
    others = workloads.generate(500, seed=4).values
    assert (
        np.abs(insensitive.scores(forest.forest, others) - export.run(export.insensitive_model(forest, 0.02), others)).max()
        < DIFFERENCE_MAX
    )


def test_lowered_predictions_are_in_the_model_itself(known: features.Known) -> None:
    later = known.where(known.vms.arrival >= 8 * DAY)
    plain, lowered = (untouched.train(known, 0.05, 8 * DAY, lowered=by) for by in (0.0, 0.07))
    before, after = plain.answers(later), lowered.answers(later)
    assert (before > 0.07).sum() > 100
    assert after == pytest.approx(np.maximum(before - 0.07, 0), abs=1e-9)
    inputs = features.matrix(later, lowered.encoding)
    inputs = inputs[features.answerable(later, inputs)]
    predicted = lowered.booster.predict(inputs.astype(np.float64), num_threads=1)
    assert np.abs(predicted - export.run(export.untouched_model(lowered, 0.05), inputs)).max() < DIFFERENCE_MAX


def test_the_model_overpredicts_less_than_a_static_share(known: features.Known) -> None:
    nights = untouched.roll(known, (7, 8), quiet, (0.05,))
    (model,) = untouched.curve(nights, (0.05,))
    (static,) = untouched.static_curve(nights, (model.gain,))
    assert model.gain > 0.1
    assert model.wrong < static.wrong / 2


def test_later_vms_do_not_affect_training(known: features.Known) -> None:
    trained = untouched.train(known, 0.05, 7 * DAY)
    past = known.vms.where(known.vms.departure <= 7 * DAY)
    again = untouched.train(features.known(past), 0.05, 7 * DAY)
    assert trained.booster.model_to_string() == again.booster.model_to_string()


def test_a_forest_beats_the_heuristics() -> None:
    of = workloads.generate(158, seed=3)
    folds_by_model = insensitive.validate(of, 1.82, seed=3, progress=quiet, folds=5)
    gains = {name: max(point.gain for point in insensitive.curve(folds) if point.wrong <= 0.05) for name, folds in folds_by_model.items()}
    assert gains["RandomForest"] > gains["Memory_Bound"]
    same = workloads.Workloads(of.names, of.counters, of.values, np.full_like(of.slowdowns, 0.5))
    with pytest.raises(ValueError, match="one side of the margin"):
        insensitive.validate(same, 1.82, seed=3, progress=quiet, folds=2)


def run(*words: str | Path) -> int:
    return cli.main([str(word) for word in words])


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_models_are_trained_solved_and_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, samples = tmp_path / "vms.parquet", tmp_path / "samples.jsonl"
    model, forest = tmp_path / "untouched.onnx", tmp_path / "insensitive.onnx"
    curve, other = tmp_path / "u.json", tmp_path / "i.json"
    assert run("generate", "vms", "--vms", "6000", "--days", "9", "--customers", "60", "--out", trace) == 0
    assert run("generate", "workloads", "--out", samples) == 0
    assert run("train", "untouched", "--trace", trace, "--out", model) == 0
    assert run("train", "insensitive", "--samples", samples, "--folds", "10", "--out", forest) == 0
    assert run("evaluate", "untouched", "--trace", trace, "--days", "1", "--curve", curve) == 0
    assert run("evaluate", "insensitive", "--samples", samples, "--folds", "3", "--curve", other) == 0
    capsys.readouterr()
    assert run("solve", "--untouched", curve, "--insensitive", other, "--tp", "95%", "--format", "json") == 0
    solved = printed(capsys)
    assert solved["insensitive"]["false_positive_ratio"] + solved["untouched"]["overpredicted_ratio"] <= 0.05
    assert 0 < solved["pool_ratio"] < 1
    about = export.metadata(model)
    assert (about["kind"], [one["name"] for one in about["features"]]) == ("untouched", list(features.NAMES))
    if program := os.environ.get("THERMOCLINE"):
        served(program, trace, model, forest, about)


def uninformative(samples: Path) -> None:
    """Writes workloads of which few are insensitive, and whose counters do not show it: a promise rests on untouched memory."""
    of = workloads.generate(158, seed=1)
    workloads.write(dataclasses.replace(of, slowdowns=0.045 + np.random.default_rng(1).permutation(of.slowdowns)), samples)


def test_a_pair_is_solved_verified_and_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, samples, out = tmp_path / "vms.parquet", tmp_path / "samples.jsonl", tmp_path / "models"
    assert run("generate", "vms", "--vms", "6500", "--days", "12", "--customers", "60", "--out", trace) == 0
    uninformative(samples)
    words = ("train", "pair", "--trace", trace, "--samples", samples, "--folds", "10", "--days", "2", "--held-out", "1", "--format", "json")
    capsys.readouterr()
    assert run(*words, "--tp", "90%", "--out", out) == 0
    made = printed(capsys)
    solved, held = made["solved"], made["held_out"]
    assert solved["false_positive_ratio"] + solved["overpredicted_ratio"] <= 0.1
    assert held["wrong_ratio"] == held["false_positive_ratio"] + held["overpredicted_ratio"]
    assert made["holds"] and held["untouched_ratio"] > 0.05 and held["vms"] > 300 and held["workloads"] == 158
    assert str(out / "untouched.onnx") in made["written"]
    assert export.metadata(out / "untouched.onnx")["target_ratio"] in conformal.TARGETS
    assert ((out / "insensitive.onnx").exists(), (out / "untouched.onnx").exists()) == (solved["insensitive_ratio"] > 0, True)


def test_a_broken_promise_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, samples, out = tmp_path / "vms.parquet", tmp_path / "samples.jsonl", tmp_path / "models"
    spec = dataclasses.replace(SPEC, vms=6500, days=12)
    made = generate.generate(spec, seed=3)
    # On the last whole day every VM touches all of its memory.
    ratio = np.where(made.arrival >= 10 * DAY, 0.0, made.untouched_ratio)
    vms.write(dataclasses.replace(made, untouched_ratio=ratio), trace, "a test", spec.days * DAY)
    uninformative(samples)
    words = ("train", "pair", "--trace", trace, "--samples", samples, "--folds", "10", "--days", "2", "--held-out", "1", "--out", out)
    assert run(*words, "--tp", "90%") == 3
    assert "does not hold" in capsys.readouterr().out and not out.exists()
    assert run(*words, "--days", "7") == 1
    assert "the trace has" in capsys.readouterr().err


def served(program: str, trace: Path, model: Path, forest: Path, about: dict[str, Any]) -> None:
    """The serving program predicts the same as the trainer."""
    known = features.known(vms.read(trace))
    trained = untouched.train(known, about["quantile"], about["trained_until"], lowered=about["lowered_ratio"])
    last = known.where(np.arange(len(known.vms)) >= len(known.vms) - 50)
    requests = []
    for at in range(50):
        names = {name: str(getattr(last.vms, name)[at]) for name in ("vm_type", "guest_os", "location")}
        numbers = {name: int(getattr(last.vms, name)[at]) for name in ("cores", "memory_bytes")}
        # The arrival is at the end of the training, from which the model is valid.
        requests.append(json.dumps(names | numbers | {"arrival": about["trained_until"], "history": [0.25, 0.5, 0.5, 0.75, 0.8]}))
    file = trace.with_name("requests.json")
    file.write_text("\n".join(requests), encoding="utf-8")
    paths = ("--model", str(model), "--insensitive", str(forest), "--request", str(file))
    command = [program, "--format", "json", "pool", "predict", *paths]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ordered = [0.25, 0.5, 0.5, 0.75, 0.8]
    shares = np.array([[history.percentile(ordered, percent) for percent in history.PERCENTILES]] * 50)
    asked = features.Known(dataclasses.replace(last.vms, arrival=np.full(50, about["trained_until"])), np.full(50, 5), shares)
    expected = trained.answers(asked)
    answered = 0
    for want, decision in zip(expected, result["decisions"], strict=True):
        if decision["untouched_ratio"] is not None:
            assert decision["untouched_ratio"] == pytest.approx(want, abs=1e-5)
            answered += 1
    assert answered >= 25, result["counts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "untouched", "--trace", "{empty}", "--out", "{out}"), "not a Parquet file"),
        (("train", "untouched", "--trace", "{missing}", "--out", "{out}"), "missing"),
        (("train", "untouched", "--lives", "{missing}", "--program", "{missing}", "--out", "{out}"), "name it by --program"),
        (("train", "untouched", "--lives", "{missing}", "--program", "false", "--out", "{out}"), "cannot import the records in"),
        (("train", "nights", "--trace", "{empty}", "--out", "{out}"), "not a Parquet file"),
        (("train", "insensitive", "--samples", "{empty}", "--out", "{out}"), "0 samples"),
        (("evaluate", "insensitive", "--samples", "{wrong}"), "line 1"),
        (("solve", "--untouched", "{wrong}", "--insensitive", "{wrong}"), "not a curve"),
        (("evaluate", "bitbrains", "--data", "{empty}"), "expected the columns"),
        (("generate", "vms", "--vms", "1", "--out", "{out}"), "cannot generate 1 VMs"),
    ],
)
def test_errors_name_their_cause(words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"empty": "", "wrong": '{"name": "x"}\n'}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    places = {name: tmp_path / name for name in ("empty", "wrong", "missing", "out")}
    assert run(*(word.format(**places) for word in words)) == 1
    assert message in capsys.readouterr().err
    assert not places["out"].exists()


@pytest.mark.skipif("THERMOCLINE" not in os.environ, reason="`make test-learn` sets the path of the program")
def test_the_simulator_uses_the_models_of_every_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, trace, models, samples = os.environ["THERMOCLINE"], tmp_path / "vms.parquet", tmp_path / "models", tmp_path / "w.jsonl"
    made = [program, "pool", "generate", "--vms", "12000", "--clusters", "2", "--days", "12", "--out", str(trace)]
    subprocess.run(made, check=True, capture_output=True)
    assert run("generate", "workloads", "--out", samples) == 0
    assert run("train", "insensitive", "--samples", samples, "--folds", "10", "--out", models / "insensitive-182.onnx") == 0
    capsys.readouterr()
    assert run("train", "nights", "--trace", trace, "--first-day", "9", "--out", models, "--format", "json") == 0
    nights = printed(capsys)["nights"]
    assert [night["trained_until"] for night in nights] == [9 * DAY, 10 * DAY, 11 * DAY]
    command = [program, "--format", "json", "pool", "simulate", "--trace", str(trace), "--models", str(models), "--counters", str(samples)]
    command += ["--memory", "models", "--latency", "64ns", "--pool-sizes", "16"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    quality = result["results"][0]["prediction_quality"]
    assert (result["begins"], result["model_faults"]) == (9 * DAY, [])
    # The trainer's predictions for the VMs that arrived after the first night, by the models of their nights.
    known = features.known(vms.read(trace))
    arrived, predicted, overpredicted = 0, 0.0, 0
    for night in nights:
        of = known.where((known.vms.arrival >= night["trained_until"]) & (known.vms.arrival < night["trained_until"] + DAY))
        answers = untouched.train(known, night["quantile"], night["trained_until"], lowered=night["lowered_ratio"]).answers(of)
        arrived += len(answers)
        overpredicted += int((answers > of.vms.untouched_ratio).sum())
        predicted += float((answers * of.vms.memory_bytes).sum())
    # VMs that run when the first model becomes valid are predicted too; insensitive VMs have no prediction of untouched memory.
    assert quality["vms"] > arrived
    assert 0 < quality["overpredicted_ratio"] < 2 * overpredicted / arrived
    assert predicted > 0 and quality["untouched_ratio"] > 0.02
    assert quality["insensitive_ratio"] > 0.05
    assert result["results"][0]["pool_ratio"] > 0.1


def test_a_trace_reads_back_as_written(tmp_path: Path) -> None:
    made = generate.generate(SPEC, seed=2)
    vms.write(made, tmp_path / "t.parquet", "a test", SPEC.days * DAY)
    back = vms.read(tmp_path / "t.parquet")
    for name in ("id", "arrival", "departure", "cores", "memory_bytes", "customer", "vm_type", "guest_os", "location"):
        assert (getattr(back, name) == getattr(made, name)).all(), name
    assert np.abs(back.untouched_ratio - made.untouched_ratio).max() < 1e-6


def test_the_report_keeps_other_figures(tmp_path: Path) -> None:
    out = tmp_path / "pond.json"
    out.write_text('{"figure_21": {"kept": true}}', encoding="utf-8")
    words = ["--out", out, "--vms", "6000", "--days", "9", "--nights", "4", "--folds", "2"]
    made = subprocess.run([sys.executable, "-m", "thermocline.report.pond", *map(str, words)], check=True, capture_output=True, text=True)
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["figure_21"] == {"kept": True}
    assert {"figure_17", "figure_18", "figure_19", "figure_20"} <= report.keys()
    assert "figure_19" in json.loads(made.stdout)
    assert len(list((tmp_path / "figures").glob("pond*.svg"))) == 4
    assert len(report["figure_17"]["latency_182%"]["half_interval"]) == len(report["figure_17"]["latency_182%"]["RandomForest"]["curve"])
    before = (tmp_path / "figures" / "pond17.svg").read_bytes()
    subprocess.run([sys.executable, "-m", "thermocline.report.pond", "--out", str(out), "--draw"], check=True, capture_output=True)
    assert (tmp_path / "figures" / "pond17.svg").read_bytes() == before
    assert into.merged(out, {"figure_21": 1})["figure_21"] == 1
