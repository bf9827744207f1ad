"""Where to look next: pure functions of what was found so far.

A designer is asked with the space, everything done, and a seed; the same arguments give the same answer, in any
process. It keeps nothing, so a study can end anywhere and go on elsewhere. `bayes` holds those that need an extra.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from .space import Point, Space, identity

_DRAWS_MAX = 1000
"""Draws from a space without levels before it counts as used up."""

_GRID_MAX = 100_000
"""Points of the finest grid that is ever made."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """What a look at a point found. A look that failed has neither value nor excess."""

    point: Point
    value: float | None = None
    """What is wanted: more is better."""
    excess: float | None = None
    """How far what is feared lies above what is tolerated, as a share of that: the point is feasible at 0 and below."""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.excess is None):
            raise ValueError(f"value={self.value} and excess={self.excess}: give both, or neither of a look that failed")

    @property
    def feasible(self) -> bool:
        """Whether the point may be taken."""
        return self.excess is not None and self.excess <= 0


class Exhausted(Exception):
    """Every point of the space has been looked at."""


class Missing(Exception):
    """A designer needs a package that is not installed."""


class Designer(Protocol):
    """Where to look next."""

    def __call__(self, space: Space, done: Sequence[Done], *, seed: int) -> dict[str, float]:
        """A point of the space that is not among those done; `Exhausted` where there is none."""


def best(done: Sequence[Done]) -> Done | None:
    """The feasible point of the most value; of equals, the first."""
    feasible = [one for one in done if one.feasible and one.value is not None]
    return max(feasible, key=lambda one: one.value or 0.0, default=None)


def generator(seed: int, salt: object) -> random.Random:
    """Random numbers that are the same on every machine."""
    return random.Random(f"{seed}/{salt}")  # noqa: S311 - a search, no secret


def at_random(space: Space, done: Sequence[Done], *, seed: int) -> dict[str, float]:
    """Any point that was not looked at: the baseline of every other designer."""
    return fresh(space, done, generator(seed, len(done)))


def fresh(space: Space, done: Sequence[Done], rng: random.Random) -> dict[str, float]:
    """A point by chance that is not among those done; `Exhausted` where there is none."""
    seen = {identity(one.point) for one in done}
    size = space.size()
    for _ in range(_DRAWS_MAX):
        point = space.at([rng.random() for _ in space.knobs])
        if identity(point) not in seen:
            return point
        if size is not None and len(seen) * 2 > size:
            break
    left = [point for point in space.all() if identity(point) not in seen] if size is not None else []
    if not left:
        raise Exhausted(f"all points of the space were looked at ({len(seen)})")
    return rng.choice(left)


def on_a_grid(space: Space, done: Sequence[Done], *, seed: int) -> dict[str, float]:
    """Grids of 1, 2, 3, 5, 9 ... points an axis, one after the other, each in an order by chance."""
    seen = {identity(one.point) for one in done}
    for steps in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
        if (steps + 1) ** len(space) > _GRID_MAX:
            break
        axis = [0.5] if steps == 0 else [step / steps for step in range(steps + 1)]
        grid = list(itertools.product(axis, repeat=len(space)))
        generator(seed, steps).shuffle(grid)
        for shares in grid:
            point = space.at(shares)
            if identity(point) not in seen:
                return point
    return fresh(space, done, generator(seed, len(done)))


def latin_square(space: Space, count: int, seed: int) -> list[list[float]]:
    """`count` points of the cube, such that every `count`-th part of every axis holds one of them."""
    rng = generator(seed, "latin")
    columns = []
    for _ in space.knobs:
        cells = list(range(count))
        rng.shuffle(cells)
        columns.append([(cell + rng.random()) / count for cell in cells])
    return [list(row) for row in zip(*columns, strict=True)]


def named(name: str) -> Designer:
    """The designer of that name. Those of an extra say what to install where it is missing."""
    known: dict[str, Callable[[], Designer]] = {"random": lambda: at_random, "grid": lambda: on_a_grid}
    if name in ("egobox", "optuna"):
        from . import bayes

        return bayes.egobox() if name == "egobox" else bayes.optuna()
    if name not in known:
        raise ValueError(f"no designer {name!r}; there are {', '.join(NAMES)}")
    return known[name]()


NAMES = ("egobox", "random", "grid", "optuna")
"""All designers, the default first."""
