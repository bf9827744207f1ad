"""Selects the pair of percentile K and warm-up S that stores most, from one evaluation.

One run of the model computes the result of all pairs, so K and S are not searched: every evaluation contains their optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

EXCESS_MAX = 1e3
"""Stands for an unbounded excess."""


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """The objective of a fleet (SDFM section 5.3), with a safety margin."""

    rate_max: float
    """Upper limit of the promotion rate, per minute and as a share of the working set: 0.002 is 0.2 % per minute."""
    percentile: float = 0.98
    """Share of the entries with far memory enabled in which the limit must hold."""
    margin: float = 0.03
    """Share of `rate_max` that is kept in reserve for the following weeks."""
    tail: float = 3.0
    """At 99.5 % of these entries, the rate is at most so many times the limit. An optimum at the percentile alone is at the edge
    where bursts begin: in a week with more of them it breaks the objective."""

    def __post_init__(self) -> None:
        if not 0 < self.rate_max <= 1:
            raise ValueError(f"rate_max={self.rate_max}; give a share above 0, such as 0.002 for 0.2 % per minute")
        if not 0 < self.percentile <= 1:
            raise ValueError(f"percentile={self.percentile}; give a share above 0, such as 0.98")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin={self.margin}; give a share of at least 0 and below 1")
        if not self.tail >= 1:
            raise ValueError(f"tail={self.tail}; give a multiple of the objective of at least 1, or inf")

    @property
    def limit(self) -> float:
        """The limit of the rate including the margin."""
        return self.rate_max * (1 - self.margin)

    def excess(self, pair: Pair, limit: float | None = None) -> float:
        """Returns how far a pair is above a limit of the rate, by default this one's, or above its tail: -0.1 is 10 % below.

        A pair that stores nothing is always within it.
        """
        limit = self.limit if limit is None else limit
        if pair.stored_bytes == 0:
            return -1.0
        if pair.rate is None or pair.tail is None:
            return EXCESS_MAX
        return min(max(pair.rate, pair.tail / self.tail) / limit - 1, EXCESS_MAX)

    def holds(self, pair: Pair, limit: float | None = None) -> bool:
        """Returns whether a pair is within a limit of the rate, by default this one's, and its tail."""
        return self.excess(pair, limit) <= 0


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A percentile and a warm-up, with their results."""

    percentile: float
    warmup_seconds: float
    coverage: float
    """Stored memory, as a share of cold memory."""
    saved: float
    """DRAM saved, as a share of used memory."""
    stored_bytes: float
    """Mean over the trace."""
    rate: float | None
    """Promotions per minute at the objective's percentile; `None` if nothing was stored or the rate is unbounded."""
    tail: float | None = 0.0
    """Promotions per minute at 99.5 %; `None` if unbounded, 0 in studies that did not record it."""


def pairs(answers: Sequence[Mapping[str, Any]]) -> tuple[Pair, ...]:
    """Parses the pairs that the model prints with `--pairs`."""
    return tuple(
        Pair(
            percentile=float(one["percentile_ratio"]),
            warmup_seconds=float(one["warmup_seconds"]),
            coverage=float(one["coverage_ratio"]),
            saved=float(one["saved_ratio"]),
            stored_bytes=float(one["stored_bytes"]),
            rate=None if one["rate_ratio_per_min"] is None else float(one["rate_ratio_per_min"]),
            tail=None if one["tail_ratio_per_min"] is None else float(one["tail_ratio_per_min"]),
        )
        for one in answers
    )


def worst(of: Sequence[Pair], stressed: Sequence[Pair]) -> tuple[Pair, ...]:
    """Returns pairs with what they store in one week, and their rates in the worse of both.

    A pair that the other week lacks is left out.
    """
    there = {(pair.percentile, pair.warmup_seconds): pair for pair in stressed}

    def either(one: Pair, other: Pair) -> Pair:
        rates = [pair for pair in (one, other) if pair.stored_bytes > 0]
        rate = None if any(pair.rate is None for pair in rates) else max((pair.rate or 0.0 for pair in rates), default=one.rate)
        tail = None if any(pair.tail is None for pair in rates) else max((pair.tail or 0.0 for pair in rates), default=one.tail)
        return dataclasses.replace(one, rate=rate, tail=tail)

    found = ((pair, there.get((pair.percentile, pair.warmup_seconds))) for pair in of)
    return tuple(either(pair, other) for pair, other in found if other is not None)


def best(of: Sequence[Pair], objective: Objective, limit: float | None = None) -> Pair | None:
    """Returns the pair that stores most within the objective, or within a limit of its own.

    In case of a tie, the one of the lower rate.
    """
    holding = [pair for pair in of if objective.holds(pair, limit)]
    return max(holding, key=lambda pair: (pair.stored_bytes, -(pair.rate or 0.0)), default=None)


def nearest(of: Sequence[Pair], objective: Objective) -> Pair:
    """Returns the pair that is farthest below the objective, or least above it, among those that store anything.

    Any pair if none does.
    """
    storing = [pair for pair in of if pair.stored_bytes > 0] or list(of)
    return min(storing, key=lambda pair: (objective.excess(pair), -pair.stored_bytes))


def front(of: Sequence[Pair]) -> list[Pair]:
    """Returns the Pareto front: pairs for which no other stores more at the same or a lower rate. Most stored first."""
    kept: list[Pair] = []
    for pair in sorted((pair for pair in of if pair.rate is not None), key=lambda pair: (pair.rate or 0.0, -pair.stored_bytes)):
        if not kept or pair.stored_bytes > kept[-1].stored_bytes:
            kept.append(pair)
    return kept[::-1]


def at(of: Sequence[Pair], percentile: float, warmup_seconds: float) -> Pair | None:
    """Returns the pair of this percentile and warm-up, or `None`."""
    for pair in of:
        if abs(pair.percentile - percentile) < 1e-9 and abs(pair.warmup_seconds - warmup_seconds) < 1e-6:
            return pair
    return None
