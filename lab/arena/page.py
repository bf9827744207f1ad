"""The arena as one page: who is ahead, the curve of each contender on each program, and how each was configured."""

import html as markup
import io
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from .measure import Run

_MIB = 1 << 20
_COLOURS = ("#1b4965", "#ca6702", "#2a9d8f", "#ae2012", "#6d597a", "#94a3b8", "#588157")


def line(run: Run) -> str:
    """Returns one line about a guest, for progress."""
    parts = [
        f"{name} {found.current_bytes / _MIB:.0f} MiB {found.lost_ratio:.2%}" for name, found in run.programs.items()
    ]
    return f"{run.contender} {run.intensity}: {', '.join(parts)}; CPU {run.cpu_ratio:.1%}"


def text(found: dict[str, Any]) -> str:
    """Returns the ranking as text."""
    lines = []
    for level, rows in found.get("ranking", {}).items():
        lines.append(f"at {float(level):.1%} of time lost: saved, as a multiple of the best peer of each program")
        ranked = sorted(rows.items(), key=lambda item: -item[1]["geomean_ratio_to_best_peer"])
        for who, row in ranked:
            saved = ", ".join(f"{name} {value / _MIB:.1f}" for name, value in row["saved_bytes"].items())
            lines.append(f"  {row['geomean_ratio_to_best_peer']:5.2f}  {who:<22} MiB: {saved}")
    if "best_policy_at_1pct" in found:
        behind = ", ".join(found["workloads_behind_by_5pct"]) or "none"
        lines.append(f"{found['best_policy_at_1pct']} is behind by over 5 % on: {behind}")
    return "\n".join(lines)


def html(found: dict[str, Any]) -> str:
    """Returns a self-contained page."""
    drawn = "\n".join(f"<h2>{name}</h2>{_plot(row)}" for name, row in found["workloads"].items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Arena of far memory</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; }}
th {{ text-align: left; font-weight: 500; color: #475569; }} .wide {{ overflow-x: auto; }}
td, th {{ border-bottom: 1px solid #e2e8f0; padding: .2rem 1rem .2rem 0; vertical-align: top; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
table {{ border-collapse: collapse; }} svg {{ max-width: 100%; height: auto; }} p {{ max-width: 46rem; }}
.ours {{ font-weight: 600; }}
</style></head><body>
<h1>{_verdict(found)}</h1>
<p>Linux {found["kernel"]}, emulated guests of 2 GiB; programs of a mix share a guest, each contender has guests of
its own. Time lost: faults from zswap at {found["charged_us"]["zswap"]} us, refaults from a disk at
{found["charged_us"]["disk"]} us, as a share of time, beyond those without a contender. Emulated time itself is not
compared. Guests per point: {found["repeats"]}.</p>
{_ranking(found)}
{drawn}
<h2>Contenders</h2>
{_contenders(found)}
</body></html>
"""


def _verdict(found: dict[str, Any]) -> str:
    if "best_policy_at_1pct" not in found:
        return "Arena of far memory"
    ratio, best = found["geomean_ratio_to_best_peer_at_1pct"], found["best_policy_at_1pct"]
    behind = found["workloads_behind_by_5pct"]
    also = f"; behind on {', '.join(behind)}" if behind else "; behind on none"
    return f"At 1 % of time lost, {best} saves {ratio:.2f} times what the best peer of each program saves{also}"


def _ranking(found: dict[str, Any]) -> str:
    tables = []
    for level, rows in found.get("ranking", {}).items():
        names = list(found["workloads"])
        head = "".join(f"<th>{name}, MiB</th>" for name in names)
        body = []
        for who, row in sorted(rows.items(), key=lambda item: -item[1]["geomean_ratio_to_best_peer"]):
            interval = "" if row["interval"] is None else " ({:.2f} to {:.2f})".format(*row["interval"])
            cells = "".join(f'<td class="number">{row["saved_bytes"][name] / _MIB:.1f}</td>' for name in names)
            ours = ' class="ours"' if who.startswith("Thermocline") else ""
            mean = f"{row['geomean_ratio_to_best_peer']:.2f}{interval}"
            body.append(f'<tr{ours}><th>{markup.escape(who)}</th><td class="number">{mean}</td>{cells}</tr>')
        tables.append(
            f"<h2>Saved at {float(level):.1%} of time lost</h2><div class='wide'><table><tr><th>contender</th>"
            f"<th>geometric mean, ratio to the best peer</th>{head}</tr>{''.join(body)}</table></div>"
        )
    return "\n".join(tables)


def _plot(row: dict[str, Any]) -> str:
    """Plots saved memory against time lost."""
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
    names = list(dict.fromkeys(point["contender"] for point in row["points"]))
    with plt.rc_context(style):
        drawing, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
        for index, name in enumerate(names):
            points = sorted(
                (100 * point["lost_ratio"], 100 * point["saved_bytes"] / row["occupied_bytes"])
                for point in row["points"]
                if point["contender"] == name
            )
            ours = name.startswith("Thermocline")
            dashes = "-" if ours else "--"
            colour = _COLOURS[index % len(_COLOURS)]
            axes.plot(
                [0, *(x for x, _ in points)], [0, *(y for _, y in points)],
                dashes, marker="o" if ours else "s", markersize=4, color=colour, label=name,
            )  # fmt: skip
        axes.axvline(1, color="#cbd5e1", linewidth=1)
        axes.set(xlabel="time lost, %", ylabel="saved, % of what it occupies")
        axes.set_xscale("symlog", linthresh=1)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        drawn = io.StringIO()
        drawing.savefig(drawn, format="svg")
        plt.close(drawing)
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :]


def _contenders(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found["contenders"].items():
        cells = ""
        if "cpu_ratio" in one:
            cells = "".join(
                f'<td class="number">{text}</td>'
                for text in (
                    f"{one['net_saved_bytes'] / _MIB:.0f}",
                    f"{one['own_memory_bytes'] / _MIB:.1f}",
                    f"{one['cpu_ratio']:.1%}",
                )
            )
        rows.append(f"<tr><th>{markup.escape(name)}</th>{cells}<td>{markup.escape(one['configuration'])}</td></tr>")
    head = "<tr><th>contender</th><th>net saved by the guest, MiB</th><th>own memory, MiB</th><th>CPU, emulated</th>"
    return f"<div class='wide'><table>{head}<th>configuration</th></tr>{''.join(rows)}</table></div>"
