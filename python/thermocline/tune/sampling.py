"""The interface of designers, and the random draws that they share."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Protocol

from .space import Point, Space, identity

_DRAWS_MAX = 1000
"""Draws from a continuous space before it counts as exhausted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a point. A failed evaluation has neither value nor excess."""

    point: Point
    value: float | None = None
    """The value to maximize."""
    excess: float | None = None
    """How far the constrained quantity is above its limit, as a share of the limit. The point is feasible at 0 and below."""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.excess is None):
            raise ValueError(f"value={self.value} and excess={self.excess}: give both, or neither for a failed evaluation")

    @property
    def feasible(self) -> bool:
        """Whether the constraint holds."""
        return self.excess is not None and self.excess <= 0


class Exhausted(Exception):
    """Every point of the space has been evaluated."""


class Missing(Exception):
    """A designer needs a package that is not installed."""


class Designer(Protocol):
    """Chooses the next point to evaluate."""

    def __call__(self, space: Space, done: Sequence[Evaluation], *, seed: int) -> dict[str, float]:
        """Returns a point that has not been evaluated. Raises `Exhausted` if there is none."""


def best(done: Sequence[Evaluation]) -> Evaluation | None:
    """Returns the feasible point of the highest value, the first in case of a tie."""
    feasible = [one for one in done if one.feasible and one.value is not None]
    return max(feasible, key=lambda one: one.value or 0.0, default=None)


def generator(seed: int, salt: object) -> random.Random:
    """Returns a random generator that is the same on every machine."""
    return random.Random(f"{seed}/{salt}")  # noqa: S311 - a search, not cryptography


def fresh(space: Space, done: Sequence[Evaluation], rng: random.Random) -> dict[str, float]:
    """Returns a random point that has not been evaluated. Raises `Exhausted` if there is none."""
    seen = {identity(one.point) for one in done}
    size = space.size()
    for _ in range(_DRAWS_MAX):
        point = space.at([rng.random() for _ in space.knobs])
        if identity(point) not in seen:
            return point
        if size is not None and len(seen) * 2 > size:
            break
    remaining = [point for point in space.all() if identity(point) not in seen] if size is not None else []
    if not remaining:
        raise Exhausted(f"all points of the space have been evaluated ({len(seen)})")
    return rng.choice(remaining)


def latin_square(space: Space, count: int, seed: int) -> list[list[float]]:
    """Returns `count` points of the unit cube: each of `count` equal parts of every axis contains exactly one of them."""
    rng = generator(seed, "latin")
    columns = []
    for _ in space.knobs:
        cells = list(range(count))
        rng.shuffle(cells)
        columns.append([(cell + rng.random()) / count for cell in cells])
    return [list(row) for row in zip(*columns, strict=True)]
