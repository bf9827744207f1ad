"""`target/bench/arena.json`: the curves of all contenders, and who is ahead at which loss."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from . import curves
from .contenders import Contender
from .curves import LEVELS
from .losses import DISK_US, ZSWAP_US
from .measure import Run

Result = dict[str, Any]

AT_ONE = 0.01
_BEHIND = 0.95


def compare(
    mixes: Mapping[str, Sequence[tuple[Run, Sequence[Run]]]], contenders: Sequence[Contender], kernel: str
) -> Result:
    """Compares all runs; `mixes` has, for each repeat, the run without a contender and those with one."""
    configured = {one.name: one.ours for one in contenders}
    ran = {run.contender for repeats in mixes.values() for _, runs in repeats for run in runs}
    ours = [name for name, is_ours in configured.items() if is_ours and name in ran]
    peers = [name for name, is_ours in configured.items() if not is_ours and name in ran]
    each = _repeats(mixes)
    found: Result = {
        "kernel": kernel,
        "charged_us": {"zswap": ZSWAP_US, "disk": DISK_US},
        "repeats": len(each),
        "workloads": _workloads(mixes),
        "contenders": {
            f"{one.name} {one.intensity}": {"configuration": one.configuration, "ours": one.ours, **_costs(mixes, one)}
            for one in contenders
            if one.name in ran
        },
    }
    if ours and peers:
        found |= _ranking(each, ours, peers)
    return found


def _repeats(mixes: Mapping[str, Sequence[tuple[Run, Sequence[Run]]]]) -> Sequence[curves.Curves]:
    """Returns the curves of all programs of all mixes, for each repeat."""
    each: list[dict[str, Mapping[str, Sequence[curves.Point]]]] = []
    for repeats in mixes.values():
        for repeat, (base, runs) in enumerate(repeats):
            if repeat == len(each):
                each.append({})
            each[repeat] |= curves.curves(base, runs)
    return each


def _workloads(mixes: Mapping[str, Sequence[tuple[Run, Sequence[Run]]]]) -> Result:
    found: Result = {}
    for mix, repeats in mixes.items():
        for repeat, (base, runs) in enumerate(repeats):
            for name, before in base.programs.items():
                row = found.setdefault(name, {"mix": mix, "occupied_bytes": before.current_bytes, "points": []})
                for run in runs:
                    after = run.programs[name]
                    p99 = after.p99_us / before.p99_us if after.p99_us and before.p99_us else None
                    row["points"].append(
                        {
                            "contender": run.contender,
                            "intensity": run.intensity,
                            "repeat": repeat,
                            "saved_bytes": before.current_bytes - after.current_bytes,
                            "lost_ratio": max(after.lost_ratio - before.lost_ratio, 0.0),
                            "settling_lost_us": after.settling_lost_us - before.settling_lost_us,
                            "worst_lost_ratio": after.worst_lost_ratio,
                            "stall_ratio": after.stall_ratio,
                            "p99_ratio": p99,
                        }
                    )
    return found


def _costs(mixes: Mapping[str, Sequence[tuple[Run, Sequence[Run]]]], one: Contender) -> Result:
    """Returns what a contender itself takes, and what the whole guest saves, net of that: means of its guests."""
    rows = []
    for repeats in mixes.values():
        for base, runs in repeats:
            for run in runs:
                if (run.contender, run.intensity) == (one.name, one.intensity):
                    saved = sum(
                        base.programs[name].current_bytes - run.programs[name].current_bytes for name in base.programs
                    )
                    extra = run.overhead_bytes - base.overhead_bytes
                    rows.append((saved - extra - run.own_bytes, extra, run.own_bytes, run.cpu_ratio - base.cpu_ratio))
    if not rows:
        return {}
    names = ("net_saved_bytes", "allocator_overhead_bytes", "own_memory_bytes", "cpu_ratio")
    return dict(zip(names, (statistics.fmean(column) for column in zip(*rows, strict=True)), strict=True))


def _ranking(each: Sequence[curves.Curves], ours: Sequence[str], peers: Sequence[str]) -> Result:
    """Returns who saves how much at each level; intervals are over the repeats."""
    levels: Result = {}
    for lost in LEVELS:
        rows: Result = {}
        for who in (*ours, *peers):
            means = [curves.geomean(list(curves.ratios(one, who, ours, lost).values())) for one in each]
            saved = {name: statistics.fmean(curves.saved_at(one[name][who], lost) for one in each) for name in each[0]}
            row = {"saved_bytes": saved, "geomean_ratio_to_best_peer": statistics.median(means)}
            rows[who] = row | {"interval": [min(means), max(means)] if len(means) > 1 else None}
        levels[f"{lost:g}"] = rows
    at_one = levels[f"{AT_ONE:g}"]
    best = max(ours, key=lambda who: float(at_one[who]["geomean_ratio_to_best_peer"]))
    by_workload = {
        name: statistics.median(curves.ratios(one, best, ours, AT_ONE)[name] for one in each) for name in each[0]
    }
    return {
        "ranking": levels,
        "best_policy_at_1pct": best,
        "ratio_to_best_peer_at_1pct": by_workload,
        "geomean_ratio_to_best_peer_at_1pct": at_one[best]["geomean_ratio_to_best_peer"],
        "workloads_behind_by_5pct": sorted(name for name, ratio in by_workload.items() if ratio < _BEHIND),
    }
