"""Tests of the reports on promises and on shifts. Requires the extra `learn` (`make test-learn`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("numpy")

from thermocline.learn.curves import Point
from thermocline.report import promises, shifts


def test_a_promise_is_solved_and_verified_on_other_workloads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "PDMS", (0.05,))
    monkeypatch.setattr(promises, "TPS", (0.9, 0.98))
    out = tmp_path / "pond.json"
    out.write_text('{"figure_21": {"kept": true}}', encoding="utf-8")
    sizes = ["--vms", "8000", "--days", "20", "--seeds", "2", "--many", "200", "--many-seeds", "1", "--others", "600", "--folds", "10"]
    assert promises.main(["--out", str(out), *sizes]) == 0
    kept = json.loads(out.read_text(encoding="utf-8"))
    assert kept["figure_21"] == {"kept": True}
    report = kept["promises"]
    assert set(report["at_tp"]) == {"158", "200"}
    for by_bound in report["at_tp"].values():
        assert set(by_bound) == set(promises.BOUNDS)
        for row in by_bound.values():
            assert row["solved_false_positive_ratio"] + row["solved_overpredicted_ratio"] <= 0.02
            assert row["wrong"] == pytest.approx(row["held_out_false_positive_ratio"] + row["held_out_overpredicted_ratio"])
        # A margin never marks more workloads.
        marked = [by_bound[name]["held_out_insensitive_ratio"] for name in ("as_validated", "with_one_more")]
        assert marked[0] >= marked[1]
    loose, strict = report["sweep"]
    assert (loose["tp"], strict["tp"]) == (0.9, 0.98)
    assert loose["solved_insensitive_ratio"] + loose["solved_untouched_ratio"] >= (
        strict["solved_insensitive_ratio"] + strict["solved_untouched_ratio"]
    )
    printed = capsys.readouterr().out
    assert "158 workloads: DRAM on the pool" in printed
    assert (tmp_path / "figures" / "pond-promises.svg").exists()


def test_the_days_after_a_shift_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pond.json"
    words = ["--out", str(out), "--vms", "12000", "--days", "26", "--customers", "60", "--shift-day", "20"]
    assert shifts.main(words) == 0
    report = json.loads(out.read_text(encoding="utf-8"))["figure_20_shifts"]
    assert report["shift_days"] == [20]
    assert [one["day"] for one in report["days"]] == list(range(17, 26))
    assert report["shifts"][0]["untouched_before_ratio"] > 0.05
    assert "shift on day 20" in capsys.readouterr().out
    assert (tmp_path / "figures" / "pond20-shifts.svg").exists()


def test_recovery_is_three_days_within_the_target() -> None:
    wrong = {10: 0.02, 11: 0.2, 12: 0.03, 13: 0.1, 14: 0.03, 15: 0.03, 16: 0.03, 17: 0.03}
    daily = [(day, Point(rate, 0.2)) for day, rate in wrong.items()]
    found: dict[str, Any] = shifts._figures(daily, dict.fromkeys(wrong, 1000), (11,))
    (shift,) = found["shifts"]
    assert (shift["days_over"], shift["recovered_days"], shift["worst_overpredicted_ratio"]) == (2, 3, 0.2)
    assert (found["other_days"], found["other_days_over"]) == (1, 0)
    assert shifts._shift(shifts._figures(daily[:5], dict.fromkeys(wrong, 1000), (11,))["days"], 11)["recovered_days"] is None
    # Two standard errors of a thousand VMs at 4 % are 1.2 points.
    assert not shifts.over(0.052, 1000) and shifts.over(0.053, 1000)
