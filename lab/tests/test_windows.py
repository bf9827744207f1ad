"""Parsing of pressure files, and figures of windows."""

import pytest

from thermolab.windows import Stalls, Window, some_us

PRESSURE = """\
some avg10=0.00 avg60=0.12 avg300=1.50 total=48213
full avg10=0.00 avg60=0.05 avg300=0.75 total=20111
"""


@pytest.mark.parametrize(("text", "total"), [(PRESSURE, 48213), ("some avg10=0.00 avg60=0 avg300=0 total=0\n", 0)])
def test_the_total_of_some_is_parsed(text: str, total: int) -> None:
    assert some_us(text) == total


@pytest.mark.parametrize(
    ("memory_us", "io_us", "ratio"), [(0, 0, 0.0), (10_000, 0, 0.01), (10_000, 50_000, 0.05), (1_000_000, 50_000, 1.0)]
)
def test_the_larger_stall_counts(memory_us: int, io_us: int, ratio: float) -> None:
    before = Stalls(at_seconds=10.0, memory_us=7, io_us=3)
    assert Stalls(11.0, 7 + memory_us, 3 + io_us).ratio_since(before) == pytest.approx(ratio)


@pytest.mark.parametrize(("before", "now", "slowdown"), [(0.01, 0.015, 0.005), (0.02, 0.02, 0.0), (0.02, 0.01, -0.01)])
def test_slowdown_is_the_additional_access_time(before: float, now: float, slowdown: float) -> None:
    windows = [
        Window(stall_ratio=0, access_ratio=ratio, faulted_ratio=0, ops_per_s=60, p99_us=1) for ratio in (before, now)
    ]
    assert windows[1].slowdown_ratio(windows[0]) == pytest.approx(slowdown)
