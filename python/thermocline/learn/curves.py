"""Mispredictions against memory on the pool, and the best pair of both models: 004 Eq. (1). Pure.

All numbers are ratios. `wrong` is of all VMs (or workloads), so the two models' add up as Eq. (1) has it.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

OVERPREDICTED_AND_SLOW = 0.25
"""Of the VMs that touch pool memory by an overprediction, those that exceed the margin: 004 section 6.5, from figure 16."""

WITH_HISTORY = 0.8
"""VMs with history enough for a sensitivity prediction: 004 section 6.1."""

MITIGATED_MAX = 0.01
"""Mispredictions that the QoS monitor puts right: 004 section 6.4.3."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Point:
    """One way to set a model: what it gets wrong, and what it gains (LI or UM)."""

    wrong: float
    gain: float
    setting: float = 0.0
    """The quantile or threshold that does this."""

    def __post_init__(self) -> None:
        if not (0 <= self.wrong <= 1 and 0 <= self.gain <= 1):
            raise ValueError(f"a point of a curve has ratios from 0 to 1, not {self.wrong} wrong for a gain of {self.gain}")


NOTHING = Point(0.0, 0.0)
"""Not using a model at all is always possible."""


@dataclasses.dataclass(frozen=True, slots=True)
class Solution:
    """The best pair of settings."""

    insensitive: Point
    untouched: Point

    @property
    def wrong(self) -> float:
        """FP + OP."""
        return self.insensitive.wrong + self.untouched.wrong

    @property
    def gain(self) -> float:
        """LI + UM, what Eq. (1) maximises."""
        return self.insensitive.gain + self.untouched.gain

    @property
    def pool(self) -> float:
        """The share of DRAM on the pool: insensitive VMs wholly, of the others what they leave untouched."""
        moved = WITH_HISTORY * self.insensitive.gain
        return moved + (1 - moved) * self.untouched.gain

    @property
    def slow(self) -> float:
        """The share of VMs that exceeds the margin before anybody helps: 004's scheduling mispredictions."""
        rest = 1 - WITH_HISTORY * self.insensitive.gain
        return WITH_HISTORY * self.insensitive.wrong + rest * self.untouched.wrong * OVERPREDICTED_AND_SLOW


def front(points: Iterable[Point]) -> list[Point]:
    """Those than which no other gains as much for less wrong, with `NOTHING`, in rising order of both."""
    kept: list[Point] = []
    for point in sorted([NOTHING, *points], key=lambda one: (one.wrong, -one.gain)):
        if not kept or point.gain > kept[-1].gain:
            kept.append(point)
    return kept


def solve(insensitive: Sequence[Point], untouched: Sequence[Point], wrong_max: float) -> Solution:
    """Eq. (1): of all pairs with FP + OP <= 1 - TP, the one with most LI + UM; of equals the one that is wrong least.

    Exact: for each setting of one model the best of the other that still fits is found on its front.
    """
    if not 0 <= wrong_max <= 1:
        raise ValueError(f"the share that may be wrong (100 - TP) is from 0 to 1, not {wrong_max}")
    others = front(untouched)
    wrongs = [point.wrong for point in others]
    best = Solution(NOTHING, NOTHING)
    for first in front(insensitive):
        # The sum is compared as it is told, so that rounding never lets a pair in that does not hold.
        at = bisect.bisect_right(wrongs, wrong_max - first.wrong + 1e-12)
        while at > 0 and first.wrong + wrongs[at - 1] > wrong_max:
            at -= 1
        if at > 0:
            best = max(best, Solution(first, others[at - 1]), key=lambda one: (one.gain, -one.wrong))
    return best


def solve_for_slow(insensitive: Sequence[Point], untouched: Sequence[Point], slow_max: float) -> Solution:
    """The pair that puts most DRAM on the pool with at most `slow_max` scheduling mispredictions left after mitigation."""
    pairs = (Solution(first, second) for first in front(insensitive) for second in front(untouched))
    return _most(pairs, slow_max + MITIGATED_MAX, lambda one: one.pool, lambda one: one.slow)


def _most(pairs: Iterable[Solution], limit: float, value: Callable[[Solution], float], cost: Callable[[Solution], float]) -> Solution:
    held = (one for one in pairs if cost(one) <= limit)
    return max(held, key=lambda one: (value(one), -cost(one)), default=Solution(NOTHING, NOTHING))


def gain_at(points: Iterable[Point], wrong_max: float) -> Point:
    """The point that gains most within a limit."""
    kept = front(points)
    return kept[bisect.bisect_right([point.wrong for point in kept], wrong_max) - 1]


def wrong_at(points: Iterable[Point], gain: float) -> float:
    """How much is wrong at a gain, by a straight line between the two points around it.

    Raises:
        ValueError: no point gains as much.
    """
    kept = front(points)
    for low, high in itertools.pairwise(kept):
        if low.gain <= gain <= high.gain:
            return low.wrong + (high.wrong - low.wrong) * (gain - low.gain) / (high.gain - low.gain)
    if kept[-1].gain == gain:
        return kept[-1].wrong
    raise ValueError(f"the curve ends at a gain of {kept[-1].gain:.3f}, before {gain:.3f}")
