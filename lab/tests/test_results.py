"""Bounds, and the worst case over several kernels."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from thermolab.results import Bounds, merged, run_result, write


def run(kernel: str, *reasons: str, **figures: Any) -> dict[str, Any]:
    return run_result(kernel, figures, Bounds(list(reasons)), 1.5)


@pytest.mark.parametrize(
    ("kind", "value", "bound", "reasons"),
    [
        ("at_most", 2.0, 2.0, 0),
        ("at_most", 2.5, 2.0, 1),
        ("at_most", math.nan, 2.0, 1),
        ("at_least", 2.0, 2.0, 0),
        ("at_least", 1.5, 2.0, 1),
        ("at_least", math.nan, 2.0, 1),
    ],
)
def test_a_failed_bound_reports_value_and_bound(kind: str, value: float, bound: float, reasons: int) -> None:
    bounds = Bounds()
    getattr(bounds, kind)("figure", value, bound)
    assert len(bounds.reasons) == reasons
    for reason in bounds.reasons:
        assert "figure" in reason
        assert f"{value:g}" in reason
        assert f"{bound:g}" in reason


def test_bounds_that_hold_pass() -> None:
    bounds = Bounds()
    bounds.holds("condition", True, "not reported")
    assert run_result("6.12", {}, bounds, 1.0)["passed"] is True
    bounds.holds("condition", False, "it did not hold")
    assert run_result("6.12", {}, bounds, 1.0) == {
        "kernel": "6.12",
        "passed": False,
        "reasons": ["condition: it did not hold"],
        "elapsed_seconds": 1.0,
    }


@pytest.mark.parametrize(
    ("first", "second", "better", "worst"),
    [
        ({"x": 1}, {"x": 3}, {}, {"x": 3}),
        ({"x": 1}, {"x": 3}, {"x": "more"}, {"x": 1}),
        ({"x": 1, "y": 2}, {"x": 3}, {}, {"x": 3}),
        ({"d": {"x": 1}}, {"d": {"x": 3}}, {"d.x": "more"}, {"d": {"x": 1}}),
        ({"d": {"x": 1}}, {"d": {"x": 3}}, {"x": "more"}, {"d": {"x": 3}}),
        ({"held": True}, {"held": False}, {}, {"held": False}),
        ({"who": "redis"}, {"who": "redis"}, {}, {"who": "redis"}),
        ({"who": "redis"}, {"who": "memcached"}, {}, {}),
        ({"list": [1]}, {"list": [1]}, {}, {}),
        ({"x": 1}, {"x": None}, {}, {}),
    ],
)
def test_the_worst_case_of_two_kernels(
    first: dict[str, Any], second: dict[str, Any], better: dict[str, str], worst: dict[str, Any]
) -> None:
    whole = merged([run("a", **first), run("b", "slow", **second)], better)
    frame = {
        "kernel": "a, b",
        "passed": False,
        "reasons": ["b: slow"],
        "elapsed_seconds": 3.0,
        "runs": [run("a", **first), run("b", "slow", **second)],
    }
    assert whole == {**worst, **frame}


def test_a_result_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(path, {"passed": True})
    write(path, {"passed": False})
    assert json.loads(path.read_text()) == {"passed": False}
    assert list(tmp_path.iterdir()) == [path]
