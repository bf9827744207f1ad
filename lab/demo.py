"""`make demo`: the agent on a real kernel with a real server, from installation to a report, in a guest."""

import datetime
import html
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from thermolab import binaries, kernels, node, paths, services
from thermolab.cold_age import Experiment, Outcome, Plan
from thermolab.errors import LabError
from thermolab.lab import Lab

_MIB = 1 << 20
_OBSERVE_SECONDS = 16
_PLAN = Plan(settle_seconds=50, judged_seconds=80, pairs=6, requests=10_000)


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, flush=True)


def main() -> int:
    """Boots a guest, fills Redis, observes, offloads, compares and writes the report."""
    begin = time.monotonic()
    directory = paths.TREE / "target" / "demo"
    directory.mkdir(parents=True, exist_ok=True)
    say("building the programs for the guest")
    lab = Lab("demo", kernels.kernel(kernels.IDLE), directory, binaries.build())
    say("booting a guest of 1 GiB; this machine is not modified")
    with lab.guest() as guest:
        say(f"Linux {guest.release} is up after {guest.boot_seconds:.1f} s; starting Redis")
        server = services.redis(guest)
        experiment = Experiment(guest, server, "redis", _PLAN, say)
        experiment.fill()
        say(f"Redis holds {server.memory_current() / _MIB:.0f} MiB of realistic values; one key in twelve is hot")
        node.configure(guest, [node.Job(experiment.job)])
        say(f"\n$ thermocline observe {experiment.job} --for {_OBSERVE_SECONDS}s      (moves nothing)")
        say(experiment.observe(_OBSERVE_SECONDS))
        say("$ thermocline agent      (policy cold_age; a 2 s scan stands for 120 s)")
        outcome = experiment.run()
        server.stop()
        release = guest.release
    report = {
        "kernel": release,
        **outcome.figures,
        "objective_held": outcome.figures["promotion_rate_p98_ratio_per_min"] <= outcome.figures["slo_ratio_per_min"],
        "elapsed_seconds": time.monotonic() - begin,
    }
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (directory / "report.html").write_text(page(report, outcome))
    say("\n" + table(report))
    say(f"report: {directory / 'report.html'} and report.json")
    if not report["objective_held"]:
        say("demo: the promotion rate exceeded its objective")
        return 1
    return 0


def rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the report's table: label and value."""

    def mib(name: str) -> str:
        return f"{report[name] / _MIB:.0f} MiB"

    def ratio(name: str) -> str:
        return f"{report[name]:.2f} (95 % interval {report[f'{name}_low']:.2f} to {report[f'{name}_high']:.2f})"

    threshold = report["threshold_seconds"]
    held = "held" if report["objective_held"] else "BREACHED"
    over, periods = report["promotion_periods_over"], report["promotion_periods"]
    return [
        ("kernel, tracker, policy", f"{report['kernel']}, {report['tracker']}, {report['policy']}"),
        ("workload", report["workload"]),
        ("memory before, after", f"{mib('memory_before_bytes')}, {mib('memory_after_bytes')}"),
        ("offloaded", f"{mib('offloaded_bytes')}, {report['coverage_ratio']:.0%} of cold memory"),
        ("saved, net of the compressed pool", mib("saved_bytes")),
        ("cold-age threshold", "none meets the objective" if threshold is None else f"{threshold:g} s"),
        (
            "promotion rate, 98th percentile",
            f"{report['promotion_rate_p98_ratio_per_min']:.1%} of the working set per minute; "
            f"objective {report['slo_ratio_per_min']:.0%}: {held}",
        ),
        ("periods over the objective", f"{over} of {periods}"),
        (f"throughput, with / without, {report['throughput_pairs']} pairs", ratio("throughput_ratio")),
        ("99th percentile of latency, with / without", ratio("latency_p99_ratio")),
        ("decisions replayed, differing", f"{report['replayed_periods']}, {report['replay_differs']}"),
        ("agent: CPU, memory", f"{report['agent_cpu_seconds']:.1f} s emulated, {mib('agent_rss_bytes')}"),
        ("elapsed", f"{report['elapsed_seconds']:.0f} s"),
    ]


def table(report: dict[str, Any]) -> str:
    """Formats the table as text."""
    return "\n".join(f"  {what:<44} {value}" for what, value in rows(report))


def figure(outcome: Outcome) -> str:
    """Plots memory, threshold, promotions and throughput over time, as SVG."""
    zero = outcome.load_begins_unix_ms
    ends = zero + 1000 * len(outcome.load)
    periods = [p for p in outcome.periods if p["unix_ms"] <= ends]
    at = [(p["unix_ms"] - zero) / 1000 for p in periods]
    slo = outcome.figures["slo_ratio_per_min"]
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}):
        drawing, axes = plt.subplots(4, 1, figsize=(9, 9), sharex=True, layout="constrained")
        memory, threshold, promotions, load = axes
        mib = [[p["memory"][name] / _MIB for p in periods] for name in ("current", "far", "pool")]
        memory.plot(at, mib[0], label="charged to Redis, pool included", color="#1b4965")
        memory.plot(at, mib[1], label="in far memory, uncompressed", color="#ca6702")
        memory.plot(at, mib[2], label="compressed pool", color="#94a3b8")
        memory.set(ylabel="MiB", ylim=(0, None))
        memory.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        seconds = [None if p["step"]["threshold"] is None else 2 * p["step"]["threshold"] for p in periods]
        threshold.step(at, [float("nan") if s is None else s for s in seconds], where="post", color="#1b4965")
        threshold.set(ylabel="cold-age\nthreshold, s", ylim=(0, None))
        rated = [(t, p) for t, p in zip(at, periods, strict=True) if node.promotion_rates([p])]
        rates = [100 * node.promotion_rates([p])[0] for _, p in rated]
        promotions.plot([t for t, _ in rated], rates, color="#1b4965", label="measured")
        promotions.axhline(100 * slo, color="#ae2012", linestyle="--", label="objective")
        promotions.set(ylabel="promotions, % of\nworking set / min", ylim=(0, max([100 * slo, *rates]) * 1.15))
        promotions.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.97), ncols=2)
        load.plot([line["t"] for line in outcome.load], [line["ops"] for line in outcome.load], color="#1b4965")
        load.set(ylabel="requests / s", xlabel="seconds of load (60 times faster than production)", ylim=(0, None))
        drawn = io.StringIO()
        drawing.savefig(drawn, format="svg")
        plt.close(drawing)
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :]


def page(report: dict[str, Any], outcome: Outcome) -> str:
    """Returns a self-contained HTML page with the table and the figure."""
    cells = "\n".join(
        f"<tr><th>{html.escape(what)}</th><td>{html.escape(value)}</td></tr>" for what, value in rows(report)
    )
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Thermocline demo</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; }}
th {{ text-align: left; font-weight: 500; padding-right: 2rem; color: #475569; white-space: nowrap; }}
td, th {{ border-bottom: 1px solid #e2e8f0; padding-top: .25rem; padding-bottom: .25rem; }}
table {{ border-collapse: collapse; }} svg {{ max-width: 100%; height: auto; }} p {{ max-width: 46rem; }}
</style></head><body>
<h1>Far memory for Redis</h1>
<p>The guest runs under software emulation: ratios are meaningful, absolute times are not. A scan every 2 s stands for
one every 120 s; the objective of 0.2&nbsp;% of the working set per minute is scaled to 12&nbsp;%. Generated {made}.</p>
<table>{cells}</table>
{figure(outcome)}
</body></html>
"""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(2)
