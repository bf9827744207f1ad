"""One suite that every designer passes."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable

import pytest

from thermocline.tune import designers
from thermocline.tune.designers import Designer, Done, Exhausted
from thermocline.tune.space import Knob, Space, identity

SPACE = Space(
    (
        Knob("rate", "ratio per minute", 0.0002, 0.02, "log"),
        Knob("age", "duration", 60, 3600, "log"),
    )
)
LEVELS = Space(
    (
        Knob("rate", "ratio per minute", 0.001, 0.003, levels=(0.001, 0.002, 0.003)),
        Knob("count", "number", 1, 3),
    )
)


def installed(name: str) -> bool:
    return name in ("random", "grid") or importlib.util.find_spec(name) is not None


@pytest.fixture(params=[name for name in designers.NAMES if installed(name)])
def designer(request: pytest.FixtureRequest) -> Designer:
    return designers.named(request.param)


def toy(point: dict[str, float]) -> Done:
    """More by a higher rate and a lower age, until both together are too much: the optimum lies on the border."""
    x, y = SPACE.shares(point)
    value = x + 0.3 * math.sin(3 * (1 - y))
    return Done(point, value, (x**2 + (1 - y) ** 2 - 0.8) / 0.8)


@functools.cache
def optimum() -> float:
    """What a fine grid finds."""
    top = designers.best([toy(SPACE.at([x / 100, y / 100])) for x in range(101) for y in range(101)])
    assert top is not None
    return top.value or 0.0


def run(designer: Designer, look: Callable[[dict[str, float]], Done], count: int, seed: int, space: Space = SPACE) -> list[Done]:
    done: list[Done] = []
    for _ in range(count):
        done.append(look(designer(space, done, seed=seed)))
    return done


def test_the_same_arguments_give_the_same_point(designer: Designer) -> None:
    done = run(designer, toy, 8, seed=7)
    again = run(designer, toy, 8, seed=7)
    assert [one.point for one in done] == [one.point for one in again]
    other = run(designer, toy, 8, seed=8)
    assert [one.point for one in done] != [one.point for one in other]


def test_every_point_is_of_the_space_and_new(designer: Designer) -> None:
    done = run(designer, toy, 20, seed=3)
    assert all(SPACE.contains(one.point) for one in done)
    assert len({identity(one.point) for one in done}) == len(done)


def test_a_space_of_levels_is_used_up_and_then_over(designer: Designer) -> None:
    def look(point: dict[str, float]) -> Done:
        return Done(point, point["rate"] * point["count"], -1.0)

    done = run(designer, look, 9, seed=1, space=LEVELS)
    assert sorted(identity(one.point) for one in done) == sorted(identity(point) for point in LEVELS.all())
    with pytest.raises(Exhausted, match="9"):
        designer(LEVELS, done, seed=1)


def test_looks_that_fail_are_survived(designer: Designer) -> None:
    def failing(point: dict[str, float]) -> Done:
        return Done(point) if SPACE.shares(point)[0] > 0.5 else toy(point)

    assert designers.best(run(designer, failing, 20, seed=5)) is not None
    nothing = run(designer, Done, 10, seed=5)
    assert len({identity(one.point) for one in nothing}) == 10


def test_the_start_does_not_matter_to_what_is_learnt(designer: Designer) -> None:
    """A study that begins with points of another's choice goes on from there."""
    given = [toy(SPACE.at(shares)) for shares in ([0.1, 0.9], [0.5, 0.5], [0.9, 0.1])]
    point = designer(SPACE, given, seed=2)
    assert SPACE.contains(point)
    assert identity(point) not in {identity(one.point) for one in given}


NEAR = {"egobox": (24, 0.97), "optuna": (40, 0.95), "random": (80, 0.9), "grid": (80, 0.9)}
"""In so many looks, that share of the optimum: half of the seeds."""


def test_it_comes_near_the_constrained_optimum(designer: Designer, request: pytest.FixtureRequest) -> None:
    looks, share = NEAR[request.node.callspec.params["designer"]]
    found = [designers.best(run(designer, toy, looks, seed)) for seed in (1, 2, 3)]
    reached = sorted((one.value or 0.0) / optimum() if one else 0.0 for one in found)
    assert reached[1] > share, reached


def test_the_learning_one_needs_fewer_looks_than_chance() -> None:
    if not installed("egobox"):
        pytest.skip("egobox is an extra")

    def needed(designer: Designer, seed: int) -> int:
        done: list[Done] = []
        while len(done) < 60:
            done.append(toy(designer(SPACE, done, seed=seed)))
            found = designers.best(done)
            if found is not None and (found.value or 0.0) >= 0.99 * optimum():
                break
        return len(done)

    learnt = sorted(needed(designers.named("egobox"), seed) for seed in range(3))
    chance = sorted(needed(designers.at_random, seed) for seed in range(3))
    assert learnt[1] < chance[1], (learnt, chance)


def test_unknown_and_half_told() -> None:
    with pytest.raises(ValueError, match="there are egobox, random, grid, optuna"):
        designers.named("annealing")
    with pytest.raises(ValueError, match="give both, or neither"):
        Done({"rate": 1.0}, value=1.0)
