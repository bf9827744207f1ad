"""Mispredictions against memory on the pool, and the best pair of settings of both models (Pond Eq. 1). Pure.

All numbers are ratios. `wrong` is a share of all VMs (or workloads), so the errors of both models add up as in Eq. (1).
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

OVERPREDICTED_AND_SLOW = 0.25
"""Share of overpredicted VMs that exceed the margin (Pond section 6.5, from figure 16)."""

WITH_HISTORY = 0.8
"""Share of VMs with enough history for a sensitivity prediction (Pond section 6.1)."""

MITIGATED_MAX = 0.01
"""Mispredictions that the QoS monitor mitigates (Pond section 6.4.3)."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Point:
    """One setting of a model: its errors, and its gain (LI or UM)."""

    wrong: float
    gain: float
    setting: float = 0.0
    """The quantile or threshold of this setting."""

    def __post_init__(self) -> None:
        if not (0 <= self.wrong <= 1 and 0 <= self.gain <= 1):
            raise ValueError(f"a point of a curve has ratios from 0 to 1, found wrong={self.wrong} and gain={self.gain}")


NOTHING = Point(0.0, 0.0)
"""Not using a model, which is always possible."""


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
        """LI + UM, the objective of Eq. (1)."""
        return self.insensitive.gain + self.untouched.gain

    @property
    def pool(self) -> float:
        """Share of DRAM on the pool: all memory of insensitive VMs, and the untouched memory of the others."""
        insensitive = WITH_HISTORY * self.insensitive.gain
        return insensitive + (1 - insensitive) * self.untouched.gain

    @property
    def slow(self) -> float:
        """Share of VMs that exceed the margin before mitigation (scheduling mispredictions)."""
        others = 1 - WITH_HISTORY * self.insensitive.gain
        return WITH_HISTORY * self.insensitive.wrong + others * self.untouched.wrong * OVERPREDICTED_AND_SLOW


def front(points: Iterable[Point]) -> list[Point]:
    """Returns the Pareto front with `NOTHING`, in ascending order: no other point gains as much with fewer errors."""
    kept: list[Point] = []
    for point in sorted([NOTHING, *points], key=lambda one: (one.wrong, -one.gain)):
        if not kept or point.gain > kept[-1].gain:
            kept.append(point)
    return kept


def solve(insensitive: Sequence[Point], untouched: Sequence[Point], wrong_max: float) -> Solution:
    """Solves Eq. (1): of all pairs with FP + OP <= 1 - TP, returns the one with the largest LI + UM, then the fewest errors.

    Exact: for each setting of one model, the best setting of the other that satisfies the limit is found on its front.
    """
    if not 0 <= wrong_max <= 1:
        raise ValueError(f"the limit of errors (1 - TP) must be from 0 to 1, found {wrong_max}")
    others = front(untouched)
    wrongs = [point.wrong for point in others]
    best = Solution(NOTHING, NOTHING)
    for first in front(insensitive):
        # The comparison uses the exact sum, so that a rounding error never admits a pair beyond the limit.
        at = bisect.bisect_right(wrongs, wrong_max - first.wrong + 1e-12)
        while at > 0 and first.wrong + wrongs[at - 1] > wrong_max:
            at -= 1
        if at > 0:
            best = max(best, Solution(first, others[at - 1]), key=lambda one: (one.gain, -one.wrong))
    return best


def solve_for_slow(insensitive: Sequence[Point], untouched: Sequence[Point], slow_max: float) -> Solution:
    """Returns the pair with the most DRAM on the pool and at most `slow_max` scheduling mispredictions after mitigation."""
    pairs = (Solution(first, second) for first in front(insensitive) for second in front(untouched))
    return _most(pairs, slow_max + MITIGATED_MAX, lambda one: one.pool, lambda one: one.slow)


def _most(pairs: Iterable[Solution], limit: float, value: Callable[[Solution], float], cost: Callable[[Solution], float]) -> Solution:
    held = (one for one in pairs if cost(one) <= limit)
    return max(held, key=lambda one: (value(one), -cost(one)), default=Solution(NOTHING, NOTHING))


def gain_at(points: Iterable[Point], wrong_max: float) -> Point:
    """Returns the point with the largest gain within a limit of errors."""
    kept = front(points)
    return kept[bisect.bisect_right([point.wrong for point in kept], wrong_max) - 1]


def wrong_at(points: Iterable[Point], gain: float) -> float:
    """Returns the errors at a gain, interpolated linearly between the two closest points.

    Raises:
        ValueError: no point has this gain.
    """
    kept = front(points)
    for low, high in itertools.pairwise(kept):
        if low.gain <= gain <= high.gain:
            return low.wrong + (high.wrong - low.wrong) * (gain - low.gain) / (high.gain - low.gain)
    if kept[-1].gain == gain:
        return kept[-1].wrong
    raise ValueError(f"the curve ends at the gain {kept[-1].gain:.3f}, before {gain:.3f}")
