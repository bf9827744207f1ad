from __future__ import annotations

import itertools
import random

import pytest

from thermocline.learn import curves
from thermocline.learn.curves import NOTHING, Point, Solution


def random_curve(chance: random.Random, size: int) -> list[Point]:
    return [Point(round(chance.random() * 0.1, 3), round(chance.random(), 2), at) for at in range(size)]


@pytest.mark.parametrize("seed", range(200))
def test_no_pair_is_better_than_the_solution(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    first, second = random_curve(chance, chance.randrange(12)), random_curve(chance, chance.randrange(12))
    limit = chance.choice([0.0, 0.01, 0.02, 0.1, 1.0])
    solution = curves.solve(first, second, limit)
    pairs = [Solution(*pair) for pair in itertools.product([NOTHING, *first], [NOTHING, *second])]
    allowed = [one for one in pairs if one.wrong <= limit]
    assert solution.wrong <= limit
    assert solution.gain == pytest.approx(max(one.gain for one in allowed))
    assert solution.wrong == pytest.approx(min(one.wrong for one in allowed if one.gain >= solution.gain - 1e-12))


@pytest.mark.parametrize("seed", range(50))
def test_a_higher_limit_is_never_worse(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    first, second = random_curve(chance, 9), random_curve(chance, 9)
    gains = [curves.solve(first, second, limit / 100).gain for limit in range(21)]
    pools = [curves.solve_for_slow(first, second, limit / 1000).pool for limit in range(21)]
    assert gains == sorted(gains)
    assert pools == sorted(pools)


def test_the_arithmetic_of_the_paper() -> None:
    # 30 % insensitive at 2 %, 20 % untouched at 2.5 % (Pond figures 17 and 19), of which a quarter are slow (Pond section 6.5).
    solution = Solution(Point(0.02, 0.30), Point(0.025, 0.20))
    assert solution.pool == pytest.approx(0.24 + 0.76 * 0.20)
    assert solution.slow == pytest.approx(0.8 * 0.02 + 0.76 * 0.025 / 4)
    assert curves.solve([Point(0.02, 0.30)], [Point(0.025, 0.20)], 0.02).gain == pytest.approx(0.30)
    assert curves.solve([Point(0.02, 0.30)], [Point(0.025, 0.20)], 0.045).gain == pytest.approx(0.50)


@pytest.mark.parametrize(
    ("points", "gain", "wrong"),
    [
        ([], 0.0, 0.0),
        ([Point(0.1, 0.5)], 0.25, 0.05),
        ([Point(0.1, 0.5), Point(0.3, 0.4)], 0.5, 0.1),
        ([Point(0.1, 0.5), Point(0.3, 0.7)], 0.6, 0.2),
        ([Point(0.0, 0.2), Point(0.1, 0.4)], 0.3, 0.05),
    ],
)
def test_errors_are_interpolated_between_points(points: list[Point], gain: float, wrong: float) -> None:
    assert curves.wrong_at(points, gain) == pytest.approx(wrong)


def test_invalid_points_and_limits_are_refused() -> None:
    for wrong, gain in ((-0.1, 0.5), (0.5, 1.1), (float("nan"), 0.5)):
        with pytest.raises(ValueError, match="ratios"):
            Point(wrong, gain)
    with pytest.raises(ValueError, match="from 0 to 1"):
        curves.solve([], [], 2.0)
    with pytest.raises(ValueError, match=r"0\.500"):
        curves.wrong_at([Point(0.1, 0.5)], 0.6)
