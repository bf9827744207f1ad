"""Compares contenders at equal time lost, from the points that their guests gave."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thermolab.qemu import MIB

from .measure import Run

LEVELS = (0.005, 0.01, 0.05)
"""Shares of time lost at which contenders are ranked."""

LEAST_BYTES = MIB
"""A program's memory differs by some hundred KiB from guest to guest: smaller savings are not distinguished."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What one intensity of a contender did to one program."""

    lost_ratio: float
    """Time lost beyond that of the guest without a contender."""
    saved_bytes: float


Curves = Mapping[str, Mapping[str, Sequence[Point]]]
"""Points by program and contender."""


def curves(base: Run, runs: Sequence[Run]) -> Curves:
    """Returns the points of all contenders, in order of the time lost."""
    found: dict[str, dict[str, list[Point]]] = {name: {} for name in base.programs}
    for run in runs:
        for name, before in base.programs.items():
            after = run.programs[name]
            lost = max(after.lost_ratio - before.lost_ratio, 0.0)
            point = Point(lost, before.current_bytes - after.current_bytes)
            found[name].setdefault(run.contender, []).append(point)
    return {name: {who: sorted(points) for who, points in rows.items()} for name, rows in found.items()}


def saved_at(points: Sequence[Point], lost: float) -> float:
    """Returns what a contender saves if it may lose `lost` of the time.

    Between its points lies a line: it may run at one intensity for a part of the time and at the next for the rest. The
    line begins at the origin, where it does not run. Beyond the last point it saves what it saved at best.
    """
    line = [Point(0.0, 0.0), *sorted(points)]
    best = max((point.saved_bytes for point in line if point.lost_ratio <= lost), default=0.0)
    for before, after in itertools.pairwise(line):
        if before.lost_ratio <= lost < after.lost_ratio:
            part = (lost - before.lost_ratio) / (after.lost_ratio - before.lost_ratio)
            best = max(best, before.saved_bytes + (after.saved_bytes - before.saved_bytes) * part)
    return best


def ratios(all_rows: Curves, who: str, ours: Sequence[str], lost: float) -> Mapping[str, float]:
    """Returns, by program, what `who` saves at a loss as a multiple of the best peer of that program."""
    found = {}
    for name, rows in all_rows.items():
        peers = [saved_at(points, lost) for peer, points in rows.items() if peer not in (who, *ours)]
        found[name] = max(saved_at(rows[who], lost), LEAST_BYTES) / max([*peers, LEAST_BYTES])
    return found


def geomean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
