"""(Pond figures 3 and 21) on a VM trace: `make reproduce-pond-pool`, and with trained models `make reproduce-pond`.

The savings are computed by `thermocline pool simulate`; this module runs it, adds the published values, and draws the
figures. Other figures in the report file are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.cluster.kernel import Killed, Refused
from thermocline.cluster.simulation import Each, Simulation, sweep

from .into import keep

POOL_SIZES = (2, 4, 8, 16, 32, 64)
"""Numbers of sockets that share a pool, as in both figures."""

MODELS = "models"
"""The memory policy that uses trained models."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """The configurations of a figure, for all pool sizes."""

    memory: tuple[str, ...]
    latency: tuple[str, ...]
    more: tuple[str, ...] = ()


FIGURE_3 = Question(("static=10%", "static=30%", "static=50%"), ("64ns",))
FIGURE_21 = Question(("static=15%", "pond"), ("64ns", "140ns"), ("--margin", "5%", "--confirm"))

_FIGURE_21 = {"pond, 64 ns": {16: 0.09}, "pond, 140 ns": {16: 0.07}, "static=15%": {16: 0.03}}

PUBLISHED: Mapping[str, Mapping[str, Mapping[int, float]]] = {
    "figure_3": {"static=50%": {32: 0.12, 64: 0.13}},
    "figure_21": _FIGURE_21,
    "figure_21_models": _FIGURE_21,
}
"""Savings in the paper's text (Pond sections 3.1 and 6.5), by curve and sockets."""

TASKS = 24
"""Number of tasks of a figure on a cluster."""

LABELS: Mapping[str, str] = {
    "static=10%": "10 % of every VM",
    "static=15%": "15 % of every VM",
    "static=30%": "30 % of every VM",
    "static=50%": "50 % of every VM",
    "pond, 64 ns": "Pond at 182 %, published accuracy",
    "pond, 140 ns": "Pond at 222 %, published accuracy",
    "models, 64 ns": "Pond at 182 %, trained models",
    "models, 140 ns": "Pond at 222 %, trained models",
}
"""Labels of curves in plots, with latencies as multiples of local latency."""

Report = dict[str, Any]


def simulate(program: str, trace: Path, seed: int, options: Question, each: Each | None = None) -> Report:
    """Runs the simulator, on this machine or by `each` on a cluster. Adds the command and the elapsed time to its result.

    Raises:
        SystemExit: the simulator failed, with its message.
    """
    question = ("--seed", str(seed), *options.more)
    simulation = Simulation(str(trace), POOL_SIZES, options.memory, options.latency, program, question)
    began = time.monotonic()
    try:
        result = sweep(simulation, TASKS, each) if each else sweep(simulation)
    except (Refused, Killed) as error:
        raise SystemExit(f"{' '.join([program, *simulation.arguments(simulation.all())])} failed: {error}") from error
    return result | {"command": simulation.arguments(simulation.all()), "elapsed_seconds": time.monotonic() - began}


def curves(result: Report) -> dict[str, list[Report]]:
    """Returns rows by curve, ordered by pool size. A static share saves the same at every latency and is one curve."""
    found: dict[str, dict[int, Report]] = {}
    for row in result["results"]:
        name = row["memory"] if row["memory"].startswith("static") else f"{row['memory']}, {row['added_ns']} ns"
        found.setdefault(name, {}).setdefault(row["pool_sockets"], row)
    return {name: [row for _, row in sorted(rows.items())] for name, rows in found.items()}


def figure(result: Report, published: Mapping[str, Mapping[int, float]]) -> Report:
    """Returns the data of one figure for the report."""
    return {
        "command": result["command"],
        "elapsed_seconds": result["elapsed_seconds"],
        "events": result["events"],
        "trace": result["origin"],
        "generated": result["generated"],
        "vms": result["vms"],
        "begins": result["begins"],
        "assumed": result["assumed"],
        "rejected": result["rejected"],
        "clusters": result["clusters"],
        "servers": result["servers"],
        "spanning_ratio": result["spanning_ratio"],
        "curves": {name: [_point(row) for row in rows] for name, rows in curves(result).items()},
        "prediction_quality": {
            name: rows[0]["prediction_quality"] for name, rows in curves(result).items() if rows[0]["prediction_quality"]
        },
        "published": {name: {str(sockets): saved for sockets, saved in points.items()} for name, points in published.items()},
    }


def with_models(models: Path, counters: Path | None) -> Question:
    """Returns figure 21 with trained models in addition to the published accuracy, over the VMs that models can predict."""
    counted = ("--counters", str(counters)) if counters else ()
    more = (*FIGURE_21.more, "--models", str(models), *counted)
    return dataclasses.replace(FIGURE_21, memory=(*FIGURE_21.memory, MODELS), more=more)


def _point(row: Report) -> Report:
    by_cluster = row["saved_ratio_by_cluster"]
    point = {
        name: row[name]
        for name in ("pool_sockets", "pool_ratio", "saved_ratio", "online_saved_ratio", "uniform_saved_ratio", "mispredicted_ratio")
    }
    point |= {name: row["measured"][name] for name in ("started", "moved", "fell_back", "mitigated", "left_slow")}
    point |= {"least_cluster": by_cluster[0], "median_cluster": by_cluster[len(by_cluster) // 2], "most_cluster": by_cluster[-1]}
    if row["confirmed"]:
        again = row["confirmed"]
        point["released_faster_than_1_gib_per_s_ratio"] = again["starts_above_1_gib_per_s"] / again["started"]
        point["released_faster_than_10_gib_per_s_ratio"] = again["starts_above_10_gib_per_s"] / again["started"]
        point["release_gib_per_s_max"] = again["release_gib_per_s_max"]
        point["moved_when_bounded"] = again["moved"] + again["fell_back"]
    return point


def draw(report: Report, to: Path) -> list[Path]:
    """Draws a figure as SVG and PNG, with the published values as crosses in the colour of their curve."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    drawn, axes = pyplot.subplots(figsize=(7, 3.5))
    for curve, points in report["curves"].items():
        dashed = "--" if curve.startswith(MODELS) else "-"
        sockets, saved = [point["pool_sockets"] for point in points], [point["saved_ratio"] * 100 for point in points]
        (line,) = axes.plot(sockets, saved, dashed, marker="o", markersize=4, label=LABELS.get(curve, curve))
        published = report["published"].get(curve, {})
        if published:
            sockets, saved = [int(size) for size in published], [share * 100 for share in published.values()]
            axes.plot(sockets, saved, "x", color=line.get_color(), markersize=9, markeredgewidth=2)
    axes.plot([], [], "x", color="#5f6b7a", markersize=9, markeredgewidth=2, label="published, in the curve's colour")
    axes.axhline(0, color="#9aa7b5", linewidth=1)
    axes.set(xlabel="CPU sockets that share a pool", ylabel="DRAM saved against\nall memory local, %", xscale="log")
    axes.set_xticks(POOL_SIZES, labels=[str(size) for size in POOL_SIZES])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    to.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("svg", "png"):
        path = to.with_suffix(f".{kind}")
        # Without a date, equal data give an identical file.
        drawn.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        written.append(path)
    pyplot.close(drawn)
    return written


def table(report: Report) -> str:
    """Returns the savings of a figure by curve and pool size as text."""
    sizes = [point["pool_sockets"] for point in next(iter(report["curves"].values()))]
    lines = [f"{'sockets':<18}" + "".join(f"{size:>8}" for size in sizes)]
    for curve, points in report["curves"].items():
        lines.append(f"{curve:<18}" + "".join(f"{point['saved_ratio']:>8.1%}" for point in points))
        if curve in report["published"]:
            published = report["published"][curve]
            lines.append(
                f"{'  published':<18}" + "".join(f"{published[str(size)]:>8.1%}" if str(size) in published else " " * 8 for size in sizes)
            )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Runs the simulator, writes and draws the figures, and prints the savings."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.pooling", description="Pond figures 3 and 21 on a VM trace.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help="a VM trace written by `thermocline pool import` or `pool generate`"
    )
    made.add_argument("--seed", type=int, default=1, help="seed of the simulation (default: %(default)s)")
    made.add_argument("--out", type=Path, default=Path("target/reproduce/pond.json"), help="report file (default: %(default)s)")
    made.add_argument("--plots", action="store_true", help="draw the figures beside the report file; requires matplotlib")
    made.add_argument("--models", type=Path, metavar="DIR", help="add figure 21 with these trained models (`learn train nights`)")
    made.add_argument("--counters", type=Path, metavar="FILE", help="samples for the VMs' counters (`learn generate workloads`)")
    made.add_argument("--cluster", metavar="ADDRESS", help="address of a Ray cluster to simulate on; `local` starts one on this machine")
    made.add_argument(
        "more", nargs="*", metavar="ARGUMENT", help="arguments of `thermocline pool simulate`, after --, such as --clusters 100"
    )
    options = made.parse_args(arguments)
    figures = {"figure_3": FIGURE_3, "figure_21": FIGURE_21}
    if options.models:
        figures["figure_21_models"] = with_models(options.models, options.counters)
    with _each(options.cluster) as each:
        for name, question in figures.items():
            with_more = dataclasses.replace(question, more=(*question.more, *options.more))
            _report(name, figure(simulate(options.program, options.trace, options.seed, with_more, each), PUBLISHED[name]), options)
    print(f"report in {options.out}")
    return 0


@contextlib.contextmanager
def _each(address: str | None) -> Iterator[Each | None]:
    """Yields the function that runs parts: `None` for this machine, or one for a Ray cluster."""
    if address is None:
        yield None
        return
    from thermocline.cluster import on_ray

    with on_ray.connected(None if address == "local" else address):
        yield on_ray.simulate


def _report(name: str, result: Report, options: argparse.Namespace) -> None:
    keep(options.out, {name: result})
    print(f"{name}: {result['events']:,} events in {result['elapsed_seconds']:.0f} s\n{table(result)}\n")
    if options.plots:
        draw(result, options.out.parent / "figures" / f"pond{name.removeprefix('figure_').replace('_', '-')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
