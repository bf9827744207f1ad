"""What to take from what one look at a fleet found: the pair of percentile K and warm-up S that stores most.

A run of the model answers for all pairs at once, so these two are never searched: every look holds their optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """What the fleet must hold (000 section 5.3), and how much of it is kept in reserve."""

    rate_max: float
    """Promotions per minute as a share of the working set: 0.002 is 0.2 % a minute."""
    percentile: float = 0.98
    """In which share of the entries with far memory on."""
    margin: float = 0.03
    """The share of `rate_max` that stays free, for the weeks to come."""

    def __post_init__(self) -> None:
        if not 0 < self.rate_max <= 1:
            raise ValueError(f"rate_max={self.rate_max}; give a share above 0, such as 0.002 for 0.2 % a minute")
        if not 0 < self.percentile <= 1:
            raise ValueError(f"percentile={self.percentile}; give a share above 0, such as 0.98")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin={self.margin}; give a share from 0 up to, but not, 1")

    @property
    def limit(self) -> float:
        """The rate that may be planned for."""
        return self.rate_max * (1 - self.margin)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A percentile and a warm-up, and what they would have come to."""

    percentile: float
    warmup_seconds: float
    coverage: float
    """Stored, as a share of all that was cold."""
    saved: float
    """DRAM that was not needed, as a share of what was used."""
    stored_bytes: float
    """On average over the trace."""
    rate: float | None
    """Promotions per minute at the objective's percentile; None where nothing was ever stored, or without bound."""

    def holds(self, limit: float) -> bool:
        """Whether the rate stays within a limit. What is never on feels nothing."""
        return (self.rate if self.rate is not None else _unknown(self)) <= limit


def _unknown(pair: Pair) -> float:
    """The rate of a pair for which the model tells none: nothing stored is nothing felt, all else could be any."""
    return 0.0 if pair.stored_bytes == 0 else float("inf")


def pairs(answers: Sequence[Mapping[str, Any]]) -> tuple[Pair, ...]:
    """The pairs out of what the model prints with `--pairs`."""
    return tuple(
        Pair(
            percentile=float(one["percentile_ratio"]),
            warmup_seconds=float(one["warmup_seconds"]),
            coverage=float(one["coverage_ratio"]),
            saved=float(one["saved_ratio"]),
            stored_bytes=float(one["stored_bytes"]),
            rate=None if one["rate_ratio_per_min"] is None else float(one["rate_ratio_per_min"]),
        )
        for one in answers
    )


def best(of: Sequence[Pair], limit: float) -> Pair | None:
    """The pair that stores most within the limit; of equals, the one of the lower rate."""
    holding = [pair for pair in of if pair.holds(limit)]
    return max(holding, key=lambda pair: (pair.stored_bytes, -(pair.rate or 0.0)), default=None)


def calmest(of: Sequence[Pair]) -> Pair:
    """The pair of the lowest rate among those that store anything; any, where none does."""
    storing = [pair for pair in of if pair.stored_bytes > 0] or list(of)
    return min(storing, key=lambda pair: (pair.rate if pair.rate is not None else _unknown(pair), -pair.stored_bytes))


def front(of: Sequence[Pair]) -> list[Pair]:
    """The pairs that no other beats: none stores more at the same rate or a lower one. Most stored first."""
    kept: list[Pair] = []
    for pair in sorted((pair for pair in of if pair.rate is not None), key=lambda pair: (pair.rate or 0.0, -pair.stored_bytes)):
        if not kept or pair.stored_bytes > kept[-1].stored_bytes:
            kept.append(pair)
    return kept[::-1]


def at(of: Sequence[Pair], percentile: float, warmup_seconds: float) -> Pair | None:
    """The pair of this percentile and warm-up."""
    for pair in of:
        if abs(pair.percentile - percentile) < 1e-9 and abs(pair.warmup_seconds - warmup_seconds) < 1e-6:
            return pair
    return None
