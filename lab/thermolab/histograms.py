"""Comparison of a tracker's cold-age and promotion histograms with a workload whose accesses are all known.

A cell is one threshold of one histogram at one reading. Its error is the difference between tracker and truth in
percentage points of the job's swap-backed memory: for the cold-age histogram of the memory at or above the threshold,
for the promotion histogram of the memory that was accessed per minute at or above it. A cell is within its bound if
the error is at most `POINTS_MAX`, or, for a tracker that samples, at most what sampling explains (two standard errors).
Thresholds go up to 61 scans.
"""

import json
import math
import time
from collections.abc import Sequence
from typing import Any

from .lab import Lab
from .truth import Region, Workload, poisson

SCAN_S = 1
WARM_S = 70
WATCH_S = 60
READINGS = 12
POINTS_MAX = 2.0
PAGE = 4096

_OUT, _ERR = "/run/observe.jsonl", "/run/observe.err"


def regions() -> list[Region]:
    """Returns a mix of hot, warm, cold and random memory."""
    return [
        Region("hot", 32, {"period_ms": 100}),
        Region("warm", 24, poisson(0.05, 0.5)),
        Region("slow", 48, poisson(0.01, 0.1, idle=0.2), writes=True),
        Region("zipf", 16, {"zipf": {"exponent": 1.0, "touches_per_s": 300}}),
        Region("shared", 16, poisson(0.02, 0.2), kind="shared"),
        Region("never", 40, {"never": True}),
        Region("random_never", 8, {"never": True}, kind="incompressible"),
    ]


def compare(lab: Lab, workload: Workload, tracker: str) -> dict[str, Any]:
    """Observes a workload of `regions()` with a scan every `SCAN_S`; returns how well the tracker's histograms agree.

    The result has the number of cells, the share within their bound, and the worst error in percentage points.
    """
    guest, judged = workload.guest, workload.swap_backed()
    total = workload.bytes_of(judged)
    guest.write(_OUT, "")
    guest.write(_ERR, "")
    settings = {"agent.tracker": tracker, "agent.scan_period": f"{SCAN_S}s", "agent.cpu_budget": "100%"}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    argv = ["thermocline", "--format", "json", *sets, "observe", workload.job]
    observer = guest.spawn(argv, stdout=_OUT, stderr=_ERR)
    time.sleep(WARM_S)
    truths: list[tuple[float, list[int]]] = []
    cells: list[tuple[str, float, float, float]] = []
    for _ in range(READINGS):
        truths.append((workload.uptime(), workload.returns(judged)))
        time.sleep(WATCH_S / READINGS)
        found = _scans(guest.read(_OUT))
        if not found:
            raise RuntimeError(f"{tracker}: no scan within {WARM_S} s: {guest.read(_ERR)}")
        job = found[-1]
        for seconds, bytes_ in job["cold_age"]:
            if seconds <= 64 * SCAN_S:
                true = workload.idle_bytes(judged, round(seconds * 1000), job["scanned_at_seconds"])
                cells.append(("cold", seconds, bytes_ / total, true / total))
    truths.append((workload.uptime(), workload.returns(judged)))
    scans = [scan for scan in _scans(guest.read(_OUT)) if truths[0][0] < scan["scanned_at_seconds"] <= truths[-1][0]]
    guest.kill(observer)
    guest.wait_exit(observer)
    if len(scans) < WATCH_S / SCAN_S / 3:
        raise RuntimeError(f"{tracker}: only {len(scans)} scans in {WATCH_S} s: {guest.read(_ERR)}")
    cells += _promotions(truths, scans, total)
    points = scans[-1].get("sample_points")
    return _judge(lab, tracker, cells, points, len(scans))


def _scans(text: str) -> list[dict[str, Any]]:
    """Returns the job as of each scan, in order."""
    by_time: dict[float, dict[str, Any]] = {}
    for line in text.splitlines():
        for job in json.loads(line)["jobs"]:
            if job["scanned_at_seconds"] is not None:
                by_time[job["scanned_at_seconds"]] = job
    return [by_time[at] for at in sorted(by_time)]


def _promotions(
    truths: Sequence[tuple[float, list[int]]], scans: Sequence[dict[str, Any]], total: int
) -> list[tuple[str, float, float, float]]:
    """Returns the cells of the promotion histogram: accesses per minute over the whole time."""
    (began, before), (ended, after) = truths[0], truths[-1]
    window = sum(scan["accessed_window_seconds"] for scan in scans)
    cells = []
    for index, (seconds, _) in enumerate(scans[0]["accessed"]):
        if seconds > 64 * SCAN_S:
            continue
        seen = sum(scan["accessed"][index][1] for scan in scans) / window * 60
        returned = sum(after[int(seconds) :]) - sum(before[int(seconds) :])
        cells.append(("promotion", seconds, seen / total, returned * PAGE / (ended - began) * 60 / total))
    return cells


def _judge(
    lab: Lab, tracker: str, cells: Sequence[tuple[str, float, float, float]], points: int | None, scans: int
) -> dict[str, Any]:
    """Compares the cells with their bounds."""
    within, worst, by_kind = 0, 0.0, {"cold": 0.0, "promotion": 0.0}
    for kind, seconds, seen, true in cells:
        error = abs(seen - true) * 100
        bound = POINTS_MAX
        if points:
            # A share of the pages, or a number of accesses of pages that are drawn with probability points/pages.
            spread = max(true * (1 - true), 0.0) if kind == "cold" else max(true, 1 / points)
            bound = max(bound, 200 * math.sqrt(spread / points))
        within += error <= bound
        worst = max(worst, error)
        by_kind[kind] = max(by_kind[kind], error)
        if kind == "promotion" or error > bound:
            lab.say(f"{tracker}: {kind} at {seconds:g} s: {seen:.2%}, actual {true:.2%}, bound {bound:.1f} points")
    lab.say(f"{tracker}: {within} of {len(cells)} cells within bounds, worst {worst:.2f} points, {points} points")
    return {
        "cells": len(cells),
        "cells_within_bound_ratio": within / len(cells),
        "worst_error_points": worst,
        "worst_cold_error_points": by_kind["cold"],
        "worst_promotion_error_points": by_kind["promotion"],
        "sample_points": points,
        "scans": scans,
        "job_bytes_mib": sum(region.mib for region in regions()),
    }
