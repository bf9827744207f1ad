"""Pond figure 21 with intervals: results of several seeds become means with intervals, by latency and predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thermocline.report import savings


def row(memory: str, added_ns: int, saved: float, mispredicted: int) -> dict[str, Any]:
    tally: dict[str, float] = {"started": 200, "mispredicted": mispredicted, "moved": 20, "fell_back": 10, "rejected": 0, "spanning": 2}
    tally |= {"pool_gib_hours": 30.0, "memory_gib_hours": 100.0}
    provisioned = {"local_only_bytes": 1000, "bytes": 1000 - 10 * saved, "rented_at_peak_bytes": 800, "tally": tally}
    return {"memory": memory, "added_ns": added_ns, "saved_ratio": -0.04, "provisioned": provisioned}


def result(saved: float) -> dict[str, Any]:
    rows = [
        row(memory, added, saved + at + added / 64, 2 + at)
        for at, memory in enumerate(("pond", "static=15%", "oracle"))
        for added in (64, 140)
    ]
    return {"results": rows, "vms": 210, "servers": 9, "site": {"service_level": {"rule": "replayed", "share": 1000}}}


def test_an_interval_is_students() -> None:
    mean, low, high = savings.interval([20.0, 22.0, 24.0])
    assert (mean, low, high) == pytest.approx((22.0, 22.0 - 4.303 * 2 / 3**0.5, 22.0 + 4.303 * 2 / 3**0.5))
    mean, low, high = savings.interval([float(value) for value in range(10)])
    assert (mean, high - mean) == pytest.approx((4.5, 2.262 * 3.02765 / 10**0.5), rel=1e-4)
    for values in ([1.0], [1.0] * 21):
        with pytest.raises(ValueError, match="change the number of seeds"):
            savings.interval(values)


def test_figure_21_has_every_latency_and_predictor() -> None:
    data = savings.figure([result(5.0), result(7.0), result(9.0)])
    pond, static = data["182%"]["pond"], data["222%"]["static"]
    assert pond["saved_percent"] == pytest.approx(8.0)
    assert (pond["saved_percent_by_seed"], pond["published_percent"]) == (pytest.approx([6.0, 8.0, 10.0]), 9.0)
    assert pond["interval_low"] < 6.0 and pond["interval_high"] > 10.0
    assert (pond["too_slow_ratio"], pond["static_15_mispredicted_ratio"], pond["possible_percent"]) == pytest.approx((0.01, 0.015, 20.0))
    assert static["saved_percent"] == pytest.approx(7.0 + 1 + 140 / 64)
    assert (pond["pool_ratio"], pond["moved_ratio"], pond["sum_of_peaks_saved_percent"]) == pytest.approx((0.3, 0.1, -4.0))
    assert data["182%"]["oracle"]["published_percent"] is None
    table = savings.table(data)
    assert len(table.splitlines()) == 7 and "8.0" in table, table


def test_the_report_has_figure_and_sensitivity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def simulate(_: savings.Traces, case: savings.Case, seed: int, memory: tuple[str, ...], __: tuple[str, ...]) -> dict[str, Any]:
        asked.append((case.name, seed))
        of = result(5.0 + seed)
        if len(memory) == 2:
            of["results"] = [row("static=15%", 64, 2.0, 3), row("pond", 64, 4.0 + seed, 2)]
        return of | {"command": ["pool", "simulate"]}

    monkeypatch.setattr(savings.Traces, "simulate", simulate)
    out = tmp_path / "pond.json"
    out.write_text(json.dumps({"figure_17": 1}), encoding="utf-8")
    assert savings.main(["--seeds", "4", "--sensitivity-seeds", "2", "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["figure_17"] == 1, "other figures are kept"
    assert (report["figure21"]["seeds"], report["figure21"]["service_level"]["rule"]) == (4, "replayed")
    assert [row["case"]["name"] for row in report["figure21_sensitivity"]] == [case.name for case in savings.SENSITIVITY]
    assert report["figure21_sensitivity"][1]["pond"]["saved_percent"] == pytest.approx(5.5)
    assert asked[:4] == [("as figure 21", seed) for seed in range(1, 5)]
    with pytest.raises(SystemExit):
        savings.main(["--seeds", "1"])


def test_a_trace_is_generated_once_with_clusters_of_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run(_: str, *arguments: str) -> bytes:
        ran.append(arguments)
        if arguments[1] == "generate":
            Path(arguments[arguments.index("--out") + 1]).touch()
        return b"{}"

    monkeypatch.setattr(savings, "run", run)
    monkeypatch.setattr("thermocline.cluster.simulation.run", run)
    traces = savings.Traces("thermocline", tmp_path / "traces")
    case = savings.Case("more", days=30, clusters=6, rule="scheduled", more=("--socket-cores", "12"))
    for _ in range(2):
        traces.simulate(case, 3, ("pond",), ("64ns",))
    made = [arguments for arguments in ran if arguments[1] == "generate"]
    assert len(made) == 1 and made[0][made[0].index("--vms") + 1] == str(2 * 30 * savings.VMS_PER_DAY)
    simulated = [arguments for arguments in ran if arguments[1] == "simulate"]
    assert len(simulated) == 2
    assert {"--provision=scheduled", "pool_balance", "--socket-cores", "3"} <= set(simulated[0])
    traces.simulate(savings.Case("peaks", rule="", sockets=8), 3, ("pond",), ("by_pool_size",))
    assert not [argument for argument in ran[-1] if argument.startswith("--provision")]
    assert ran[-1][ran[-1].index("--pool-sizes") + 1] == "8"
