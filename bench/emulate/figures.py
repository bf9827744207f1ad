"""Figures of runs on emulated slow memory."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from .workloads import Second


def of_run(report: dict[str, Any], seconds: Sequence[Second]) -> dict[str, Any]:
    """Returns the figures of one run, from the emulator's report and the load's output.

    Slowdowns are relative to the program's own CPU time. `slowdown_counted_ratio` covers all time since the first
    placement, `slowdown_settled_ratio` the last whole period, after memory that was too hot has been promoted.

    `slowdown_by_rate_ratio` compares the operations per second of phases without and with slow memory within a run. It
    is `None` if there were too few phases.
    """
    periods = report["policy"]["periods"]
    if not periods or report["emulated_seconds"] <= 0:
        return {"share_slow_ratio": None}
    last = periods[-1]
    fast, slow = (_rate(report["phases"], seconds, slow) for slow in (False, True))
    return {
        "memory_bytes": last["known_bytes"],
        "share_slow_ratio": last["slow_bytes"] / max(last["known_bytes"], 1),
        "share_slow_at_first_ratio": periods[0]["slow_bytes"] / max(periods[0]["known_bytes"], 1),
        "budget_per_second": report["policy"]["budget_per_second"],
        "slow_accesses_per_second": report["slow_accesses_per_second"],
        "slowdown_counted_ratio": report["slowdown_of_cpu_ratio"],
        "slowdown_settled_ratio": last["rate_per_second"] * report["latency_ns"] / 1e9 if len(periods) > 1 else None,
        "slowdown_of_time_ratio": report["slowdown_ratio"],
        "busy_ratio": report["cpu_seconds"] / report["emulated_seconds"],
        "slowdown_by_rate_ratio": fast / slow - 1 if fast and slow else None,
        "operations_per_second_fast": fast,
        "operations_per_second_slow": slow,
        "home_bytes": sum(period["promoted_bytes"] for period in periods),
        "faults": report["faults"],
        "floor_ns": report["floor_ns"],
    }


def _rate(turns: Sequence[dict[str, Any]], seconds: Sequence[Second], slow: bool) -> float | None:
    """Returns the median of the seconds within phases of one kind, except for the second in which pages move."""
    ends = [turn["unix_ms"] / 1000 for turn in turns[1:]]
    # The end of the last phase is unknown, and the time before the first decision is one long phase.
    spans = [
        (turn["unix_ms"] / 1000 + 1, end)
        for turn, end in zip(turns[1:], ends[1:], strict=False)
        if turn["slow"] is slow
    ]
    rates = [
        second.operations
        for second in seconds
        if any(begin <= second.ended_at - 1 and second.ended_at <= end for begin, end in spans)
    ]
    return median(rates) if len(rates) >= 2 else None


def of_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of some runs, and the ranges of ratios."""
    row: dict[str, Any] = {"runs": len(runs)}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if run.get(name) is not None]
        row[name] = median(values) if values else None
        if name.endswith("_ratio") and values:
            row[f"{name}_least"], row[f"{name}_most"] = min(values), max(values)
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Formats the rows as a text table."""
    shares = f"{'slow':>7} {'counted':>8} {'settled':>8} {'by rate':>24}"
    lines = [f"{'program':<10} {'target':>7} {'latency':>8} {'memory':>9} {shares}"]
    for row in rows:
        by_rate = "-"
        if row.get("slowdown_by_rate_ratio") is not None:
            names = ("slowdown_by_rate_ratio", "slowdown_by_rate_ratio_least", "slowdown_by_rate_ratio_most")
            middle, least, most = (f"{row[name]:.1%}" for name in names)
            by_rate = f"{middle} ({least} to {most})"
        memory = f"{(row.get('memory_bytes') or 0) / 2**20:.0f} MiB"
        counted = _percent(row.get("slowdown_counted_ratio"))
        settled = _percent(row.get("slowdown_settled_ratio"))
        lines.append(
            f"{row['program']:<10} {row['target_ratio']:>7.0%} {row['latency']:>8} {memory:>9} "
            f"{_percent(row.get('share_slow_ratio')):>7} {counted:>8} {settled:>8} {by_rate:>24}"
        )
    return "\n".join(lines)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
