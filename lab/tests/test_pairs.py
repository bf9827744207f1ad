"""Ratios of paired measurements."""

import math
import random

import pytest

from thermolab import pairs


def test_a_common_disturbance_cancels() -> None:
    found = pairs.ratio([90.0, 900.0, 9.0], [100.0, 1000.0, 10.0])
    assert found.value == pytest.approx(0.9)
    assert found.low == pytest.approx(0.9)
    assert found.high == pytest.approx(0.9)
    assert str(found) == "0.90 (0.90 to 0.90)"


def test_two_discordant_pairs_show_nothing() -> None:
    found = pairs.ratio([4078, 42682], [2663, 45868])
    assert found.low < 0.1 < 1.0 < 10.0 < found.high


def test_the_interval_contains_the_ratio_in_95_of_100_cases() -> None:
    source = random.Random(5)  # noqa: S311 - a test
    inside = 0
    for _ in range(2000):
        with_far = [0.95 * math.exp(source.gauss(0, 0.2)) for _ in range(6)]
        found = pairs.ratio(with_far, [1.0] * 6)
        inside += found.low <= 0.95 <= found.high
    assert 0.93 < inside / 2000 < 0.97


def test_unpaired_values_are_rejected() -> None:
    assert pairs.ratio([2.0], [1.0]) == pairs.Ratio(2.0, 0.0, math.inf)
    for with_far, without in (([], []), ([1.0, 0.0], [1.0, 1.0]), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match=r"."):
            pairs.ratio(with_far, without)
