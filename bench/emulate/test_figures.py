"""Reports written by hand, whose figures are known."""

from typing import Any

from .figures import of_run, of_runs, table
from .workloads import Second

_MIB = 1 << 20


def _report(turns: list[tuple[int, bool]]) -> dict[str, Any]:
    period = {
        "known_bytes": 100 * _MIB,
        "slow_bytes": 60 * _MIB,
        "promoted_bytes": 5 * _MIB,
        "rate_per_second": 15_000.0,
    }
    return {
        "policy": {"budget_per_second": 30_000.0, "periods": [{**period, "slow_bytes": 70 * _MIB}, period]},
        "emulated_seconds": 12.0,
        "phases": [{"unix_ms": at * 1000, "slow": slow} for at, slow in turns],
        "slow_accesses_per_second": 20_000.0,
        "latency_ns": 2_000,
        "slowdown_ratio": 0.01,
        "slowdown_of_cpu_ratio": 0.02,
        "cpu_seconds": 6.0,
        "faults": 12_000,
        "floor_ns": 8_000,
    }


def test_the_rate_covers_whole_seconds_within_phases() -> None:
    # Counting until 110, then phases of ten seconds: fast, slow, fast, and slow to the end.
    report = _report([(100, True), (110, False), (120, True), (130, False), (140, True)])
    rate = {True: 80.0, False: 100.0}
    seconds = []
    for end in range(101, 150):
        begins = end - 1
        slow = begins < 110 or 120 <= begins < 130 or begins >= 140
        # Seconds in which pages move, and the counting period, belong to neither kind.
        neither = begins < 110 or begins in (110, 120, 130, 140)
        seconds.append(Second(float(end), 7.0 if neither else rate[slow]))
    run = of_run(report, seconds)
    assert (run["operations_per_second_fast"], run["operations_per_second_slow"]) == (100.0, 80.0)
    assert run["slowdown_by_rate_ratio"] == 0.25
    assert (run["share_slow_ratio"], run["share_slow_at_first_ratio"]) == (0.6, 0.7)


def test_too_few_phases_give_no_rate() -> None:
    run = of_run(_report([(100, True)]), [Second(float(at), 50.0) for at in range(101, 110)])
    assert run["slowdown_by_rate_ratio"] is None
    assert run["slowdown_settled_ratio"] == 0.03
    assert (run["slowdown_counted_ratio"], run["busy_ratio"], run["home_bytes"]) == (0.02, 0.5, 10 * _MIB)
    empty: dict[str, Any] = {**_report([]), "policy": {"budget_per_second": 1.0, "periods": []}}
    assert of_run(empty, []) == {"share_slow_ratio": None}


def test_medians_and_ranges_ignore_missing_values() -> None:
    runs = [{"share_slow_ratio": share, "faults": 3} for share in (0.2, None, 0.9, 0.3)]
    row = of_runs(runs)
    assert row["share_slow_ratio"] == 0.3
    assert (row["share_slow_ratio_least"], row["share_slow_ratio_most"], row["runs"], row["faults"]) == (0.2, 0.9, 4, 3)
    shown = table([{"program": "redis", "latency": "1us", "target_ratio": 0.03, **row}])
    assert "30.0%" in shown
