"""Pond figure 20 over 110 days on which customers change: `make reproduce-pond-shifts`.

The model is trained every night. On some days many customers change at once and new ones appear (`generate vms --shift-day`). The
figures are how many VMs are overpredicted right after, and how long until the nightly training keeps the target again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thermocline.learn import conformal, features, generate, untouched
from thermocline.learn.curves import Point

from .into import keep, merged
from .pond import DRAM, FOREST, TARGET, progress

FIRST_DAY = untouched.TRAINED_DAYS
"""The first day that is predicted."""

QUANTILES = (0.05, 0.1)
"""Two of the five quantiles that `train` tries, for a shorter run."""

ERRORS_BEYOND = 2.0
"""A day is over the target by more than so many standard errors."""

RECOVERED_DAYS = 3
"""A model has recovered on the first of so many days in a row that are not over the target."""

AFTER_DAYS = 7
"""Days that count as right after a shift."""


def main(arguments: Sequence[str]) -> int:
    """Trains, prints, draws and writes the figure."""
    options = _parser().parse_args(arguments)
    if not options.draw:
        keep(options.out, {"figure_20_shifts": _measured(options)})
    report = merged(options.out, {})["figure_20_shifts"]
    sys.stdout.write("\n".join(_table(report)) + "\n")
    for path in _draw(report, options.out.parent / "figures"):
        progress(f"drew {path}")
    return 0


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    spec = generate.Spec(options.vms, options.days, options.customers, tuple(options.shift_day))
    known = features.known(generate.generate(spec, seed=options.seed))
    return _report(untouched.roll(known, range(FIRST_DAY, spec.days), progress, QUANTILES), spec)


def _report(nights: Sequence[untouched.Night], spec: generate.Spec) -> dict[str, Any]:
    """Returns the results of the days."""
    counts = {night.day: len(night.vms) for night in nights}
    figures = _figures(conformal.nightly(nights, TARGET, QUANTILES), counts, spec.shift_days)
    return {"generated": True, "target_ratio": TARGET, "vms": spec.vms, "shift_days": list(spec.shift_days), **figures}


def _figures(daily: Sequence[tuple[int, Point]], counts: Mapping[int, int], shifts: Sequence[int]) -> dict[str, Any]:
    """Returns the days with their results, and what follows each shift."""
    days = [
        {"day": day, "overpredicted_ratio": point.wrong, "untouched_ratio": point.gain, "over": over(point.wrong, counts[day])}
        for day, point in daily
    ]
    after = {day for shift in shifts for day in range(shift, shift + AFTER_DAYS)}
    usual = [one for one in days if one["day"] not in after]
    return {
        "days": days,
        "shifts": [_shift(days, shift) for shift in shifts],
        "other_days": len(usual),
        "other_days_over": sum(one["over"] for one in usual),
        "other_overpredicted_ratio": statistics.fmean(one["overpredicted_ratio"] for one in usual),
        "other_untouched_ratio": statistics.fmean(one["untouched_ratio"] for one in usual),
    }


def over(wrong: float, count: int) -> bool:
    """Returns whether a day with so many VMs is over the target by more than two standard errors."""
    return wrong > TARGET + ERRORS_BEYOND * float(np.sqrt(TARGET * (1 - TARGET) / count))


def _shift(days: Sequence[Mapping[str, Any]], shift: int) -> dict[str, Any]:
    """Returns the results right after a shift. `recovered_days` is `None` if the trace ends before."""
    after = [one for one in days if one["day"] >= shift]
    recovered = None
    for at in range(len(after) - RECOVERED_DAYS + 1):
        if not any(one["over"] for one in after[at : at + RECOVERED_DAYS]):
            recovered = after[at]["day"] - shift
            break
    week = after[:AFTER_DAYS]
    return {
        "day": shift,
        "worst_overpredicted_ratio": max(one["overpredicted_ratio"] for one in week),
        "days_over": sum(one["over"] for one in week),
        "recovered_days": recovered,
        "untouched_before_ratio": statistics.fmean(one["untouched_ratio"] for one in days if shift - AFTER_DAYS <= one["day"] < shift),
        "untouched_after_ratio": statistics.fmean(one["untouched_ratio"] for one in week),
    }


def _table(report: Mapping[str, Any]) -> list[str]:
    """Returns the figures as lines of text."""
    lines = [
        f"target {report['target_ratio']:.0%}, {report['vms']} VMs; days over it by two standard errors",
        f"{report['other_days_over']} of {report['other_days']} days that do not follow a shift are over, "
        f"{report['other_overpredicted_ratio']:.2%} overpredicted, {report['other_untouched_ratio']:.1%} untouched",
    ]
    for one in report["shifts"]:
        recovered = "not recovered" if one["recovered_days"] is None else f"recovered after {one['recovered_days']} days"
        lines.append(
            f"shift on day {one['day']}: {one['days_over']} of {AFTER_DAYS} days over, worst {one['worst_overpredicted_ratio']:.1%}, "
            f"{recovered}; untouched {one['untouched_before_ratio']:.1%} in the week before, "
            f"{one['untouched_after_ratio']:.1%} in the week after"
        )
    return lines


def _draw(report: Mapping[str, Any], to: Path) -> list[Path]:
    """Draws the days, with the shifts as vertical lines."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    figure, axes = pyplot.subplots(figsize=(9, 3.2))
    days = report["days"]
    at = [one["day"] for one in days]
    axes.plot(at, [one["untouched_ratio"] * 100 for one in days], color=FOREST, label="predicted untouched memory, of all")
    axes.plot(at, [one["overpredicted_ratio"] * 100 for one in days], color=DRAM, label="overpredicted VMs")
    axes.axhline(report["target_ratio"] * 100, color="#b3261e", linewidth=1, linestyle="--", label="limit of overpredictions")
    for number, shift in enumerate(report["shift_days"]):
        axes.axvline(shift, color="#9aa7b5", linewidth=1, label="customers change" if number == 0 else "")
    axes.set(xlabel="day", ylabel="%", ylim=(0, None))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("svg", "png"):
        path = to / f"pond20-shifts.{kind}"
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        written.append(path)
    pyplot.close(figure)
    return written


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.shifts", description=__doc__.split("\n\n")[0])
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    made.add_argument("--draw", action="store_true", help="only print and draw an existing report")
    made.add_argument("--vms", type=int, default=55_000, metavar="N", help="number of generated VMs (default: %(default)s)")
    made.add_argument("--days", type=int, default=110, metavar="N", help="days of the generated trace (default: %(default)s)")
    made.add_argument("--customers", type=int, default=200, metavar="N", help="number of customers (default: %(default)s)")
    made.add_argument(
        "--shift-day", type=int, nargs="+", default=[40, 65, 90], metavar="N", help="days on which customers change (default: 40 65 90)"
    )
    made.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the generated data (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
