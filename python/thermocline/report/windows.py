"""Memory promised for a day, and for each part of a day: what time patterns add to untouched memory, on real VMs.

    make reproduce-windows BITBRAINS=bitbrains_rnd_2013-07.parquet

Coach (Reidys and coauthors, ASPLOS 2025) predicts a VM's memory for each of six windows of a day, so that VMs whose peaks are at
different times share memory. Here both promises are made for the same VMs of the Bitbrains trace, from the past week of each:
one for the whole day, the most that the VM used in that week; and one for each window, the most that it used in that window.
Each is multiplied by the factor with which, on the days before the tested ones, at most the target share of days used more than
was promised. That is judged for each VM, or for servers of several VMs that share what is promised to all of them. Promised memory
stays on the server. A promise for the day counts as the sum over VMs; promises for windows as the highest sum of any window,
because slices move between the server and the pool from window to window.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .into import keep

WINDOWS = 6
"""Windows of a day, as in Coach."""

WEEK = 7
DAY_SECONDS = 86_400
TESTED_FROM = 21
"""The first tested day: factors are chosen on the days before it that have a past week."""

FACTORS = np.arange(0.5, 4.0, 0.02)

SERVERS = (1, 20)
"""VMs that share what is promised to all of them, drawn at random each day; 1: every VM has its own."""

COLUMNS = ("vm", "ts", "mem_prov_mib", "mem_active_mib")


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """Memory of VMs. Arrays with a row for each VM and a column for each day, and `windows` in addition one for each window."""

    provisioned: Any
    """MiB, 0 on a day on which the VM was not there or was resized."""
    windows: Any
    """The most that was active, MiB."""


def read(path: Path) -> Used:
    """Reads the trace.

    Raises:
        SystemExit: the file is not this trace.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, columns=list(COLUMNS))
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise SystemExit(f"{path}: expected a Parquet file with the columns {', '.join(COLUMNS)}: {error}") from error
    vm, second, provisioned, active = (np.asarray(table[name].to_numpy()) for name in COLUMNS)
    return used(vm, second - second.min(), provisioned, active)


def used(vm: Any, second: Any, provisioned: Any, active: Any) -> Used:
    """Converts samples: seconds from the beginning of the first day, and MiB."""
    names, row = np.unique(vm, return_inverse=True)
    day, window = second // DAY_SECONDS, second % DAY_SECONDS // (DAY_SECONDS // WINDOWS)
    days = int(day.max()) + 1
    most, least = np.zeros((len(names), days)), np.full((len(names), days), np.inf)
    np.maximum.at(most, (row, day), provisioned)
    np.minimum.at(least, (row, day), provisioned)
    windows = np.full((len(names), days, WINDOWS), -1.0)
    np.maximum.at(windows, (row, day, window), active)
    whole = (most == least) & (most > 0) & (windows >= 0).all(axis=2)
    return Used(np.where(whole, most, 0.0), np.maximum(windows, 0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Days:
    """Days of VMs or of servers, with the past week. The arrays have a row for each; the first two a column for each window."""

    actual: Any
    past: Any
    """The most that was active in the same window of the past week, in MiB; of a server, the sum over its VMs."""
    past_day: Any
    """The most that was active at any time of the past week; of a server, the sum over its VMs."""
    provisioned: Any
    day: Any


def with_past(of: Used) -> Days:
    """Returns the days of VMs that were there in the whole week before, with the same memory."""
    parts = []
    for day in range(WEEK, of.provisioned.shape[1]):
        span = of.provisioned[:, day - WEEK : day + 1]
        kept = (span[:, -1] > 0) & (span == span[:, -1:]).all(axis=1)
        past = of.windows[kept, day - WEEK : day].max(axis=1)
        parts.append((of.windows[kept, day], past, past.max(axis=1), span[kept, -1], np.full(int(kept.sum()), day)))
    return Days(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def on_servers(of: Days, vms: int) -> Days:
    """Returns the days of servers with so many VMs each. VMs of a day that do not fill a server are left out."""
    random, parts = np.random.default_rng(1), []
    for day in np.unique(of.day):
        rows = random.permutation(np.flatnonzero(of.day == day))
        servers = rows[: len(rows) // vms * vms].reshape(-1, vms)
        sums = (column[servers].sum(axis=1) for column in (of.actual, of.past, of.past_day, of.provisioned))
        parts.append((*sums, np.full(len(servers), day)))
    return Days(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def promises(of: Days, by_window: bool, factor: float) -> Any:
    """Returns the memory promised for each row in each window."""
    base = of.past if by_window else np.broadcast_to(of.past_day[:, None], of.past.shape)
    return np.minimum(base * factor, of.provisioned[:, None])


def over(of: Days, promised: Any, chosen: Any) -> float:
    """Returns the share of days in any window of which more was used than promised."""
    return float((of.actual > promised + 0.5).any(axis=1)[chosen].mean())


def policy(of: Days, by_window: bool, target: float) -> dict[str, float]:
    """Chooses the factor of a promise on the earlier days, and returns what it gives on the tested ones."""
    earlier, tested = of.day < TESTED_FROM, of.day >= TESTED_FROM
    held = [factor for factor in FACTORS.tolist() if over(of, promises(of, by_window, factor), earlier) <= target]
    factor = float(held[0] if held else FACTORS[-1])
    promised = promises(of, by_window, factor)
    local, provisioned, moved = 0.0, 0.0, 0.0
    for day in np.unique(of.day[tested]):
        sums = promised[of.day == day].sum(axis=0)
        local += float(sums.max())
        moved += float(np.abs(np.diff(promised[of.day == day], axis=1)).sum())
        provisioned += float(of.provisioned[of.day == day].sum())
    return {
        "factor": factor,
        "over_ratio": over(of, promised, tested),
        "pool_ratio": 1 - local / provisioned,
        "moved_per_day_ratio": moved / provisioned,
    }


def figures(of: Days, targets: Sequence[float]) -> dict[str, Any]:
    """Returns both policies at each target, and what is possible with the actual use of each window."""
    tested = of.day >= TESTED_FROM
    days = [of.day == day for day in np.unique(of.day[tested])]
    provisioned = sum(float(of.provisioned[day].sum()) for day in days)
    peaks = sum(float(of.actual[day].max(axis=1).sum()) for day in days)
    together = sum(float(of.actual[day].sum(axis=0).max()) for day in days)
    shared = {vms: on_servers(of, vms) for vms in SERVERS}
    # A day with fewer VMs than a server has no server.
    full = {vms: rows for vms, rows in shared.items() if len(np.unique(rows.day)) == len(np.unique(of.day))}
    return {
        "vm_days": int(tested.sum()),
        "days": len(days),
        "possible": {"day": 1 - peaks / provisioned, "windows": 1 - together / provisioned},
        "policies": [
            {"vms_per_server": vms, "target": target, "promise": name, **policy(rows, name == "windows", target)}
            for vms, rows in full.items()
            for target in targets
            for name in ("day", "windows")
        ],
    }


def main(arguments: Sequence[str]) -> int:
    """Computes, writes and prints the comparison."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.windows", description="Memory promised by day and by window.")
    made.add_argument("--bitbrains", type=Path, required=True, metavar="FILE", help="the trace as Parquet")
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    options = made.parse_args(arguments)
    data = figures(with_past(read(options.bitbrains)), (0.01, 0.02, 0.04, 0.1))
    keep(options.out, {"time_windows": data})
    possible = data["possible"]
    print(f"{data['vm_days']} days of VMs; possible for the pool: {possible['day']:.1%} by day, {possible['windows']:.1%} by window")
    print("VMs share  target  promise  factor   over   on the pool  moved per day")
    for row in data["policies"]:
        print(
            f"{row['vms_per_server']:>9} {row['target']:>7.0%}  {row['promise']:<7} {row['factor']:>7.2f} {row['over_ratio']:>6.1%} "
            f"{row['pool_ratio']:>13.1%} {row['moved_per_day_ratio']:>14.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
