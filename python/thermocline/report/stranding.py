"""(Pond figure 2) on a VM trace: a plot of stranded DRAM by scheduled cores.

The data are computed by `thermocline pool stranding --format json`. Each amount of DRAM per core is one panel with the
median, the 5th to 95th percentile, and the maximum.
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
"""Scheduled cores and median stranded DRAM (Pond section 3.1); the second value is a lower bound."""

PUBLISHED_P95 = (0.95, 0.25)
"""The 95th percentile at high utilization, which is assumed to be 95 % of the cores."""

SAMPLES_MIN = 5
"""Bins with fewer samples are not drawn: their percentiles are not meaningful."""


def panels(data: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Returns title and bins of each panel; an amount of DRAM per core without enough samples has none."""
    drawn = []
    for result in data["results"]:
        gib = result["shape"]["dram_per_core_bytes"] / 2**30
        bins = [row for row in result["bins"] if row["samples"] >= SAMPLES_MIN]
        if bins:
            drawn.append((f"{gib:.2f} GiB per core", bins))
    return drawn


def draw(data: Mapping[str, Any], to: Path) -> list[Path]:
    """Draws the figure as SVG and PNG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    drawn = panels(data)
    if not drawn:
        message = f"no bin has {SAMPLES_MIN} samples: the trace is too short to draw"
        raise ValueError(message)
    figure, axes = pyplot.subplots(1, len(drawn), figsize=(3.2 * len(drawn), 3), sharey=True, squeeze=False)
    for panel, (title, bins) in zip(axes[0], drawn, strict=True):
        _panel(panel, title, bins)
    # The panels share the axis. It is set last, because it would otherwise fit only the first panel.
    axes[0][0].set_ylim(0, None)
    axes[0][0].set_ylabel("DRAM stranded, %")
    axes[0][0].legend(frameon=False, loc="upper left", fontsize=8)
    to.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("svg", "png"):
        path = to.with_suffix(f".{kind}")
        # Without a date, equal data give an identical file.
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
    panel.plot(cores, percent("stranded_most"), "o", color="#9aa7b5", markersize=2.5, label="maximum")
    x, y = zip(*PUBLISHED, strict=True)
    panel.plot([at * 100 for at in x], [at * 100 for at in y], "x", color="#b3261e", label="median, published")
    panel.plot(PUBLISHED_P95[0] * 100, PUBLISHED_P95[1] * 100, "+", color="#b3261e", markersize=8, label="p95, published")
    panel.set(title=title, xlabel="cores scheduled, %", xlim=(0, 100))


def _published() -> Mapping[str, float]:
    medians = {f"median_at_{cores:.0%}": stranded for cores, stranded in PUBLISHED}
    return medians | {"p95_at_high_utilization": PUBLISHED_P95[1]}


def main(arguments: Sequence[str]) -> int:
    """Runs the program or reads its output, and draws the figure."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.stranding", description="Pond figure 2 on a VM trace.")
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE", help="the VM trace")
    source.add_argument("--input", type=Path, metavar="JSON", help="the output of `thermocline pool stranding --format json`")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--into", type=Path, metavar="FILE", help="also write the data to `figure_2` of this report file")
    made.add_argument(
        "--out",
        type=Path,
        default=Path("target/reproduce/figures/stranding.svg"),
        metavar="FILE",
        help="output file (default: %(default)s)",
    )
    options = made.parse_args(arguments)
    try:
        if options.input:
            text = options.input.read_text(encoding="utf-8")
        else:
            command = [options.program, "pool", "stranding", "--trace", str(options.trace), "--format", "json"]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        data = json.loads(text)
        written = draw(data, options.out)
        if options.into:
            keep(options.into, {"figure_2": data | {"published": _published()}})
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        print(f"cannot draw: {error}", file=sys.stderr)
        return 1
    print("drew " + ", ".join(str(path) for path in written), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
