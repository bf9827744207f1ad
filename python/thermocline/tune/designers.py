"""The designers: functions that choose the next point of a search.

A designer's arguments are the space, all evaluations so far, and a seed. Equal arguments give the same result in any
process. It keeps no state, so a study can stop at any time and continue elsewhere. `bayes` holds the designers that need
additional packages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from . import bayes
from .sampling import Designer, Evaluation, fresh, generator
from .space import Space, identity

_GRID_MAX = 100_000
"""Upper bound of the points of a grid."""


def at_random(space: Space, done: Sequence[Evaluation], *, seed: int) -> dict[str, float]:
    """Returns a random point that has not been evaluated: the baseline for every other designer."""
    return fresh(space, done, generator(seed, len(done)))


def on_a_grid(space: Space, done: Sequence[Evaluation], *, seed: int) -> dict[str, float]:
    """Returns points of grids of 1, 2, 3, 5, 9 ... points per axis, one grid after the other, each in random order."""
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


def named(name: str) -> Designer:
    """Returns the designer of that name. Raises `Missing` with the package to install if it is not installed."""
    known: dict[str, Callable[[], Designer]] = {
        "egobox": bayes.egobox,
        "random": lambda: at_random,
        "grid": lambda: on_a_grid,
        "optuna": bayes.optuna,
    }
    if name not in known:
        raise ValueError(f"unknown designer {name!r}; use one of {', '.join(NAMES)}")
    return known[name]()


NAMES = ("egobox", "random", "grid", "optuna")
"""The names of all designers, the default first."""
