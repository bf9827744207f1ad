"""004 figures 3 and 21 on a VM trace: `make reproduce-pond-pool`, and with trained models `make reproduce-pond`.

What is saved comes from `thermocline pool simulate`; here it is only asked for, put beside what is published, and drawn.
The report keeps what others have written into its file: `make reproduce-pond` has more figures.
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
"""Sockets that share a pool, as in both figures."""

MODELS = "models"
"""The memory policy that asks trained models."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is simulated for a figure, for all pool sizes."""

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
"""Savings that the paper's text gives (sections 3.1 and 6.5), by curve and sockets."""

TASKS = 24
"""Tasks that a figure is cut into on a cluster."""

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
"""What curves are called where they are drawn: latencies as multiples of local."""

Report = dict[str, Any]


def simulate(program: str, trace: Path, seed: int, asked: Question, each: Each | None = None) -> Report:
    """Runs the simulator, on this machine or, by `each`, on a cluster; adds how long it took, which it does not tell itself.

    Raises:
        SystemExit: the simulator refused; with what it said.
    """
    question = ("--seed", str(seed), *asked.more)
    simulation = Simulation(str(trace), POOL_SIZES, asked.memory, asked.latency, program, question)
    began = time.monotonic()
    try:
        told = sweep(simulation, TASKS, each) if each else sweep(simulation)
    except (Refused, Killed) as error:
        raise SystemExit(f"{' '.join([program, *simulation.arguments(simulation.all())])} failed: {error}") from error
    return told | {"command": simulation.arguments(simulation.all()), "elapsed_seconds": time.monotonic() - began}


def curves(told: Report) -> dict[str, list[Report]]:
    """Rows by curve, in the order of pool sizes. A static share saves the same at every latency, and is told once."""
    found: dict[str, dict[int, Report]] = {}
    for row in told["results"]:
        name = row["memory"] if row["memory"].startswith("static") else f"{row['memory']}, {row['added_ns']} ns"
        found.setdefault(name, {}).setdefault(row["pool_sockets"], row)
    return {name: [row for _, row in sorted(rows.items())] for name, rows in found.items()}


def figure(told: Report, published: Mapping[str, Mapping[int, float]]) -> Report:
    """One figure's part of the report."""
    return {
        "command": told["command"],
        "elapsed_seconds": told["elapsed_seconds"],
        "events": told["events"],
        "trace": told["origin"],
        "generated": told["generated"],
        "vms": told["vms"],
        "begins": told["begins"],
        "assumed": told["assumed"],
        "rejected": told["rejected"],
        "clusters": told["clusters"],
        "servers": told["servers"],
        "spanning_ratio": told["spanning_ratio"],
        "curves": {name: [_point(row) for row in rows] for name, rows in curves(told).items()},
        "prediction_quality": {name: rows[0]["prediction_quality"] for name, rows in curves(told).items() if rows[0]["prediction_quality"]},
        "published": {name: {str(sockets): saved for sockets, saved in points.items()} for name, points in published.items()},
    }


def with_models(models: Path, counters: Path | None) -> Question:
    """Figure 21 with trained models beside predictions as good as published, over the VMs that the models can be asked about."""
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
    """Draws a figure's curves, with what is published as crosses of the same colour, as SVG and PNG beside each other."""
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
        # Without a date, the same numbers give the same file.
        drawn.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        written.append(path)
    pyplot.close(drawn)
    return written


def table(report: Report) -> str:
    """A figure for people: savings by curve and pool size."""
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
    """Asks the simulator, writes, draws, and prints the numbers."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.pooling", description="004 figures 3 and 21 on a VM trace.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--trace", type=Path, required=True, metavar="FILE", help="a VM trace of `thermocline pool import` or `generate`")
    made.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: %(default)s)")
    made.add_argument("--out", type=Path, default=Path("target/reproduce/pond.json"), help="the report (default: %(default)s)")
    made.add_argument("--plots", action="store_true", help="draw the figures beside the report; needs matplotlib")
    made.add_argument("--models", type=Path, metavar="DIR", help="figure 21 again with these trained models (`learn train nights`)")
    made.add_argument("--counters", type=Path, metavar="FILE", help="what VMs' counters come from (`learn generate workloads`)")
    made.add_argument("--cluster", metavar="ADDRESS", help="simulate on this Ray cluster; `local` starts one on this machine")
    made.add_argument(
        "more", nargs="*", metavar="ARGUMENT", help="after --, arguments of `thermocline pool simulate`, such as --clusters 100"
    )
    asked = made.parse_args(arguments)
    figures = {"figure_3": FIGURE_3, "figure_21": FIGURE_21}
    if asked.models:
        figures["figure_21_models"] = with_models(asked.models, asked.counters)
    with _each(asked.cluster) as each:
        for name, question in figures.items():
            with_more = dataclasses.replace(question, more=(*question.more, *asked.more))
            _report(name, figure(simulate(asked.program, asked.trace, asked.seed, with_more, each), PUBLISHED[name]), asked)
    print(f"report in {asked.out}")
    return 0


@contextlib.contextmanager
def _each(address: str | None) -> Iterator[Each | None]:
    """Where parts are run: on this machine, or on a Ray cluster."""
    if address is None:
        yield None
        return
    from thermocline.cluster import on_ray

    with on_ray.connected(None if address == "local" else address):
        yield on_ray.simulate


def _report(name: str, told: Report, asked: argparse.Namespace) -> None:
    keep(asked.out, {name: told})
    print(f"{name}: {told['events']:,} events in {told['elapsed_seconds']:.0f} s\n{table(told)}\n")
    if asked.plots:
        draw(told, asked.out.parent / "figures" / f"pond{name.removeprefix('figure_').replace('_', '-')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
