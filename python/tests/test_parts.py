"""Tests of small pure parts: quantities, drift, plots, figures, hand tuning."""

from __future__ import annotations

import argparse
import importlib
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from thermocline.report import figures, stranding, tuner, weeks
from thermocline.report.figures import HAND, OFF, TUNED, Detail, Hour
from thermocline.tune import designers
from thermocline.tune.choose import Objective, Pair
from thermocline.tune.drift import Incomparable, drift
from thermocline.tune.parameters import ClassParameters
from thermocline.tune.plot import Mark, Plot, bars
from thermocline.tune.program import Age, Fleet, ModelRun
from thermocline.tune.quantity import bounds, duration, number, ratio, setting
from thermocline.tune.sampling import Evaluation
from thermocline.tune.space import Knob, Space


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.2%", 0.002),
        ("95%", 0.95),
        ("10m", 600),
        ("500ms", 0.5),
        ("64MiB", 2**26),
        ("64MiB/s", 2**26),
        ("0.002", 0.002),
        ("1e-3", 0.001),
        ("7d", 604_800),
        ("-1", -1),
    ],
)
def test_quantities_are_in_base_units(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "x", "1x", "%", "1 2", "1mm", "--1"])
def test_invalid_quantities_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write it like"):
        number(text)


def test_arguments_are_parsed() -> None:
    key, between = bounds("a.b=0.1%..10%")
    assert key == "a.b"
    assert between == pytest.approx((0.001, 0.1))
    assert setting("a=b=c") == ("a", "b=c")
    for take, text in (
        (bounds, "a=1"),
        (bounds, "1..2"),
        (setting, "a"),
        (setting, "=b"),
        (duration, "10"),
        (ratio, "120%"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            take(text)


def test_drift_is_the_share_that_would_have_to_move() -> None:
    then = [Age(120, 0.3, 0.1), Age(240, 0.2, 0.05)]
    assert drift(then, then).memory == drift(then, then).accesses == 0
    # A tenth of all memory moves from the youngest to the oldest band; the accesses, 2 to 1 before, all move to the oldest.
    now = [Age(120, 0.4, 0.05), Age(240, 0.3, 0.05 * 0.4 / 0.3)]
    moved = drift(then, now)
    assert moved.memory == pytest.approx(0.1)
    assert moved.accesses == pytest.approx(1 - (0.2 * 0.05) / (0.3 * 0.1))
    assert drift(now, then) == moved
    nothing = [Age(120, 0.0, 0.0), Age(240, 0.0, 0.0)]
    assert drift(nothing, nothing).memory == 0
    for other in (then[:1], []):
        with pytest.raises(Incomparable):
            drift(then, other)


def test_plots_are_well_formed_and_inside_their_frame() -> None:
    plot = Plot("x <&>", "y")
    plot.line([(0.0, 1.0), (10.0, 3.0)], "red")
    plot.mark(Mark(5.0, 2.0, "blue", 'a "tooltip"', "label"))
    plot.vertical(7.0, "here", "green", dashed=True)
    root = ET.fromstring(plot.svg())  # noqa: S314 - our own text
    circle = next(one for one in root if one.tag == "circle")
    assert 0 < float(circle.attrib["cx"]) < float(root.attrib["width"])
    assert 0 < float(circle.attrib["cy"]) < float(root.attrib["height"])
    for steps in ([], [("a", 0.0, "red", True)], [("a<", 1.0, "red", True), ("b", 2.0, "red", False)]):
        heights = [float(one.attrib["height"]) for one in ET.fromstring(bars(steps)) if one.tag == "rect"]  # noqa: S314
        assert heights == sorted(heights) and len(heights) == len(steps)
    for lonely in (0.0, 5.0, -3.0):
        one = Plot("x", "y")
        one.mark(Mark(lonely, lonely, "red", ""))
        ET.fromstring(one.svg())  # noqa: S314


def test_a_rollout_proceeds_cluster_by_cluster() -> None:
    stages = (1.0, 2.0, 3.0, 4.0)
    found = [
        figures.setting_of(day, place, stages) for day, place in ((0.5, 0.5), (1.4, 0.5), (1.5, 0.5), (2.9, 1.0), (3.5, 0.5), (3.5, 1.0))
    ]
    assert found == [OFF, OFF, HAND, HAND, TUNED, HAND]

    def fleet(coverage: float) -> Detail:
        hours = tuple(Hour(cluster, day * 86_400, coverage, 10.0) for cluster in "ab" for day in range(8))
        return Detail(hours, {"a": (coverage,), "b": (coverage,)}, tuple(coverage / 100 for _ in range(100)))

    settings = {HAND: fleet(0.1), TUNED: fleet(0.2)}
    series = figures.over_time(settings, stages=(1.0, 3.0, 5.0, 7.0))
    assert [share for _, share in series] == pytest.approx([0, 0, 0.05, 0.1, 0.1, 0.1, 0.15, 0.2])
    numbers = figures.numbers(settings, figures.over_time(settings))
    assert numbers["figure_6"]["a"]["median"] == 0.2
    assert numbers["figure_7"][HAND]["p98"] == 0.001


def test_hand_tuning_holds_the_objective_in_every_group() -> None:
    def group(rates: tuple[float, ...]) -> list[Pair]:
        return [Pair(k, s, 0.3 - i / 100, 0.1, 30 - i, rate) for i, ((k, s), rate) in enumerate(zip(tuner.CANDIDATES, rates, strict=True))]

    low, high = group((0.001,) * 5), group((0.003, 0.003, 0.0019, 0.001, 0.001))
    assert tuner.choose_candidate([low, low], 0.002) == tuner.CANDIDATES[0]
    assert tuner.choose_candidate([low, high], 0.002) == tuner.CANDIDATES[2]
    assert tuner.choose_candidate([group((0.003,) * 5)], 0.002) == tuner.CANDIDATES[-1]


def test_the_interval_of_a_gain_is_that_of_other_clusters() -> None:
    names = [f"cluster-{at}" for at in range(10)]
    before = {name: 10.0 * (at + 1) for at, name in enumerate(names)}
    same = weeks.gain_interval(before, {name: 1.1 * stored for name, stored in before.items()})
    assert same is not None
    assert same == pytest.approx((0.1, 0.1)), "clusters of any size that gain the same leave no doubt"
    # One of ten equal clusters gains everything: a draw has it from zero to some times.
    varied = weeks.gain_interval(dict.fromkeys(names, 10.0), {name: 20.0 if name == names[0] else 10.0 for name in names})
    assert varied is not None
    low, high = varied
    assert low == 0
    assert 0.1 < high < 0.5
    assert weeks.gain_interval({"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}) is None, "two clusters are too few"
    assert weeks.gain_interval(dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0)) is None


def test_the_worst_cluster_and_the_worst_day_are_shown_beside_the_fleet() -> None:
    def pair(rate: float | None, stored: float = 10.0) -> tuple[Pair, ...]:
        return (Pair(0.99, 600.0, 0.2, 0.1, stored, rate),)

    fleet = Fleet(1, 1, 1.0, 1.0, 1.0)
    groups = {"a": pair(0.001), "b": pair(0.003), "idle": pair(None, 0.0)}
    run = ModelRun(fleet, pair(0.0015)[0], pair(0.0015), groups)
    days = [0.001, 0.0025, 0.002]
    shown = weeks.row(run, (0.99, 600.0), Objective(0.002), days)
    assert (shown["worst_day_rate"], shown["days"], shown["days_held"]) == (0.0025, 3, 2)
    assert (shown["holds"], shown["worst_cluster_rate"], shown["clusters"], shown["clusters_held"]) == (True, 0.003, 2, 1)
    worse = ModelRun(fleet, pair(0.0015)[0], pair(0.0015), groups | {"c": pair(None)})
    unbounded = weeks.row(worse, (0.99, 600.0), Objective(0.002), [None, 0.001])
    assert (unbounded["worst_cluster_rate"], unbounded["worst_day_rate"], unbounded["days_held"]) == (None, None, 1)
    assert weeks.stored(run, (0.99, 600.0)) == {"a": 10.0, "b": 10.0, "idle": 0.0}


def test_the_gain_of_classes_is_that_of_all_that_they_store() -> None:
    def one(name: str, own: float, fleets: float | None) -> ClassParameters:
        pair = Pair(0.99, 600.0, 0.2, 0.1, own, 0.001)
        at_fleets = None if fleets is None else Pair(0.98, 600.0, 0.2, 0.1, fleets, 0.001)
        return ClassParameters(name, 0.002, None, pair, at_fleets, False, {})

    assert tuner.classes_gain([one("a", 30.0, 20.0), one("b", 80.0, 80.0), one("c", 9.0, None)]) == pytest.approx(0.1)
    assert tuner.classes_gain([]) is None


def test_evaluations_are_counted_until_enough_is_found() -> None:
    space = Space((Knob("n", "number", 1, 50),))

    def evaluate(point: dict[str, float]) -> Evaluation:
        return Evaluation(point, point["n"], point["n"] / 40 - 1)

    counts = [tuner.needed(space, designers.at_random, evaluate, 40, seed) for seed in range(20)]
    assert 1 <= min(counts) < max(counts) <= 50
    assert tuner.needed(space, designers.at_random, evaluate, 41, 1) == 50


def test_stranding_draws_bins_with_enough_samples(tmp_path: Path) -> None:
    """Bins of few samples are skipped, and an amount of DRAM without other bins."""

    def bin_of(cores: float, samples: int) -> dict[str, float]:
        return {
            "scheduled_ratio": cores,
            "samples": samples,
            "stranded_p5": 0.01,
            "stranded_median": 0.02,
            "stranded_p95": 0.05,
            "stranded_most": 0.06,
        }

    data = {
        "results": [
            {"shape": {"dram_per_core_bytes": 2 * 2**30}, "bins": [bin_of(0.5, 4), bin_of(0.75, 5)]},
            {"shape": {"dram_per_core_bytes": 4 * 2**30}, "bins": [bin_of(0.5, 1)]},
        ]
    }
    assert [(title, [row["scheduled_ratio"] for row in bins]) for title, bins in stranding.panels(data)] == [("2.00 GiB per core", [0.75])]
    written = stranding.draw(data, tmp_path / "made" / "figure.svg")
    assert [path.suffix for path in written] == [".svg", ".png"]
    assert ET.parse(written[0]).getroot().tag.endswith("svg")  # noqa: S314 - our own file
    with pytest.raises(ValueError, match="too short to draw"):
        stranding.draw({"results": data["results"][1:]}, tmp_path / "none.svg")


@pytest.mark.parametrize("name", ["tune", "learn"])
def test_the_wheel_has_a_command_of_this_name(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the package installs as `thermocline-tune` and `thermocline-learn` answers with its own name."""
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
    module, function = project["scripts"][f"thermocline-{name}"].split(":")
    monkeypatch.setattr("sys.argv", [f"thermocline-{name}", "--help"])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), function)()
    assert ended.value.code == 0
    assert f"usage: thermocline-{name} " in capsys.readouterr().out
