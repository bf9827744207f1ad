"""Measures whether a fleet has changed since it was tuned.

The statistic is the total variation distance between two distributions over the age bands between cold-age thresholds:
half the sum of the absolute differences of their shares. It is the share that would have to move to another band to turn
one distribution into the other: 0 for equal distributions, 1 for distributions without a common band. It is computed for
the memory by its age, and for the accesses by the age of the accessed page. The controller depends on nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .program import Age


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """The distance between two fleets, each from 0 to 1."""

    memory: float
    accesses: float


class Incomparable(ValueError):
    """The two fleets were recorded with different thresholds."""


def drift(then: Sequence[Age], now: Sequence[Age]) -> Drift:
    """Returns the distance between two fleets with the same thresholds."""
    if [age.seconds for age in then] != [age.seconds for age in now]:
        raise Incomparable(
            f"{len(then)} thresholds from {then[0].seconds:g} s before, {len(now)} from {now[0].seconds:g} s now; "
            "ages can only be compared with equal agent.scan_period and cold_age.thresholds"
            if then and now
            else "one of the two fleets has no ages"
        )
    memory = _distance(_bands([1.0, *(age.cold for age in then)]), _bands([1.0, *(age.cold for age in now)]))
    return Drift(memory, _distance(_accesses(then), _accesses(now)))


def _accesses(ages: Sequence[Age]) -> list[float]:
    """Returns the shares of the accesses to cold memory, by band."""
    whole = ages[0].cold * ages[0].accessed
    return _bands([age.cold * age.accessed / whole if whole else 0.0 for age in ages])


def _bands(at_or_above: Sequence[float]) -> list[float]:
    return [share - above for share, above in zip(at_or_above, [*at_or_above[1:], 0.0], strict=True)]


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2
