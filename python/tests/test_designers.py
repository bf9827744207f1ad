"""Properties of all designers."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable

import pytest

from thermocline.tune import designers, sampling
from thermocline.tune.sampling import Designer, Evaluation, Exhausted
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


def toy(point: dict[str, float]) -> Evaluation:
    """A higher rate and a lower age have a higher value until both violate the constraint: the optimum is on the boundary."""
    x, y = SPACE.shares(point)
    value = x + 0.3 * math.sin(3 * (1 - y))
    return Evaluation(point, value, (x**2 + (1 - y) ** 2 - 0.8) / 0.8)


@functools.cache
def optimum() -> float:
    """The best value on a fine grid."""
    top = sampling.best([toy(SPACE.at([x / 100, y / 100])) for x in range(101) for y in range(101)])
    assert top is not None
    return top.value or 0.0


def run(
    designer: Designer, evaluate: Callable[[dict[str, float]], Evaluation], count: int, seed: int, space: Space = SPACE
) -> list[Evaluation]:
    done: list[Evaluation] = []
    for _ in range(count):
        done.append(evaluate(designer(space, done, seed=seed)))
    return done


def test_the_same_arguments_give_the_same_point(designer: Designer) -> None:
    done = run(designer, toy, 8, seed=7)
    again = run(designer, toy, 8, seed=7)
    assert [one.point for one in done] == [one.point for one in again]
    other = run(designer, toy, 8, seed=8)
    assert [one.point for one in done] != [one.point for one in other]


def test_every_point_is_in_the_space_and_new(designer: Designer) -> None:
    done = run(designer, toy, 20, seed=3)
    assert all(SPACE.contains(one.point) for one in done)
    assert len({identity(one.point) for one in done}) == len(done)


def test_a_space_of_levels_is_exhausted(designer: Designer) -> None:
    def evaluate(point: dict[str, float]) -> Evaluation:
        return Evaluation(point, point["rate"] * point["count"], -1.0)

    done = run(designer, evaluate, 9, seed=1, space=LEVELS)
    assert sorted(identity(one.point) for one in done) == sorted(identity(point) for point in LEVELS.all())
    with pytest.raises(Exhausted, match="9"):
        designer(LEVELS, done, seed=1)


def test_failed_evaluations_are_tolerated(designer: Designer) -> None:
    def failing(point: dict[str, float]) -> Evaluation:
        return Evaluation(point) if SPACE.shares(point)[0] > 0.5 else toy(point)

    assert sampling.best(run(designer, failing, 20, seed=5)) is not None
    nothing = run(designer, Evaluation, 10, seed=5)
    assert len({identity(one.point) for one in nothing}) == 10


def test_a_designer_continues_from_given_points(designer: Designer) -> None:
    """A designer continues a study that began with other points."""
    given = [toy(SPACE.at(shares)) for shares in ([0.1, 0.9], [0.5, 0.5], [0.9, 0.1])]
    point = designer(SPACE, given, seed=2)
    assert SPACE.contains(point)
    assert identity(point) not in {identity(one.point) for one in given}


NEAR = {"egobox": (24, 0.97), "optuna": (40, 0.95), "random": (80, 0.9), "grid": (80, 0.9)}
"""Number of evaluations, and the share of the optimum that half of the seeds must reach."""


def test_the_constrained_optimum_is_approached(designer: Designer, request: pytest.FixtureRequest) -> None:
    count, share = NEAR[request.node.callspec.params["designer"]]
    found = [sampling.best(run(designer, toy, count, seed)) for seed in (1, 2, 3)]
    reached = sorted((one.value or 0.0) / optimum() if one else 0.0 for one in found)
    assert reached[1] > share, reached


def test_the_model_based_designer_needs_fewer_evaluations_than_random() -> None:
    if not installed("egobox"):
        pytest.skip("egobox is an extra")

    def needed(designer: Designer, seed: int) -> int:
        done: list[Evaluation] = []
        while len(done) < 60:
            done.append(toy(designer(SPACE, done, seed=seed)))
            found = sampling.best(done)
            if found is not None and (found.value or 0.0) >= 0.99 * optimum():
                break
        return len(done)

    learnt = sorted(needed(designers.named("egobox"), seed) for seed in range(3))
    at_random = sorted(needed(designers.at_random, seed) for seed in range(3))
    assert learnt[1] < at_random[1], (learnt, at_random)


def test_unknown_designers_and_incomplete_evaluations_are_refused() -> None:
    with pytest.raises(ValueError, match="use one of egobox, random, grid, optuna"):
        designers.named("annealing")
    with pytest.raises(ValueError, match="give both, or neither"):
        Evaluation({"rate": 1.0}, value=1.0)
