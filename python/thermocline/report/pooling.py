"""004 figures 3 and 21 on a VM trace: `make reproduce-pond-pool`.

What is saved comes from `thermocline pool simulate`; here it is only asked for, put beside what is published, and drawn.
The report keeps what others have written into its file: `make reproduce-pond` has more figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

POOL_SIZES = (2, 4, 8, 16, 32, 64)
"""Sockets that share a pool, as in both figures."""

FIGURE_3 = ("--memory", "static=10%,static=30%,static=50%", "--latency", "64ns")
FIGURE_21 = ("--memory", "static=15%,pond", "--latency", "64ns,140ns", "--margin", "5%", "--confirm")

PUBLISHED: Mapping[str, Mapping[str, Mapping[int, float]]] = {
    "figure_3": {"static=50%": {32: 0.12, 64: 0.13}},
    "figure_21": {"pond, 64 ns": {16: 0.09}, "pond, 140 ns": {16: 0.07}, "static=15%": {16: 0.03}},
}
"""Savings that the paper's text gives (sections 3.1 and 6.5), by curve and sockets."""

Report = dict[str, Any]


def simulate(program: str, trace: Path, seed: int, asked: Sequence[str]) -> Report:
    """Runs the simulator; adds how long it took, which the simulator itself does not tell."""
    sizes = ",".join(map(str, POOL_SIZES))
    command = [program, "pool", "simulate", "--trace", str(trace), "--pool-sizes", sizes, "--seed", str(seed), *asked, "--format", "json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    told: Report = json.loads(done.stdout)
    return told | {"command": command[1:], "elapsed_seconds": time.monotonic() - began}


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
        "assumed": told["assumed"],
        "rejected": told["rejected"],
        "clusters": told["clusters"],
        "servers": told["servers"],
        "spanning_ratio": told["spanning_ratio"],
        "curves": {name: [_point(row) for row in rows] for name, rows in curves(told).items()},
        "published": {name: {str(sockets): saved for sockets, saved in points.items()} for name, points in published.items()},
    }


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


def draw(report: Report, name: str, to: Path) -> list[Path]:
    """Draws a figure's curves, with what is published as crosses, as SVG and PNG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    drawn, axes = pyplot.subplots(figsize=(7, 3.5))
    for curve, points in report["curves"].items():
        (line,) = axes.plot(
            [point["pool_sockets"] for point in points], [point["saved_ratio"] * 100 for point in points], marker="o", label=curve
        )
        published = report["published"].get(curve, {})
        if published:
            sockets, saved = [int(size) for size in published], [share * 100 for share in published.values()]
            axes.plot(sockets, saved, "x", color=line.get_color(), markersize=9, label=f"{curve}, published")
    axes.axhline(0, color="#9aa7b5", linewidth=1)
    axes.set(xlabel="sockets that share a pool", ylabel="DRAM saved, %", xscale="log")
    axes.set_xticks(POOL_SIZES, labels=[str(size) for size in POOL_SIZES])
    axes.minorticks_off()
    axes.legend(frameon=False)
    written = []
    for kind in ("svg", "png"):
        path = to / f"{name}.{kind}"
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
    """Asks the simulator twice, writes, draws, and prints the numbers."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.pooling", description="004 figures 3 and 21 on a VM trace.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--trace", type=Path, required=True, metavar="FILE", help="a VM trace of `thermocline pool import` or `generate`")
    made.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: %(default)s)")
    made.add_argument("--out", type=Path, default=Path("target/reproduce/pond.json"), help="the report (default: %(default)s)")
    made.add_argument("--plots", action="store_true", help="draw the figures beside the report; needs matplotlib")
    made.add_argument(
        "more", nargs="*", metavar="ARGUMENT", help="after --, arguments of `thermocline pool simulate`, such as --clusters 100"
    )
    asked = made.parse_args(arguments)
    report: Report = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for name, options in (("figure_3", FIGURE_3), ("figure_21", FIGURE_21)):
        report[name] = figure(simulate(asked.program, asked.trace, asked.seed, [*options, *asked.more]), PUBLISHED[name])
        asked.out.write_text(json.dumps(report, indent=2) + "\n")
        print(f"{name}: {report[name]['events']:,} events in {report[name]['elapsed_seconds']:.0f} s\n{table(report[name])}\n")
        if asked.plots:
            draw(report[name], f"pond_{name}", asked.out.parent)
    print(f"report in {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
