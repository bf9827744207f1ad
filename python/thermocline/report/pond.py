"""(Pond figures 17 to 20) on generated VMs and workloads, and on the Bitbrains trace: `make reproduce-pond`.

On generated data, the figures show that models, training and Eq. (1) work. They do not show the gain on a real fleet,
because the data were fitted to the published results. The Bitbrains part uses real memory use.
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

from thermocline.learn import commands, conformal, curves, features, generate, insensitive, untouched, workloads
from thermocline.learn.curves import Point

from .into import keep, merged

FOREST, DRAM, MEMORY, STATIC = "#1f77b4", "#e08a00", "#9aa7b5", "#9aa7b5"

BUDGETS = tuple(share / 1000 for share in (0, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 17.5, 20, 25, 30, 40, 50, 60, 80, 100))
"""Limits of scheduling mispredictions for which figure 18 is solved."""

TARGET = 0.04
"""Limit of overpredictions for the nightly model of figure 20."""

LATENCIES = tuple(f"{latency:.0%}" for latency in workloads.LATENCIES)

PUBLISHED_17 = ((0.30, 0.02),)
"""Insensitive workloads and false positives of the forest at 182 % (Pond section 6.4.1)."""
PUBLISHED_18: Mapping[str, tuple[float, float]] = {"182%": (0.44, 0.02), "222%": (0.35, 0.02)}
"""DRAM on pools and mispredictions of both models together (Pond section 6.4.3)."""
PUBLISHED_19 = ((0.20, 0.025), (0.25, 0.04))
"""Untouched memory and overpredictions of the model (Pond section 6.4.2)."""
PUBLISHED_19_STATIC = ((0.20, 0.12),)
"""Untouched memory and overpredictions of a static share."""

Progress = untouched.Progress


@dataclasses.dataclass(frozen=True, slots=True)
class Untouched:
    """The data of figures 19 and 20."""

    model: Sequence[Point]
    static: Sequence[Point]
    daily: Sequence[tuple[int, Point]]
    sliced: Sequence[Point]
    """The model's curve if memory is assigned in whole GiB."""
    vms: int
    fit: Sequence[generate.Fitted]


@dataclasses.dataclass(frozen=True, slots=True)
class Insensitive:
    """The data of figure 17 at one latency."""

    curves: Mapping[str, Sequence[Point]]
    half_interval: Sequence[float]


def untouched_figures(spec: generate.Spec, nights: int, seed: int, progress: Progress) -> Untouched:
    """Trains a model for each of the last nights of generated VMs."""
    vms = generate.generate(spec, seed=seed)
    rolled = untouched.roll(features.known(vms), range(spec.days - nights, spec.days), progress)
    return Untouched(
        untouched.curve(rolled),
        untouched.static_curve(rolled),
        conformal.nightly(rolled, TARGET, untouched.QUANTILES),
        untouched.curve(untouched.nights_in_slices(rolled)),
        sum(len(night.vms) for night in rolled),
        generate.fit(vms),
    )


def insensitive_figures(of: workloads.Workloads, latency: float, folds: int, seed: int, progress: Progress) -> Insensitive:
    """Validates the forest and the heuristics at one latency."""
    report = insensitive.validate(of, latency, seed=seed, progress=progress, folds=folds)
    half = [float(one) for one in insensitive.confidence(report["RandomForest"])]
    return Insensitive({name: insensitive.curve(of_name) for name, of_name in report.items()}, half)


def numbers_17(of: Mapping[float, Insensitive], fit: Sequence[generate.Fitted]) -> dict[str, Any]:
    """Returns the data of figure 17: insensitive workloads at given false positives (Pond: 30 % at 2 % and 182 %)."""
    report: dict[str, Any] = {"generated": True, "fit": [dataclasses.asdict(one) for one in fit]}
    for latency, one in of.items():
        limits = {f"at_{limit:.1%}_false_positives": limit for limit in (0.005, 0.01, 0.02, 0.05)}
        report[f"latency_{latency:.0%}"] = {
            name: {key: curves.gain_at(curve, limit).gain for key, limit in limits.items()} | {"curve": _pairs(curve)}
            for name, curve in one.curves.items()
        } | {"half_interval": [round(half, 6) for half in one.half_interval]}
    return report


def numbers_18(insensitive_of: Mapping[float, Insensitive], untouched_of: Untouched) -> dict[str, Any]:
    """Returns the data of figure 18: DRAM on the pool by scheduling mispredictions (Pond: 44 % and 35 % at 2 %)."""
    assumed = {
        "overpredicted_and_slow_ratio": curves.OVERPREDICTED_AND_SLOW,
        "with_history_ratio": curves.WITH_HISTORY,
        "mitigated_max_ratio": curves.MITIGATED_MAX,
    }
    report: dict[str, Any] = {"generated": True, "assumed": assumed}
    for latency, one in insensitive_of.items():
        forest = one.curves["RandomForest"]
        literal = curves.solve(forest, untouched_of.model, 0.02)
        report[f"latency_{latency:.0%}"] = {
            "pool_ratio_at_2%": curves.solve_for_slow(forest, untouched_of.model, 0.02).pool,
            "pool_ratio_at_2%_without_mitigation": curves.solve_for_slow(forest, untouched_of.model, 0.02 - curves.MITIGATED_MAX).pool,
            "equation_1_at_tp_98%": {"insensitive_ratio": literal.insensitive.gain, "false_positive_ratio": literal.insensitive.wrong,
                                     "untouched_ratio": literal.untouched.gain, "overpredicted_ratio": literal.untouched.wrong,
                                     "pool_ratio": literal.pool},
            "curve": pool_curve(forest, untouched_of.model),
            "insensitive_alone": pool_curve(forest, []),
            "untouched_alone": pool_curve([], untouched_of.model),
        }  # fmt: skip
    return report


def pool_curve(first: Sequence[Point], second: Sequence[Point]) -> list[list[float]]:
    """Returns the limit of scheduling mispredictions and the largest share of DRAM on the pool, for each limit."""
    return [[budget, round(curves.solve_for_slow(first, second, budget).pool, 6)] for budget in BUDGETS]


def numbers_19(of: Untouched) -> dict[str, Any]:
    """Returns the data of figure 19: overpredictions by untouched memory (Pond: 2.5 % and 12 % at 20 %, 4 % at 25 %)."""
    model, static = _wrong_at(of.model, 0.2), _wrong_at(of.static, 0.2)
    return {
        "generated": True,
        "vms": of.vms,
        "fit": [dataclasses.asdict(one) for one in of.fit],
        "overpredicted_at_20%_untouched": model,
        "static_overpredicted_at_20%_untouched": static,
        "times_better_at_20%_untouched": static / model if static and model else None,
        "overpredicted_at_25%_untouched": _wrong_at(of.model, 0.25),
        "untouched_at_4%_overpredicted": curves.gain_at(of.model, 0.04).gain,
        "model": _pairs(of.model),
        "model_in_slices": _pairs(of.sliced),
        "static": _pairs(of.static),
    }


def _wrong_at(curve: Sequence[Point], gain: float) -> float | None:
    """Returns the error ratio at a gain, or `None` if the curve does not reach it."""
    try:
        return curves.wrong_at(curve, gain)
    except ValueError:
        return None


def numbers_20(of: Untouched) -> dict[str, Any]:
    """Returns the data of figure 20: the result of each day with the setting chosen from the days before it."""
    days = [point for _, point in of.daily]
    return {
        "generated": True,
        "target_ratio": TARGET,
        "mean_overpredicted_ratio": statistics.fmean(point.wrong for point in days),
        "mean_untouched_ratio": statistics.fmean(point.gain for point in days),
        "worst_overpredicted_ratio": max(point.wrong for point in days),
        "days": [
            {"day": day, "overpredicted_ratio": point.wrong, "untouched_ratio": point.gain, "quantile": point.setting}
            for day, point in of.daily
        ],
    }


def _pairs(curve: Sequence[Point]) -> list[list[float]]:
    """Returns gain and error ratio of each point."""
    return [[round(point.gain, 6), round(point.wrong, 6)] for point in curve]


def draw(report: Mapping[str, Any], to: Path) -> list[Path]:
    """Draws figures 17 to 20, and Bitbrains if present, as SVG and PNG, with the published values as crosses."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    drawn = {"pond17": _figure_17(pyplot, report["figure_17"]), "pond18": _figure_18(pyplot, report["figure_18"])}
    drawn |= {"pond19": _figure_19(pyplot, report["figure_19"]), "pond20": _figure_20(pyplot, report["figure_20"])}
    if "bitbrains" in report:
        drawn["pond-bitbrains"] = _figure_bitbrains(pyplot, report["bitbrains"])
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in drawn.items():
        for kind in ("svg", "png"):
            path = to / f"{name}.{kind}"
            # Without a date, equal data give an identical file.
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
            written.append(path)
        pyplot.close(figure)
    return written


def _line(axes: Any, pairs: Sequence[Sequence[float]], label: str, colour: str, **more: Any) -> None:
    axes.plot([x * 100 for x, _ in pairs], [y * 100 for _, y in pairs], label=label, color=colour, **more)


def _published(axes: Any, points: Sequence[Sequence[float]], colour: str) -> None:
    """Draws published points in the colour of their curve."""
    _line(axes, points, "", colour, marker="x", markersize=8, markeredgewidth=2, linestyle="", zorder=3)


def _legend(axes: Any, **where: Any) -> None:
    """Adds a legend of the curves and of the crosses."""
    axes.plot([], [], "x", color="#5f6b7a", markersize=8, markeredgewidth=2, label="published, in the curve's colour")
    handles, labels = axes.get_legend_handles_labels()
    named = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label]
    axes.legend(*zip(*named, strict=True), frameon=False, loc="upper left", **where)


def _target(axes: Any, at: float, text: str) -> None:
    """Draws a dashed line with a label above its left end."""
    axes.axhline(at, color="#b3261e", linewidth=1, linestyle="--")
    axes.annotate(text, (0, at), xycoords=("axes fraction", "data"), textcoords="offset points", xytext=(3, 3), color="#b3261e", fontsize=8)


def _figure_17(pyplot: Any, report: Mapping[str, Any]) -> Any:
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axes, latency in zip(both, LATENCIES, strict=True):
        of = report[f"latency_{latency}"]
        for name, label, colour in (
            ("RandomForest", "random forest", FOREST),
            ("DRAM_Bound", "DRAM bound", DRAM),
            ("Memory_Bound", "memory bound", MEMORY),
        ):
            if name in of:
                _line(axes, of[name]["curve"], label, colour)
        pairs, half = of["RandomForest"]["curve"], of.get("half_interval", [])
        if half:
            low, high = ([max(0.0, y + sign * h) * 100 for (_, y), h in zip(pairs, half, strict=True)] for sign in (-1, 1))
            axes.fill_between([x * 100 for x, _ in pairs], low, high, color=FOREST, alpha=0.2, linewidth=0)
        _target(axes, 2, "target")
        axes.set(xlabel="marked as insensitive, % of workloads", xlim=(0, 60), ylim=(0, 12), title=f"{latency} of local latency")
    _published(both[0], PUBLISHED_17, FOREST)
    both[0].set_ylabel("false positives, % of workloads")
    _legend(both[1], bbox_to_anchor=(1, 1))
    return figure


def _figure_18(pyplot: Any, report: Mapping[str, Any]) -> Any:
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axes, latency in zip(both, LATENCIES, strict=True):
        of = report[f"latency_{latency}"]
        for key, label, colour in (
            ("curve", "both models", FOREST),
            ("untouched_alone", "untouched memory only", DRAM),
            ("insensitive_alone", "insensitivity only", MEMORY),
        ):
            _line(axes, [(pool, wrong) for wrong, pool in of[key]], label, colour, marker="o", markersize=3)
        _target(axes, 2, "target")
        _published(axes, [PUBLISHED_18[latency]], FOREST)
        axes.set(xlabel="DRAM on the pool, %", xlim=(0, 70), ylim=(0, 6), title=f"{latency} of local latency")
    both[0].set_ylabel("scheduling mispredictions, % of VMs")
    _legend(both[1], bbox_to_anchor=(1, 1))
    return figure


def _figure_19(pyplot: Any, report: Mapping[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    _line(axes, report["model"], "model of the previous night", FOREST, marker="o", markersize=3)
    _line(axes, report["model_in_slices"], "the same in whole GiB", FOREST, linestyle=":")
    _line(axes, report["static"], "static share", STATIC, marker="o", markersize=3)
    _published(axes, PUBLISHED_19, FOREST)
    _published(axes, PUBLISHED_19_STATIC, STATIC)
    axes.set(xlabel="predicted untouched memory, % of all", ylabel="overpredicted, % of VMs", xlim=(0, 40), ylim=(0, 30))
    _legend(axes)
    return figure


def _figure_20(pyplot: Any, report: Mapping[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    days = [row["day"] for row in report["days"]]
    axes.plot(days, [row["untouched_ratio"] * 100 for row in report["days"]], color=FOREST, marker="o", markersize=3)
    axes.plot(days, [row["overpredicted_ratio"] * 100 for row in report["days"]], color=DRAM, marker="o", markersize=3)
    _target(axes, report["target_ratio"] * 100, "limit of overpredictions")
    last = report["days"][-1]
    for value, text in (
        (last["untouched_ratio"], "predicted untouched\nmemory, of all"),
        (last["overpredicted_ratio"], "\noverpredicted VMs"),
    ):
        axes.annotate(text, (days[-1], value * 100), textcoords="offset points", xytext=(8, 0), va="center", annotation_clip=False)
    most = max(max(row["untouched_ratio"], row["overpredicted_ratio"]) for row in report["days"])
    axes.set(xlabel="day", ylabel="%", ylim=(0, most * 115))
    return figure


def _figure_bitbrains(pyplot: Any, report: Mapping[str, Any]) -> Any:
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axes, name in zip(both, ("day", "week"), strict=True):
        rows = sorted(report[name]["settings"], key=lambda row: row["untouched_ratio"])
        _line(axes, [(row["untouched_ratio"], row["overpredicted_ratio"]) for row in rows], "model", FOREST, marker="o", markersize=3)
        _line(
            axes,
            [(row["untouched_ratio"], row["static_overpredicted_ratio"]) for row in rows],
            "static share",
            STATIC,
            marker="o",
            markersize=3,
        )
        axes.set(xlabel="predicted untouched memory, % of all", title=f"a VM's next {name}", ylim=(0, None))
    both[0].set_ylabel("overpredicted, % of VMs")
    both[0].legend(frameon=False, loc="upper left")
    return figure


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, validates and solves. Writes the data of each figure as soon as it is complete."""
    report: dict[str, Any] = {}
    if options.bitbrains:
        report["bitbrains"], _ = commands.bitbrains_report(options.bitbrains, progress)
        keep(options.out, report)
    of = workloads.generate(options.workloads, seed=options.seed)
    figures_17 = {latency: insensitive_figures(of, latency, options.folds, options.seed, progress) for latency in workloads.LATENCIES}
    report["figure_17"] = numbers_17(figures_17, workloads.fit(of))
    keep(options.out, report)
    figures_19 = untouched_figures(generate.Spec(vms=options.vms, days=options.days), options.nights, options.seed, progress)
    report |= {"figure_18": numbers_18(figures_17, figures_19), "figure_19": numbers_19(figures_19), "figure_20": numbers_20(figures_19)}
    keep(options.out, report)
    return report


def main(arguments: Sequence[str]) -> int:
    """Computes, draws and writes the figures."""
    options = _parser().parse_args(arguments)
    report: dict[str, Any] = merged(options.out, {}) if options.draw else _measured(options)
    written = draw(report, options.out.parent / "figures")
    sys.stdout.write(json.dumps(_headlines(report), indent=1) + "\n")
    progress(f"figures in {options.out}; drew {', '.join(str(path) for path in written)}")
    return 0


def progress(text: str) -> None:
    """Prints progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def _headlines(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures without their curves."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(one) for key, one in value.items() if not isinstance(one, list)}
        return value

    return {key: short(value) for key, value in report.items()}


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.pond", description="Pond figures 17 to 20, and the Bitbrains trace.")
    made.add_argument(
        "--out",
        type=Path,
        default=Path("target/reproduce/pond.json"),
        metavar="FILE",
        help="report file; other figures in it are kept (default: %(default)s)",
    )
    made.add_argument("--draw", action="store_true", help="only draw the figures of an existing report")
    made.add_argument("--bitbrains", type=Path, metavar="FILE.parquet", help="the Bitbrains trace (default: skip that part)")
    made.add_argument("--vms", type=int, default=60_000, metavar="N", help="number of generated VMs (default: %(default)s)")
    made.add_argument("--days", type=int, default=28, metavar="N", help="days of the generated trace (default: %(default)s)")
    made.add_argument(
        "--nights",
        type=_nights,
        default=14,
        metavar="N",
        help="number of nights to train for, at the end of the trace (default: %(default)s)",
    )
    made.add_argument("--workloads", type=int, default=158, metavar="N", help="number of generated workloads (default: %(default)s)")
    made.add_argument(
        "--folds", type=int, default=insensitive.FOLDS, metavar="N", help="number of splits in the validation (default: %(default)s)"
    )
    made.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the generated data (default: %(default)s)")
    return made


def _nights(text: str) -> int:
    least = untouched.CHOICE_DAYS + 1
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is below {least}: figure 20 needs {least - 1} nights to choose its first setting")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
