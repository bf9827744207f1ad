"""Selects the pair of percentile K and warm-up S that stores most, from one evaluation.

One run of the model computes the result of all pairs, so K and S are not searched: every evaluation contains their optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
    """The objective of a fleet (SDFM section 5.3), with a safety margin."""

    rate_max: float
    """Upper limit of the promotion rate, per minute and as a share of the working set: 0.002 is 0.2 % per minute."""
    percentile: float = 0.98
    """Share of the entries with far memory enabled in which the limit must hold."""
    margin: float = 0.03
    """Share of `rate_max` that is kept in reserve for the following weeks."""

    def __post_init__(self) -> None:
        if not 0 < self.rate_max <= 1:
            raise ValueError(f"rate_max={self.rate_max}; give a share above 0, such as 0.002 for 0.2 % per minute")
        if not 0 < self.percentile <= 1:
            raise ValueError(f"percentile={self.percentile}; give a share above 0, such as 0.98")
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin={self.margin}; give a share of at least 0 and below 1")

    @property
    def limit(self) -> float:
        """The limit of the rate including the margin."""
        return self.rate_max * (1 - self.margin)


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

    def holds(self, limit: float) -> bool:
        """Returns whether the rate is within a limit. A pair that stores nothing is always within it."""
        return (self.rate if self.rate is not None else _rate_if_unknown(self)) <= limit


def _rate_if_unknown(pair: Pair) -> float:
    """Returns the rate of a pair without a known rate: 0 if nothing is stored, infinite otherwise."""
    return 0.0 if pair.stored_bytes == 0 else float("inf")


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
        )
        for one in answers
    )


def best(of: Sequence[Pair], limit: float) -> Pair | None:
    """Returns the pair that stores most within the limit, the one of the lower rate in case of a tie."""
    holding = [pair for pair in of if pair.holds(limit)]
    return max(holding, key=lambda pair: (pair.stored_bytes, -(pair.rate or 0.0)), default=None)


def lowest_rate(of: Sequence[Pair]) -> Pair:
    """Returns the pair of the lowest rate among those that store anything; any pair if none does."""
    storing = [pair for pair in of if pair.stored_bytes > 0] or list(of)
    return min(storing, key=lambda pair: (pair.rate if pair.rate is not None else _rate_if_unknown(pair), -pair.stored_bytes))


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
