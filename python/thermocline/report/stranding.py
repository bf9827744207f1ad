"""004 figure 2 on a trace of VMs: DRAM stranded by scheduled cores, drawn.

The numbers are those of `thermocline pool stranding --format json`; here they are only drawn, one panel for each amount of
DRAM per core: median, 5th to 95th percentile, and the most.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .into import keep

PUBLISHED = ((0.75, 0.06), (0.85, 0.10))
"""Scheduled cores and the median of stranded DRAM that 004 section 3.1 tells of; the second is a lower bound."""

PUBLISHED_P95 = (0.95, 0.25)
"""The 95th percentile at high utilization, which is taken as 95 % of the cores."""

LOOKS_LEAST = 5
"""Bins of fewer looks are not drawn: they have no percentiles to speak of."""


def panels(told: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """What is drawn: a title, and the bins, for each amount of DRAM per core that has any."""
    drawn = []
    for result in told["results"]:
        gib = result["shape"]["dram_per_core_bytes"] / 2**30
        bins = [row for row in result["bins"] if row["samples"] >= LOOKS_LEAST]
        if bins:
            drawn.append((f"{gib:.2f} GiB per core", bins))
    return drawn


def draw(told: Mapping[str, Any], to: Path) -> list[Path]:
    """Draws the figure as SVG and PNG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    drawn = panels(told)
    if not drawn:
        message = f"no bin has {LOOKS_LEAST} looks: the trace is too short to draw"
        raise ValueError(message)
    figure, axes = pyplot.subplots(1, len(drawn), figsize=(3.2 * len(drawn), 3), sharey=True, squeeze=False)
    for panel, (title, bins) in zip(axes[0], drawn, strict=True):
        _panel(panel, title, bins)
    # All panels share it: set once everything is drawn, or the first would cut the others off.
    axes[0][0].set_ylim(0, None)
    axes[0][0].set_ylabel("DRAM stranded, %")
    axes[0][0].legend(frameon=False, loc="upper left", fontsize=8)
    to.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("svg", "png"):
        path = to.with_suffix(f".{kind}")
        # Without a date, the same numbers give the same file.
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        written.append(path)
    pyplot.close(figure)
    return written


def _panel(panel: Any, title: str, bins: Sequence[Mapping[str, Any]]) -> None:
    def percent(name: str) -> list[float]:
        return [row[name] * 100 for row in bins]

    cores, median = percent("scheduled_ratio"), percent("stranded_median")
    below = [middle - low for middle, low in zip(median, percent("stranded_p5"), strict=True)]
    above = [high - middle for middle, high in zip(median, percent("stranded_p95"), strict=True)]
    panel.errorbar(
        cores,
        median,
        yerr=(below, above),
        color="#1f77b4",
        linewidth=1.5,
        capsize=2,
        elinewidth=0.8,
        label="median, p5 to p95",
    )
    panel.plot(cores, percent("stranded_most"), "o", color="#9aa7b5", markersize=2.5, label="most")
    x, y = zip(*PUBLISHED, strict=True)
    panel.plot([at * 100 for at in x], [at * 100 for at in y], "x", color="#b3261e", label="median, published")
    panel.plot(PUBLISHED_P95[0] * 100, PUBLISHED_P95[1] * 100, "+", color="#b3261e", markersize=8, label="p95, published")
    panel.set(title=title, xlabel="cores scheduled, %", xlim=(0, 100))


def _published() -> Mapping[str, float]:
    medians = {f"median_at_{cores:.0%}": stranded for cores, stranded in PUBLISHED}
    return medians | {"p95_at_high_utilization": PUBLISHED_P95[1]}


def main(arguments: Sequence[str]) -> int:
    """Asks the program, or reads what it told, and draws."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.stranding", description="004 figure 2 on a trace of VMs.")
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="the VM trace")
    source.add_argument("--told", type=Path, metavar="JSON", help="what `thermocline pool stranding --format json` printed")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--into", type=Path, metavar="FILE", help="also keep the numbers as `figure_2` of this report")
    made.add_argument(
        "--out",
        type=Path,
        default=Path("target/reproduce/figures/stranding.svg"),
        metavar="FILE",
        help="default: %(default)s",
    )
    asked = made.parse_args(arguments)
    try:
        if asked.told:
            text = asked.told.read_text(encoding="utf-8")
        else:
            command = [asked.program, "pool", "stranding", "--trace", str(asked.trace), "--format", "json"]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        told = json.loads(text)
        written = draw(told, asked.out)
        if asked.into:
            keep(asked.into, {"figure_2": told | {"published": _published()}})
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        print(f"cannot draw: {error}", file=sys.stderr)
        return 1
    print("drew " + ", ".join(str(path) for path in written), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
