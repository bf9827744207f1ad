"""Search spaces: the knobs to search, their bounds and their scales.

A space is made from the program's table of knobs (`thermocline config knobs`), so that a knob is described once. A
designer sees a cube of side 1. A knob maps its coordinate to a value and rounds it to few digits.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .quantity import duration

Point = Mapping[str, float]
"""Values by the key of the knob: seconds, bytes, shares of one, or integers."""

_DIGITS = 3
"""Significant digits of a value that is tried. More digits make no difference and are hard to read."""

_DURATION, _RATIOS, _COUNT = "duration", ("ratio", "ratio per minute", "percentile", "whole percent"), "number"
_FLAG = "true or false"
_SIZES = {"size": "B", "size per second": "B/s"}

_STEPS_BESIDE_OFF = 8
"""Number of values to try for a knob that can also be off."""

FINITE_MAX = 1_000_000
"""The largest space whose points are enumerated."""


class BadSpace(ValueError):
    """The knobs do not make a valid space; the message says how to fix it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Knob:
    """One axis of a space. Bounds are inclusive and in base units: seconds, bytes, shares of one, integers."""

    key: str
    unit: str
    low: float
    high: float
    scale: str = "linear"
    """Equal steps are equal differences (`linear`), equal factors (`log`), or equal factors of the distance to one (`tail`)."""
    levels: tuple[float, ...] = ()
    """The allowed values in ascending order; empty if all values between the bounds are allowed."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise BadSpace(f"{self.key}: low={self.low} is not below high={self.high}; give two bounds, the lower first")
        if self.scale not in ("linear", "log", "tail"):
            raise BadSpace(f"{self.key}: unknown scale {self.scale!r}; use linear, log or tail")
        if self.scale == "log" and self.low <= 0:
            raise BadSpace(f"{self.key}: low={self.low} on a log scale; give a bound above 0")
        if self.scale == "tail" and self.high >= 1:
            raise BadSpace(f"{self.key}: high={self.high} on a tail scale; give a bound below 1")
        if self.levels and (sorted(set(self.levels)) != list(self.levels) or len(self.levels) < 2):
            raise BadSpace(f"{self.key}: levels {self.levels} are not ascending; give at least two, each above the previous one")

    def at(self, share: float) -> float:
        """Returns the value at a share of the distance from the lower to the upper bound."""
        share = min(max(share, 0.0), 1.0)
        if self.levels:
            return self.levels[min(int(share * len(self.levels)), len(self.levels) - 1)]
        low, high = self._scaled(self.low), self._scaled(self.high)
        return self.rounded(self._plain(low + share * (high - low)))

    def share(self, value: float) -> float:
        """Returns the share of the distance from the lower to the upper bound at which a value is."""
        if self.levels:
            return (min(range(len(self.levels)), key=lambda i: abs(self.levels[i] - value)) + 0.5) / len(self.levels)
        low, high = self._scaled(self.low), self._scaled(self.high)
        inside = min(max(value, self.low), self.high)
        return (self._scaled(inside) - low) / (high - low)

    def rounded(self, value: float) -> float:
        """Returns a value rounded to few digits, within the bounds."""
        if self.levels:
            return self.at(self.share(value))
        if self.unit == _COUNT:
            value = round(value)
        elif self.scale == "tail":
            value = 1 - _short(1 - value)
        else:
            value = _short(value)
        # The bounds are exact.
        value = min(max(value, self.low), self.high)
        return round(value, 6) if self.unit in _RATIOS else value

    def text(self, value: float) -> str:
        """Returns a value in the notation of configuration files and `--set`."""
        if self.unit == _DURATION:
            micros = round(value * 1e6)
            unit, size = next((unit, size) for unit, size in (("s", 1_000_000), ("ms", 1000), ("us", 1)) if micros % size == 0)
            return f"{micros // size}{unit}"
        if self.unit in _SIZES:
            return f"{round(value)}{_SIZES[self.unit]}"
        if self.unit in _RATIOS:
            return f"{value * 100:.4f}".rstrip("0").rstrip(".") + "%"
        if self.unit == _FLAG:
            return "true" if value else "false"
        return str(round(value)) if self.unit == _COUNT else repr(value)

    def _scaled(self, value: float) -> float:
        if self.scale == "log":
            return math.log(value)
        return -math.log(1 - value) if self.scale == "tail" else value

    def _plain(self, scaled: float) -> float:
        if self.scale == "log":
            return math.exp(scaled)
        return 1 - math.exp(-scaled) if self.scale == "tail" else scaled


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


@dataclasses.dataclass(frozen=True, slots=True)
class Space:
    """Knobs, in the order of a point's coordinates."""

    knobs: tuple[Knob, ...]

    def __post_init__(self) -> None:
        keys = [knob.key for knob in self.knobs]
        if len(set(keys)) != len(keys):
            raise BadSpace(f"duplicate knob among {', '.join(keys)}; name each once")

    def __len__(self) -> int:
        return len(self.knobs)

    def at(self, shares: Sequence[float]) -> dict[str, float]:
        """Returns the point at these coordinates of the cube."""
        return {knob.key: knob.at(share) for knob, share in zip(self.knobs, shares, strict=True)}

    def shares(self, point: Point) -> list[float]:
        """Returns the coordinates of a point."""
        return [knob.share(point[knob.key]) for knob in self.knobs]

    def contains(self, point: Point) -> bool:
        """Returns whether a point has exactly these knobs, each within its bounds."""
        keys = {knob.key for knob in self.knobs}
        return set(point) == keys and all(knob.low <= point[knob.key] <= knob.high for knob in self.knobs)

    def texts(self, point: Point) -> dict[str, str]:
        """Returns the point's values in the notation of configuration files."""
        return {knob.key: knob.text(point[knob.key]) for knob in self.knobs}

    def size(self) -> int | None:
        """Returns the number of points, or `None` if it is infinite or too large."""
        counts = [len(knob.levels) or (int(knob.high - knob.low) + 1 if knob.unit == _COUNT else 0) for knob in self.knobs]
        size = math.prod(counts)
        return size if 0 < size <= FINITE_MAX else None

    def all(self) -> Iterator[dict[str, float]]:
        """Yields every point of a space that has a size."""
        values = [knob.levels or tuple(float(n) for n in range(int(knob.low), int(knob.high) + 1)) for knob in self.knobs]
        keys = [knob.key for knob in self.knobs]
        return (dict(zip(keys, combination, strict=True)) for combination in itertools.product(*values))


def identity(point: Point) -> tuple[tuple[str, float], ...]:
    """Returns a key that is equal for equal points."""
    return tuple(sorted(point.items()))


def from_table(table: Sequence[Mapping[str, Any]], keys: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> Space:
    """Returns the space over the knobs named by `keys`, each a key or a whole table (`pressure`), of the program's table.

    `bounds` replaces bounds of the table, in base units. A whole table stands for its searchable knobs; a key must be one of
    these.
    """
    rows = {str(row["key"]): row for row in table}
    selected: list[str] = []
    for key in keys:
        inside = [name for name, row in rows.items() if name.rpartition(".")[0] == key and row["search"]]
        if key in rows and not rows[key]["search"]:
            raise BadSpace(f"{key} is not searchable; see the last column of `thermocline config knobs`")
        if key not in rows and not inside:
            raise BadSpace(f"unknown knob or table {key!r}; see `thermocline config knobs`")
        selected += [key] if key in rows else inside
    stray = set(bounds) - set(selected)
    if stray:
        raise BadSpace(f"bounds for {', '.join(sorted(stray))}, which is not searched; add it with --knob")
    knobs = []
    for key in dict.fromkeys(selected):
        search = rows[key]["search"]
        low, high = bounds.get(key, (search["low"], search["high"]))
        knobs.append(_knob(rows[key], float(low), float(high)))
    return Space(tuple(knobs))


def _knob(row: Mapping[str, Any], low: float, high: float) -> Knob:
    key, unit, scale = str(row["key"]), str(row["unit"]), str(row["search"]["scale"])
    if unit == _FLAG:
        return Knob(key, unit, low, high, levels=(low, high))
    within = Knob(key, unit, low, high, scale)
    if unit == _DURATION and duration(str(row["default"])) == 0 < low:
        # The knob is off by default, a value that a scale of factors cannot contain.
        steps = (within.at(step / (_STEPS_BESIDE_OFF - 1)) for step in range(_STEPS_BESIDE_OFF))
        levels = (0.0, *dict.fromkeys(steps))
        return Knob(key, unit, 0.0, levels[-1], levels=levels)
    return within


def in_effect(table: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, float]:
    """Returns the values in effect of these knobs, in base units, from the program's table."""
    numbers = {str(row["key"]): row["number"] for row in table}
    return {key: float(numbers[key]) for key in keys}


def to_json(space: Space) -> list[dict[str, Any]]:
    """Returns the space as it is stored with a study."""
    return [dataclasses.asdict(knob) | {"levels": list(knob.levels)} for knob in space.knobs]


def from_json(knobs: Sequence[Mapping[str, Any]]) -> Space:
    """Parses a space that `to_json` returned."""
    try:
        return Space(tuple(Knob(**{**knob, "levels": tuple(knob["levels"])}) for knob in knobs))
    except (TypeError, KeyError) as error:
        raise BadSpace(f"not a space: {json.dumps(list(knobs))[:200]}: {error}") from error
