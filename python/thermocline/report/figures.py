"""(SDFM figures 5, 6 and 7) on a generated fleet, before and after tuning: `make reproduce-figures`.

The data are computed by the model (`thermocline model --detail`); this module only combines and draws them. The parameters
before and after are those that `report.tuner` found.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.tune.parameters import pair_texts
from thermocline.tune.program import Program, Source

OFF, HAND, TUNED = "off", "hand-tuned", "autotuned"

STAGES = (1.0, 2.5, 4.0, 5.5)
"""Days at which the rollout of the hand-tuned parameters begins and ends (A, B), and of the autotuned ones (C, D)."""

_COLOURS = {HAND: "#e08a00", TUNED: "#1f77b4"}


@dataclasses.dataclass(frozen=True, slots=True)
class Hour:
    """The far memory of a cluster in one hour."""

    cluster: str
    unix_seconds: int
    coverage: float
    cold_pages: float


@dataclasses.dataclass(frozen=True, slots=True)
class Detail:
    """The results of one fleet with one set of parameters."""

    hours: tuple[Hour, ...]
    machines: Mapping[str, tuple[float, ...]]
    """Coverage of each machine, by cluster."""
    jobs: tuple[float, ...]
    """Percentiles 1, 2, ... of the jobs' promotion rates, without the last if it is unbounded."""


def detail(result: Mapping[str, Any]) -> Detail:
    """Parses the details that the model prints."""
    rows = result["detail"]
    hours = tuple(Hour(row["cluster"], int(row["unix_seconds"]), row["coverage_ratio"], row["cold_pages"]) for row in rows["hours"])
    machines: dict[str, list[float]] = {}
    for row in rows["machines"]:
        machines.setdefault(row["cluster"], []).append(row["coverage_ratio"])
    rates = tuple(row["rate_ratio_per_min"] for row in rows["jobs"] if row["rate_ratio_per_min"] is not None)
    return Detail(hours, {name: tuple(sorted(of)) for name, of in sorted(machines.items())}, rates)


def over_time(settings: Mapping[str, Detail], stages: Sequence[float] = STAGES) -> list[tuple[float, float]]:
    """Returns day and coverage of the fleet while two sets of parameters are rolled out, cluster by cluster."""
    clusters = sorted({hour.cluster for hour in settings[HAND].hours})
    start = min(hour.unix_seconds for hour in settings[HAND].hours)
    stored: dict[int, float] = {}
    cold: dict[int, float] = {}
    for name, of in settings.items():
        for hour in of.hours:
            day = (hour.unix_seconds - start) / 86_400
            place = (clusters.index(hour.cluster) + 1) / len(clusters)
            if name == setting_of(day, place, stages):
                stored[hour.unix_seconds] = stored.get(hour.unix_seconds, 0.0) + hour.coverage * hour.cold_pages
            # The memory is the same with all parameters, so it is counted once.
            if name == HAND:
                cold[hour.unix_seconds] = cold.get(hour.unix_seconds, 0.0) + hour.cold_pages
    return [((hour - start) / 86_400, stored.get(hour, 0.0) / pages) for hour, pages in sorted(cold.items()) if pages]


def setting_of(day: float, place: float, stages: Sequence[float]) -> str:
    """Returns the setting of a cluster, which a rollout reaches after the share `place` of its duration."""
    a, b, c, d = stages
    if day >= c + place * (d - c):
        return TUNED
    return HAND if day >= a + place * (b - a) else OFF


def numbers(settings: Mapping[str, Detail], series: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Returns the data of the figures."""

    def mean(first: float, last: float) -> float:
        return statistics.fmean(share for day, share in series if first <= day < last)

    end = max(day for day, _ in series)
    result: dict[str, Any] = {
        "generated": True,
        "figure_5": {
            "between_b_and_c": mean(STAGES[1], STAGES[2]),
            "after_d": mean(STAGES[3], end),
            "days": [[round(day, 4), round(share, 6)] for day, share in series],
        },
        "figure_6": {name: _quartiles(of) for name, of in settings[TUNED].machines.items()},
        "figure_7": {},
    }
    for name, of in settings.items():
        at = {f"p{percent}": of.jobs[percent - 1] for percent in (25, 50, 75, 90, 98) if percent <= len(of.jobs)}
        result["figure_7"][name] = at
    return result


def _quartiles(shares: Sequence[float]) -> dict[str, float]:
    def at(quarters: int) -> float:
        return shares[(len(shares) - 1) * quarters // 4]

    return {"machines": len(shares), "least": at(0), "lower_quartile": at(1), "median": at(2), "upper_quartile": at(3), "most": at(4)}


def draw(settings: Mapping[str, Detail], series: Sequence[tuple[float, float]], to: Path) -> list[Path]:
    """Draws the three figures, each as SVG and PNG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    figures = {"figure5": _figure_5(pyplot, series), "figure6": _figure_6(pyplot, settings[TUNED]), "figure7": _figure_7(pyplot, settings)}
    written = []
    for name, figure in figures.items():
        for kind in ("svg", "png"):
            path = to / f"{name}.{kind}"
            # Without a date, equal data give an identical file.
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
            written.append(path)
        pyplot.close(figure)
    return written


def _figure_5(pyplot: Any, series: Sequence[tuple[float, float]]) -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 3))
    axes.plot([day for day, _ in series], [share * 100 for _, share in series], color=_COLOURS[TUNED], linewidth=1.5)
    for name, day in zip("ABCD", STAGES, strict=True):
        axes.axvline(day, color="#9aa7b5", linewidth=1, linestyle=":")
        axes.annotate(name, (day, 1.0), xycoords=("data", "axes fraction"), textcoords="offset points", xytext=(0, 3), ha="center")
    axes.set(xlabel="day", ylabel="cold memory coverage, %", ylim=(0, None))
    return figure


def _figure_6(pyplot: Any, tuned: Detail) -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 3))
    shares = [[share * 100 for share in of] for of in tuned.machines.values()]
    axes.boxplot(shares, whis=(0, 100), medianprops={"color": _COLOURS[TUNED]})
    axes.set(xlabel="cluster", ylabel="coverage of its machines, %", ylim=(0, None))
    return figure


def _figure_7(pyplot: Any, settings: Mapping[str, Detail]) -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for name, of in settings.items():
        rates = [rate * 100 for rate in of.jobs]
        axes.step(rates, range(1, len(rates) + 1), where="post", label=name, color=_COLOURS[name])
    axes.axvline(0.2, color="#b3261e", linewidth=1, linestyle="--")
    axes.annotate("objective", (0.2, 5), textcoords="offset points", xytext=(-4, 0), ha="right", color="#b3261e")
    axes.set(xlabel="promotions, % of the working set per minute", ylabel="jobs, %", xscale="log", ylim=(0, 100))
    axes.set_xticks([0.05, 0.1, 0.2], labels=["0.05", "0.1", "0.2"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left")
    return figure


def main(arguments: Sequence[str]) -> int:
    """Runs the model with both sets of parameters, draws the figures, and prints their data."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.figures", description="SDFM figures 5, 6 and 7 on a generated fleet.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument(
        "--tuner", type=Path, default=Path("target/reproduce/tuner.json"), help="the output of reproduce-tuner (default: %(default)s)"
    )
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/figures"), metavar="DIR", help="output directory (default: %(default)s)"
    )
    made.add_argument("--jobs", type=int, metavar="N", help="jobs that run at any time (default: as many as reproduce-tuner had)")
    options = made.parse_args(arguments)
    try:
        tuner = json.loads(options.tuner.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"{options.tuner} does not exist; run `make reproduce-tuner` first", file=sys.stderr)
        return 1
    week = Source(jobs=options.jobs or tuner["jobs"], days=tuner["days"], seed=tuner["weeks"][0]["seed"])
    hand = pair_texts(tuner["hand"]["percentile"], tuner["hand"]["warmup_seconds"])
    program = Program(options.program)
    settings = {}
    for name, values in ((HAND, hand), (TUNED, tuner["tuning_week"]["parameters"])):
        print(f"{name}: {week}", file=sys.stderr, flush=True)
        settings[name] = detail(program.detail(week, values))
    series = over_time(settings)
    options.out.mkdir(parents=True, exist_ok=True)
    written = draw(settings, series, options.out)
    (options.out / "figures.json").write_text(json.dumps(numbers(settings, series), indent=1) + "\n", encoding="utf-8")
    result = numbers(settings, series)
    result["figure_5"].pop("days")
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    print("drew " + ", ".join(str(path) for path in written), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
