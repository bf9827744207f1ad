"""Finding and running scenarios, with guests and builds replaced."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thermolab import binaries, kernels, runner
from thermolab.__main__ import main
from thermolab.errors import LabError
from thermolab.lab import Lab


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(runner, "results_directory", lambda: tmp_path)
    monkeypatch.setattr(binaries, "build", dict)
    monkeypatch.setattr(kernels, "kernel", lambda name: kernels.Kernel(name, tmp_path, name, None))
    return tmp_path


def check(
    monkeypatch: pytest.MonkeyPatch, results: Path, run: Callable[[Lab], dict[str, Any]], **expected: Any
) -> None:
    """Runs the scenario `run` on two kernels; checks that the result file contains `expected`."""
    scenario = runner.Scenario("made_up", "", ("6.12", "7.2"), frozenset({"saved_bytes"}), (), run)
    monkeypatch.setattr(runner, "load", lambda _name: scenario)
    returned = runner.run("made_up", ())
    written = json.loads((results / "made_up" / "result.json").read_text())
    assert written == returned
    assert len(written["runs"]) == 2
    assert expected.items() <= written.items()


def test_figures_of_both_kernels(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    def run(lab: Lab) -> dict[str, Any]:
        size = len(lab.kernel.name)
        lab.at_most("stall_ratio", size, 4)
        return {"stall_ratio": size, "saved_bytes": size}

    check(monkeypatch, results, run, scenario="made_up", kernel="6.12, 7.2", passed=True, stall_ratio=4, saved_bytes=3)


def test_a_failed_bound(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    def run(lab: Lab) -> dict[str, Any]:
        lab.at_most("stall_ratio", len(lab.kernel.name), 3)
        return {"stall_ratio": len(lab.kernel.name)}

    check(monkeypatch, results, run, passed=False, reasons=["6.12: stall_ratio = 4 exceeds its bound 3"])


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LabError("no disk"), "7.2: no disk"), (KeyError("memory"), "7.2: KeyError: 'memory'")],
)
def test_an_error_on_one_kernel_does_not_affect_the_other(
    monkeypatch: pytest.MonkeyPatch, results: Path, error: Exception, reason: str
) -> None:
    def run(lab: Lab) -> dict[str, Any]:
        if lab.kernel.name == "7.2":
            raise error
        return {"figure": 1}

    check(monkeypatch, results, run, passed=False, reasons=[reason])


def test_every_scenario_has_a_summary_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name in runner.names():
        scenario = runner.load(name)
        assert scenario.summary.endswith("."), name
        assert set(scenario.kernels) <= {*kernels.NAMES, *kernels.VARIANTS}, name
        assert scenario.summary in listed


def test_unknown_scenarios_are_refused() -> None:
    with pytest.raises(LabError, match=r"no scenario.*boot"):
        runner.load("no_such")
