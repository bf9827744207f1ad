from __future__ import annotations

from typing import Any

import pytest

from thermocline.tune.space import BadSpace, Knob, Space, from_json, from_table, to_json

RATE = Knob("cold_age.promotion_rate", "ratio per minute", 0.0002, 0.02, "log")


@pytest.mark.parametrize(
    ("knob", "share", "value", "text"),
    [
        (RATE, 0.0, 0.0002, "0.02%"),
        (RATE, 0.5, 0.002, "0.2%"),
        (RATE, 0.51, 0.00209, "0.209%"),
        (RATE, 2.0, 0.02, "2%"),
        (Knob("k", "percentile", 0.5, 0.9999, "tail"), 1.0, 0.9999, "99.99%"),
        (Knob("k", "percentile", 0.9, 0.999, "tail"), 0.5, 0.99, "99%"),
        (Knob("s", "duration", 60, 14_400, "log"), 0.0, 60, "60s"),
        (Knob("s", "duration", 0.1, 1), 0.5, 0.55, "550ms"),
        (Knob("s", "duration", 1e-4, 0.05, "log"), 0.0, 1e-4, "100us"),
        (Knob("b", "size", 0, 2**20), 1.0, 2**20, "1048576B"),
        (Knob("b", "size per second", 0, 100), 0.25, 25, "25B/s"),
        (Knob("n", "number", 1, 9), 0.55, 5, "5"),
        (Knob("l", "duration", 1, 4, levels=(1, 2, 4)), 0.5, 2, "2s"),
        (Knob("l", "duration", 1, 4, levels=(1, 2, 4)), 1.0, 4, "4s"),
    ],
)
def test_a_share_maps_to_a_value_of_few_digits(knob: Knob, share: float, value: float, text: str) -> None:
    assert knob.at(share) == pytest.approx(value, abs=1e-12)
    assert knob.text(knob.at(share)) == text


@pytest.mark.parametrize(
    "knob", [RATE, Knob("k", "percentile", 0.5, 0.9999, "tail"), Knob("n", "number", 1, 1000), Knob("l", "x", 0, 9, levels=(0, 3, 9))]
)
def test_values_keep_their_order_and_digits(knob: Knob) -> None:
    values = [knob.at(step / 200) for step in range(201)]
    assert values == sorted(values)
    assert all(knob.low <= value <= knob.high for value in values)
    # Mapping a value to a share and back is exact.
    assert [knob.at(knob.share(value)) for value in values] == values


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Knob("x", "ratio", 2, 1), "the lower first"),
        (lambda: Knob("x", "ratio", 0, 1, "log"), "above 0"),
        (lambda: Knob("x", "ratio", 0, 1, "tail"), "below 1"),
        (lambda: Knob("x", "ratio", 0, 1, "round"), "linear, log or tail"),
        (lambda: Knob("x", "ratio", 0, 1, levels=(1, 0)), "not ascending"),
        (lambda: Space((RATE, RATE)), "name each once"),
    ],
)
def test_invalid_spaces_are_refused(made: object, message: str) -> None:
    assert callable(made)
    with pytest.raises(BadSpace, match=message):
        made()


TABLE: list[dict[str, Any]] = [
    {"key": "a.x", "unit": "ratio", "search": {"low": 0.1, "high": 0.5, "scale": "log"}},
    {"key": "a.y", "unit": "path", "search": None},
    {"key": "a.b.z", "unit": "number", "search": {"low": 1, "high": 3, "scale": "linear"}},
]


def test_a_space_is_made_from_the_table() -> None:
    assert [knob.key for knob in from_table(TABLE, ["a"], {}).knobs] == ["a.x"]
    both = from_table(TABLE, ["a.b", "a.x", "a"], {"a.x": (0.2, 0.3)})
    assert [(knob.key, knob.low, knob.high, knob.scale) for knob in both.knobs] == [("a.b.z", 1, 3, "linear"), ("a.x", 0.2, 0.3, "log")]
    for keys, bounds, message in (
        (["a.y"], {}, "not searchable"),
        (["c"], {}, "unknown knob or table 'c'"),
        (["a"], {"a.b.z": (1.0, 2.0)}, "not searched"),
    ):
        with pytest.raises(BadSpace, match=message):
            from_table(TABLE, keys, bounds)


def test_off_is_a_level_of_a_knob_that_is_off_by_default() -> None:
    search = {"low": 3600.0, "high": 36_000.0, "scale": "log"}
    table = [
        {"key": "a.off", "unit": "duration", "default": "0s", "search": search},
        {"key": "a.on", "unit": "duration", "default": "2h", "search": search},
        {"key": "a.flag", "unit": "true or false", "default": "true", "search": {"low": 0, "high": 1, "scale": "linear"}},
    ]
    off, on, flag = from_table(table, ["a"], {}).knobs
    assert (off.levels[:2], off.levels[-1], len(off.levels), on.levels) == ((0, 3600), 36_000, 9, ())
    assert [off.text(off.at(share)) for share in (0, 0.12, 1)] == ["0s", "3600s", "36000s"]
    assert [flag.text(flag.at(share)) for share in (0, 0.4, 0.6, 1)] == ["false", "false", "true", "true"]
    assert (off.share(0), flag.share(1)) == (0.5 / 9, 0.75)


def test_a_space_reads_back_as_stored() -> None:
    space = Space((RATE, Knob("l", "duration", 1, 4, levels=(1, 2, 4))))
    assert from_json(to_json(space)) == space
    with pytest.raises(BadSpace, match="not a space"):
        from_json([{"key": "x"}])


def test_a_finite_space_enumerates_its_points() -> None:
    space = Space((Knob("n", "number", 1, 3), Knob("l", "x", 0, 1, levels=(0, 1))))
    points = list(space.all())
    assert (space.size(), len(points), len({tuple(point.items()) for point in points})) == (6, 6, 6)
    assert all(space.contains(point) for point in points)
    assert Space((RATE,)).size() is None
    assert not space.contains({"n": 1})
    assert not space.contains({"n": 4, "l": 0})
