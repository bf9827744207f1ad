"""Studies on disk and the search, with a program that answers by a formula."""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thermocline.tune import choose, study
from thermocline.tune.cli import main
from thermocline.tune.page import page
from thermocline.tune.study import BadStudy

RUN = ("--generate", "5", "--holdout-seed", "2", "--designer", "random", "--format", "json")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "thermocline"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(__file__).with_name("fleet.py")} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def tune(program: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*arguments: str, code: int = 0) -> Any:
        more = ("--program", program) if arguments[0] in ("run", "retune") else ()
        got = main([arguments[0], *more, *arguments[1:]])
        printed = capsys.readouterr()
        assert got == code, printed.err
        return json.loads(printed.out) if code == 0 and "json" in arguments else printed.out + printed.err

    return run


def test_parameters_that_break_the_next_week_are_not_written(
    tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_BURSTS", "2.9")
    where, bundle = str(tmp_path / "s"), tmp_path / "bundle.toml"
    said = tune("run", "--study", where, *RUN, "--trials", "6", "--by-class", code=4)
    assert "no parameters were written" in said and "the fleet promotes 0.5" in said and "at most 0.200%" in said
    assert not (tmp_path / "s" / "parameters.toml").exists()
    give = ("bundle", "--study", where, "--to", str(bundle), "--version", "7")
    assert "--despite-holdout" in tune(*give, code=1)
    assert not bundle.exists()
    tune(*give, "--despite-holdout")
    assert bundle.exists()


def test_a_study_improves_and_reports_the_result(tune: Callable[..., Any], tmp_path: Path) -> None:
    where = str(tmp_path / "s")
    found = tune("run", "--study", where, *RUN, "--trials", "12", "--probes", "3", "--by-class")
    before, after, holdout = found["before"], found["after"], found["holdout"]
    assert (found["evaluations"]["trials"], before["percentile"], before["warmup_seconds"]) == (12, 0.99, 600)
    assert after["coverage"] > before["coverage"]
    assert after["rate"] <= found["objective"]["limit"] == 0.002 * 0.97
    assert found["gain"] == pytest.approx(after["coverage"] / before["coverage"] - 1)
    # The coverage of the held-out week is one percent higher per week, by the formula.
    assert holdout["after"]["coverage"] == pytest.approx(after["coverage"] * 1.02 / 1.01)
    assert after["margin_left"] == pytest.approx(1 - after["rate"] / 0.002)
    keys = [row["key"] for row in found["sensitivity"]]
    assert keys == ["cold_age.promotion_rate", "cold_age.percentile", "cold_age.warmup"]
    assert all(len(row["steps"]) > 2 for row in found["sensitivity"])
    # A class of the configuration is set, within its own objective; other classes are only reported.
    classes = {row["class"]: row for row in found["classes"]}
    assert (classes["aggressive"]["limit"], classes["aggressive"]["known"], classes["web"]["known"]) == (0.01 * 0.97, True, False)
    assert classes["aggressive"]["coverage"] > classes["web"]["coverage"]
    for row in classes.values():
        assert row["coverage_at_holdout"] == pytest.approx(row["coverage"] * 1.02 / 1.01)
        assert row["holds_at_holdout"] == (row["rate_at_holdout"] <= row["limit"] / 0.97)
    fragment = (tmp_path / "s" / "parameters.toml").read_text()
    assert "[class.aggressive]" in fragment and "[class.web]" not in fragment
    assert f'promotion_rate = "{found["parameters"]["cold_age.promotion_rate"]}"' in fragment
    provenance = json.loads((tmp_path / "s" / "parameters.json").read_text())
    assert provenance["parameters"] == found["parameters"]
    assert provenance["findings"]["holdout"] == holdout
    bundle = tmp_path / "bundle.toml"
    tune("bundle", "--study", where, "--to", str(bundle), "--version", "7", "--lasts", "30d")
    written = tomllib.loads(bundle.read_text())
    assert (written["schema"], written["version"], written["id"]) == (1, 7, "s")
    assert written["expires"] - written["created"] == datetime.timedelta(days=30)
    assert written["knobs"]["cold_age"]["promotion_rate"] == found["parameters"]["cold_age.promotion_rate"]
    assert set(written["knobs"]["class"]) == {"aggressive"}
    assert "above that of the last" in tune("bundle", "--study", where, "--to", str(bundle), "--version", "0", code=1)
    text = tune("report", "--study", where, "--page", str(tmp_path / "page.html"))
    assert "held out, after" in text and "effect of changing one knob" in text and "; held out: " in text
    html = (tmp_path / "page.html").read_text()
    assert "<svg" in html and "http" not in html and "Sensitivity" in html


def test_a_refusal_and_warnings_of_the_model_are_passed_on(
    tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UNRESOLVED", "1")
    refused = tune("run", "--study", str(tmp_path / "refused"), *RUN, "--trials", "2", code=1)
    assert "no entry answers the question" in refused
    where = str(tmp_path / "allowed")
    found = tune("run", "--study", where, *RUN, "--trials", "2", "--probes", "0", "--allow-unresolved")
    assert found["warnings"] == ["P 0.2%/min, best pair: 100% of the entries"]
    assert "warning: P 0.2%/min, best pair" in tune("report", "--study", where)
    monkeypatch.delenv("FAKE_UNRESOLVED")
    assert tune("run", "--study", str(tmp_path / "clean"), *RUN, "--trials", "2", "--probes", "0")["warnings"] == []


def test_an_interrupted_study_continues(tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    monkeypatch.setenv("FAKE_COUNT", str(count))
    one, two = tmp_path / "one", tmp_path / "two"
    whole = tune("run", "--study", str(one), *RUN, "--trials", "8", "--probes", "2")
    runs = len(count.read_text().splitlines())
    tune("run", "--study", str(two), *RUN, "--trials", "3", "--probes", "0")
    # Killed in the middle of a line.
    with (two / study.EVALUATIONS).open("ab") as file:
        file.write(b'{"version":1,"number":4,"ki')
    count.write_text("")
    again = tune("run", "--study", str(two), "--format", "json", "--trials", "8", "--probes", "2")
    assert len(count.read_text().splitlines()) < runs
    for key in ("after", "before", "parameters"):
        assert whole[key] == again[key]
    assert [row["point"] for row in whole["trials"]] == [row["point"] for row in again["trials"]]
    rows = tune("compare", str(one), str(two), "--format", "json")
    assert rows[0]["value"] == rows[1]["value"] and not rows[0]["remarks"]
    assert "to 99%" in tune("compare", str(one), str(two))


def test_a_killed_search_loses_only_the_current_evaluation(tune: Callable[..., Any], program: str, tmp_path: Path) -> None:
    whole = tune("run", "--study", str(tmp_path / "whole"), *RUN, "--trials", "9", "--probes", "0")
    killed = tmp_path / "killed"
    words = ["-m", "thermocline.tune", "run", "--program", program, "--study", str(killed), *RUN, "--trials", "9", "--probes", "0"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    # Progress is printed after the evaluation is on disk.
    line = next(line for line in process.stderr if line.startswith("trial 3"))
    process.kill()
    process.wait()
    process.stderr.close()
    left = study.read(killed)
    assert len(left.of("trial")) >= 3, line
    found = tune("run", "--study", str(killed), "--format", "json", "--trials", "9", "--probes", "0")
    assert found["parameters"] == whole["parameters"]
    assert study.read(killed).entries[: len(left.entries)] == left.entries


def test_a_truncated_study_is_read(tune: Callable[..., Any], tmp_path: Path) -> None:
    tune("run", "--study", str(tmp_path / "s"), *RUN, "--trials", "2", "--probes", "0")
    path = tmp_path / "s" / study.EVALUATIONS
    data = path.read_bytes()
    whole = study.read(tmp_path / "s").entries
    for cut in range(0, len(data), 37):
        path.write_bytes(data[:cut])
        entries = study.read(tmp_path / "s").entries
        assert entries == whole[: data[:cut].count(b"\n")]


def test_errors_name_their_cause(tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "s"
    tune("run", "--study", str(where), *RUN, "--trials", "1", "--probes", "0")
    assert "cannot change" in tune("run", "--study", str(where), "--generate", "6", code=1)
    assert "holds no study" in tune("report", "--study", str(tmp_path / "none"), code=1)
    with study.writing(where), pytest.raises(BadStudy, match="another process"), study.writing(where):
        pass
    monkeypatch.setenv("FAKE_GROWTH", "1")
    assert "the trace has changed" in tune("run", "--study", str(where), "--trials", "2", code=1)
    new = str(tmp_path / "new")
    for words, message in (
        (("--trace", "x", "--generate", "3"), "not both"),
        ((), "the input to tune on"),
        (("--generate", "3", "--holdout-seed", "1"), "is the fleet that is tuned on"),
        (("--generate", "3", "--knob", "pressure"), "does not replay pressure.ratio"),
        (("--generate", "3", "--knob", "cold_age.warmup"), "need no search"),
        (("--generate", "3", "--knob", "cold_age.thresholds"), "not searchable"),
        (("--generate", "3", "--set", "cold_age.promotion_rate=1%"), "both searched and set"),
        (("--generate", "3", "--objective", "0"), "give a share above 0"),
    ):
        assert message in tune("run", "--study", new, *words, code=1)
    assert not Path(new).exists()
    line = (where / study.EVALUATIONS).read_text().splitlines()[0]
    (where / study.EVALUATIONS).write_text(line.replace('"version":1', '"version":99') + "\n")
    assert "version 99" in tune("report", "--study", str(where), code=1)
    (where / study.EVALUATIONS).write_text("{}\n" + line + "\n")
    assert "has no version" in tune("report", "--study", str(where), code=1)
    (where / study.EVALUATIONS).write_text('{"version":1}\n')
    assert "line 1" in tune("report", "--study", str(where), code=1)


def test_failed_evaluations_are_recorded_and_bounded(tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAIL", "bold")
    found = tune("run", "--study", str(tmp_path / "s"), *RUN, "--trials", "15", "--probes", "0")
    assert found["evaluations"]["failed"] > 0
    assert any("no such trace" in (row["failure"] or "") for row in found["trials"])
    monkeypatch.setenv("FAKE_FAIL", "always")
    assert "cannot evaluate the parameters in effect" in tune("run", "--study", str(tmp_path / "t"), *RUN, code=1)


def test_an_objective_that_no_point_holds(tune: Callable[..., Any], tmp_path: Path) -> None:
    printed = tune("run", "--study", str(tmp_path / "s"), *RUN[:-2], "--objective", "0.001%", "--trials", "3", code=3)
    assert "no parameters" in printed
    assert not (tmp_path / "s" / "parameters.toml").exists()


def test_retuning(tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    tune("run", "--study", old, *RUN, "--trials", "6", "--probes", "0")
    again = ("retune", "--study", old, "--to", new, "--generate", "5", "--fleet-seed", "3", "--format", "json")
    idle = tune(*again)
    assert (idle["due"], [one["due"] for one in idle["reasons"]]) == (False, [False] * 4)
    assert not Path(new).exists()
    assert tune(*again, "--every", "0s", "--dry-run")["due"]
    # A tenth of the memory has moved to the second band.
    monkeypatch.setenv("FAKE_SHIFT", "0.1")
    found = tune(*again, "--trials", "14", "--probes", "0")
    reasons = {one["what"]: one for one in found["retune"]["reasons"]}
    assert reasons["memory"]["value"] == pytest.approx(0.1)
    assert (reasons["memory"]["due"], reasons["schedule"]["due"], reasons["objective"]["due"]) == (True, False, False)
    assert found["after_study"] == old
    # The new study begins where the old one ended.
    ended = study.read(tmp_path / "old").best()
    assert ended is not None and ended.outcome is not None and ended.outcome.pair is not None
    assert found["before"]["percentile"] == ended.outcome.pair.percentile
    assert study.read(tmp_path / "new").spec.base == ended.point
    changed = {one["key"]: one for one in found["retune"]["changes"]}
    assert set(changed) == {key for key, text in found["parameters"].items() if found["parameters_before"].get(key, text) != text}
    assert all("restoring it would" in one["why"] for one in changed.values())
    assert "reasons for tuning again" in tune("report", "--study", new)
    kept = study.read(tmp_path / "new")
    assert "Tuned again" in page(tune("report", "--study", str(kept.directory), "--format", "json"), found["retune"])


def test_external_evaluations_are_recorded(tune: Callable[..., Any], tmp_path: Path) -> None:
    where = str(tmp_path / "s")
    tune("run", "--study", where, "--external", "--knob", "pressure", "--designer", "random")
    for value in (1.0, 2.0):
        suggestion = tune("suggest", "--study", where, "--format", "json")
        words = [argument for key, text in suggestion["set"].items() for argument in ("--set", f"{key}={text}")]
        tune("record", "--study", where, *words, "--value", str(value), "--excess", str(value - 1.5))
    tune("record", "--study", where, "--set", "pressure.ratio=1%", "--failed", "the guest did not boot")
    found = tune("report", "--study", where, "--format", "json")
    assert (found["evaluations"]["trials"], found["evaluations"]["failed"], found["after"]["value"]) == (3, 1, 1.0)
    assert "holds" in tune("report", "--study", where, "--page", str(tmp_path / "page.html"))
    assert "not a point of the study" in tune("record", "--study", where, "--set", "pressure.ratio=50%", "--failed", "x", code=1)
    assert "--value and --excess" in tune("record", "--study", where, "--set", "pressure.ratio=1%", "--value", "1", code=1)


def test_a_command_evaluates_instead_of_the_model(tune: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(
        "import sys\nratio = float(sys.argv[2].split('=')[1].rstrip('%'))\n"
        'print("warming up")\nprint(\'{"value": %g, "excess": %g}\' % (ratio, ratio / 0.5 - 1))\n'
    )
    where = str(tmp_path / "s")
    found = tune(
        "run", "--study", where, "--format", "json", "--knob", "pressure", "--designer", "random", "--trials", "12", "--probes", "3",
        "--command", sys.executable, str(script),
    )  # fmt: skip
    assert 0.1 < found["after"]["value"] <= 0.5
    assert found["parameters"]["pressure.ratio"] == f"{found['after']['value']:g}%"
    script.write_text("print('done')\n")
    assert "the last line" in tune(
        "run",
        "--study",
        str(tmp_path / "t"),
        "--knob",
        "pressure",
        "--designer",
        "random",
        "--command",
        sys.executable,
        str(script),
        code=1,
    )


def test_the_best_pair_holds_the_limit() -> None:
    made = [
        choose.Pair(0.9, 0, coverage, coverage / 5, coverage, rate)
        for coverage, rate in ((0.3, 0.003), (0.2, 0.002), (0.2, 0.001), (0.1, None))
    ]
    bold, cautious = (choose.Objective(limit, margin=0) for limit in (0.002, 0.0001))
    assert choose.best(made, bold) == made[2]
    assert choose.best(made, cautious) is None
    assert choose.nearest(made, cautious) == made[2]
    assert choose.front(made) == [made[0], made[2]]
    nothing = choose.Pair(1, 0, 0, 0, 0, None)
    assert cautious.holds(nothing) and choose.best([*made, nothing], cautious) == nothing


def test_a_pair_whose_tail_is_too_high_does_not_hold() -> None:
    quiet, bursts, unbounded = (choose.Pair(0.9, 0, 0.2, 0.04, 1.0, 0.0019, tail) for tail in (0.006, 0.0061, None))
    objective = choose.Objective(0.002, margin=0)
    assert [objective.holds(pair) for pair in (quiet, bursts, unbounded)] == [True, False, False]
    assert objective.excess(bursts) == pytest.approx(0.0061 / 0.006 - 1)
    assert dataclasses.replace(objective, tail=float("inf")).holds(bursts)
    with pytest.raises(ValueError, match=r"tail=0\.5"):
        choose.Objective(0.002, tail=0.5)


def test_a_tail_that_breaks_on_the_held_out_week_leaves_no_bundle(
    tune: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(tmp_path / "s")
    monkeypatch.setenv("FAKE_TAIL", "2.9")
    tune("run", "--study", where, *RUN, "--trials", "3")
    # The held-out week is evaluated only now, with a heavier tail.
    monkeypatch.setenv("FAKE_TAIL", "9")
    lines = (tmp_path / "s" / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "s" / "evaluations.jsonl").write_text("".join(line for line in lines if '"holdout"' not in line))
    tune("run", "--study", where, "--format", "json", "--trials", "3", code=4)
    refused = tune("bundle", "--study", where, "--to", str(tmp_path / "b.toml"), "--version", "1", code=1)
    assert "99.5 % of its entries" in refused and not (tmp_path / "b.toml").exists()


def test_parameters_must_hold_in_the_week_of_stress(tune: Callable[..., Any], tmp_path: Path) -> None:
    calm, stressed = str(tmp_path / "calm"), str(tmp_path / "stressed")
    words = ("--generate", "5", "--designer", "random", "--trials", "6", "--format", "json")
    without = tune("run", "--study", calm, *words)
    found = tune("run", "--study", stressed, *words, "--stress-bursts", "1.6")
    assert study.read(tmp_path / "stressed").spec.stress is not None
    assert found["after"]["coverage"] < without["after"]["coverage"], "the week of stress limits it"
    assert "cannot change" in tune("run", "--study", calm, "--stress-bursts", "2", code=1)
    assert "--stress-trace" in tune("run", "--study", str(tmp_path / "x"), "--trace", "x", "--stress-bursts", "2", code=1)
    other = ("run", "--study", str(tmp_path / "y"), "--knob", "pressure", "--external")
    assert "require policy cold_age" in tune(*other, "--stress-bursts", "2", code=1)


def test_the_worst_days_of_the_traces_are_a_stress(tune: Callable[..., Any], tmp_path: Path) -> None:
    traces = ("--trace", "week")
    words = ("--designer", "random", "--trials", "2", "--format", "json")
    tune("run", "--study", str(tmp_path / "s"), *traces, *words, "--stress-worst-days", "2")
    stress = study.read(tmp_path / "s").spec.stress
    assert stress is not None
    drawn = ["--trace", "week", "--resample", "2000", "--days", "7", "--seed", "1", "--worst-days", "2"]
    assert stress.arguments == drawn
    assert str(stress) == "2000 jobs resampled from the 2 worst days of week"
    refused = tune("run", "--study", str(tmp_path / "x"), "--generate", "5", "--stress-worst-days", "2", code=1)
    assert "resamples the traces of --trace" in refused
    assert "give at least 1" in tune("run", "--study", str(tmp_path / "x"), *traces, "--stress-worst-days", "0", code=1)


def test_the_rates_of_a_pair_are_those_of_the_worse_week() -> None:
    calm, busy = choose.Pair(0.9, 0, 0.2, 0.04, 1.0, 0.001, 0.002), choose.Pair(0.9, 0, 0.3, 0.05, 2.0, 0.003, 0.001)
    assert choose.worst([calm], [busy]) == (dataclasses.replace(calm, rate=0.003, tail=0.002),)
    unbounded = dataclasses.replace(busy, rate=None)
    assert choose.worst([calm], [unbounded])[0].rate is None
    nothing = dataclasses.replace(busy, stored_bytes=0.0, rate=None, tail=None)
    assert choose.worst([calm], [nothing]) == (calm,)
    assert choose.worst([calm], [dataclasses.replace(busy, percentile=0.95)]) == ()
