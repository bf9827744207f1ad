"""Pond figures 3 and 21: results of the simulator become curves, and other figures in the report are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thermocline.report import pooling


def row(memory: str, added_ns: int, sockets: int, saved: float, *, confirmed: bool = False) -> dict[str, Any]:
    again = {"started": 200, "starts_above_1_gib_per_s": 4, "starts_above_10_gib_per_s": 1, "release_gib_per_s_max": 12.0}
    return {
        "memory": memory,
        "added_ns": added_ns,
        "pool_sockets": sockets,
        "prediction_quality": {"vms": 190} if memory == "models" else None,
        "pool_ratio": 0.4,
        "saved_ratio": saved,
        "online_saved_ratio": saved,
        "uniform_saved_ratio": saved * 2,
        "mispredicted_ratio": 0.02,
        "saved_ratio_by_cluster": [saved / 2, saved, saved * 2],
        "measured": {"started": 200, "moved": 0, "fell_back": 0, "mitigated": 2, "left_slow": 2},
        "confirmed": again | {"moved": 1, "fell_back": 2} if confirmed else None,
    }


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    about = {"command": ["pool"], "elapsed_seconds": 1.0, "events": 9, "origin": "a test", "generated": True, "begins": None}
    return about | {"vms": 200, "assumed": 0, "rejected": 0, "clusters": 3, "servers": 12, "spanning_ratio": 0.0, "results": list(rows)}


def test_a_static_share_is_one_curve_and_pond_one_for_each_latency() -> None:
    rows = [row(memory, added, size, 0.1) for size in (16, 2) for memory in ("static=15%", "pond") for added in (64, 140)]
    curves = pooling.curves(result(*rows))
    assert list(curves) == ["static=15%", "pond, 64 ns", "pond, 140 ns"]
    assert [[point["pool_sockets"] for point in points] for points in curves.values()] == [[2, 16]] * 3


def test_a_figure_has_curves_and_published_values() -> None:
    figure = pooling.figure(result(row("pond", 64, 16, 0.08, confirmed=True)), pooling.PUBLISHED["figure_21"])
    (point,) = figure["curves"]["pond, 64 ns"]
    assert (point["saved_ratio"], point["least_cluster"], point["most_cluster"]) == (0.08, 0.04, 0.16)
    assert (point["released_faster_than_1_gib_per_s_ratio"], point["moved_when_bounded"]) == (0.02, 3)
    table = pooling.table(figure)
    assert "8.0%" in table and "9.0%" in table, table


def test_the_report_keeps_other_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([result(row("static=50%", 64, 32, 0.11)), result(row("pond", 64, 16, 0.08))])
    asked: list[list[str]] = []

    def simulate(program: str, trace: Path, seed: int, question: pooling.Question, *_: object) -> dict[str, Any]:
        asked.append([program, str(trace), str(seed), *question.more])
        return next(answers)

    monkeypatch.setattr(pooling, "simulate", simulate)
    out = tmp_path / "pond.json"
    out.write_text('{"figure_17": 1}')
    assert pooling.main(["--trace", "t.parquet", "--out", str(out), "--program", "p", "--", "--clusters", "3"]) == 0
    report = json.loads(out.read_text())
    assert sorted(report) == ["figure_17", "figure_21", "figure_3"]
    assert all(options[:3] == ["p", "t.parquet", "1"] and options[-2:] == ["--clusters", "3"] for options in asked)
    assert "--confirm" in asked[1] and "--confirm" not in asked[0]


def test_trained_models_are_simulated_in_addition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    asked: list[pooling.Question] = []

    def simulate(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments[3])
        return result(row("pond", 64, 16, 0.08), row("models", 64, 16, 0.05))

    monkeypatch.setattr(pooling, "simulate", simulate)
    out = tmp_path / "made" / "pond.json"
    assert pooling.main(["--trace", "t.parquet", "--out", str(out), "--models", "m", "--counters", "c.jsonl", "--plots"]) == 0
    assert [question.memory[-1] for question in asked] == ["static=50%", "pond", "models"]
    assert asked[2].more[-4:] == ("--models", "m", "--counters", "c.jsonl")
    assert "--models" not in asked[1].more
    figure = json.loads(out.read_text())["figure_21_models"]
    assert list(figure["curves"]) == ["pond, 64 ns", "models, 64 ns"]
    assert figure["prediction_quality"] == {"models, 64 ns": {"vms": 190}}
    drawn = sorted(path.name for path in (tmp_path / "made" / "figures").iterdir())
    assert drawn == sorted(f"pond{name}.{kind}" for name in ("3", "21", "21-models") for kind in ("png", "svg"))


def test_a_failure_of_the_simulator_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no such trace >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(SystemExit, match="no such trace"):
        pooling.simulate(str(program), tmp_path / "t.parquet", 1, pooling.FIGURE_3)
