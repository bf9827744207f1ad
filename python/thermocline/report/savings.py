"""(Pond figure 21) with intervals, and what its result depends on: `make reproduce-pond-savings`.

DRAM is provisioned to a service level, without pools and with them, by `thermocline pool simulate --provision` on generated
traces of several seeds. An interval is over seeds: the mean, plus and minus Student's quantile times the standard error. It
covers the variation of traces and draws, not the difference between generated and real traces.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.cluster.kernel import Killed, Refused, run
from thermocline.cluster.simulation import Simulation

from .into import keep

SOCKETS = 16
"""Sockets that share a pool, as in the paper's text (Pond section 6.5)."""

LATENCIES: Mapping[str, str] = {"182%": "64ns", "222%": "140ns"}
"""Added latency by share of local latency."""

PREDICTORS: Mapping[str, str] = {"pond": "pond", "static": "static=15%", "oracle": "oracle"}
"""Memory policies: predictions as accurate as published, a static share, and predictions without errors."""

PUBLISHED: Mapping[str, Mapping[str, float]] = {"182%": {"pond": 9.0, "static": 3.0}, "222%": {"pond": 7.0, "static": 3.0}}
"""Savings in percent (Pond section 6.5, finding 9)."""

VMS_PER_DAY = 400
"""Arrivals of a trace of three clusters. Longer traces, and those of more clusters, have more VMs, and clusters of the same size."""

QUANTILES = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
)
"""The 97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Generated traces, and how memory is provisioned for them."""

    name: str
    days: int = 75
    clusters: int = 3
    rule: str = "replayed"
    """How memory is provisioned; empty: as much as was needed at the peaks."""
    placement: str = "pool_balance"
    sockets: int = SOCKETS
    latency: str = "64ns"
    more: tuple[str, ...] = ()


SENSITIVITY = (
    Case("as figure 21"),
    Case("5 days", days=5),
    Case("30 days", days=30),
    Case("150 days", days=150),
    Case("2 x 12 cores", more=("--socket-cores", "12")),
    Case("2 x 48 cores", more=("--socket-cores", "48")),
    Case("128 GiB per socket", more=("--socket-memory", "128GiB")),
    Case("cores filled to 95 %", more=("--peak-fill", "95%")),
    Case("best_fit", placement="best_fit"),
    Case("balance", placement="balance"),
    Case("best_fit, scheduled", placement="best_fit", rule="scheduled"),
    Case("balance, scheduled", placement="balance", rule="scheduled"),
    Case("pool_balance, scheduled", rule="scheduled"),
    Case("rarely_moved", rule="rarely_moved"),
    Case("slowdown in proportion to the spill", more=("--spill", "1")),
    Case("8 sockets, multi-headed: 70 ns", sockets=8, latency="by_pool_size"),
    Case("16 sockets, multi-headed: 90 ns", latency="by_pool_size"),
    Case("16 sockets, switch: 174 ns", latency="switch_only"),
    Case("32 sockets, 180 ns", sockets=32, latency="by_pool_size"),
    Case("64 sockets, 180 ns", sockets=64, latency="by_pool_size"),
    Case("64 sockets, switch: 309 ns", sockets=64, latency="switch_only"),
)
"""Each case differs from the first in one or two respects. `--socket-memory` is that of the run without pools, which decides on which
server a replayed VM is: 384 GiB by default, more than any server needs once memory is provisioned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Traces:
    """Makes and simulates traces with a program, in a directory."""

    program: str
    directory: Path

    def trace(self, case: Case, seed: int) -> Path:
        """Returns a trace, generated the first time.

        Raises:
            Killed: the program was killed.
            Refused: the program failed.
        """
        trace = self.directory / f"{case.days}-days-{case.clusters}-clusters-{seed}.parquet"
        if not trace.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            vms = VMS_PER_DAY * case.days * case.clusters // 3
            size = ["--vms", str(vms), "--clusters", str(case.clusters), "--days", str(case.days)]
            run(self.program, "pool", "generate", *size, "--seed", str(seed), "--out", str(trace))
        return trace

    def simulate(self, case: Case, seed: int, memory: Sequence[str], latency: Sequence[str]) -> Row:
        """Returns the result of one trace.

        Raises:
            SystemExit: the program failed, with its message.
        """
        provision = (f"--provision={case.rule}",) if case.rule else ()
        question = ("--seed", str(seed), *provision, "--placement", case.placement, *case.more)
        try:
            simulation = Simulation(str(self.trace(case, seed)), (case.sockets,), tuple(memory), tuple(latency), self.program, question)
            return simulation.run(simulation.all()) | {"command": simulation.arguments(simulation.all())}
        except (Refused, Killed) as error:
            raise SystemExit(f"case {case.name!r}, seed {seed}: {error}") from error


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the mean, and its 95 % confidence interval for normally distributed values.

    Raises:
        ValueError: fewer than two values, or more than there are quantiles for.
    """
    if not 2 <= len(values) <= len(QUANTILES) + 1:
        raise ValueError(f"an interval needs 2 to {len(QUANTILES) + 1} values, not {len(values)}; change the number of seeds")
    mean = statistics.fmean(values)
    half = QUANTILES[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def saved_percent(row: Row) -> float:
    """Returns the DRAM that provisioning with pools saves against provisioning without, in percent."""
    least = row["provisioned"]
    return 100.0 * (1.0 - float(least["bytes"]) / float(least["local_only_bytes"]))


def possible_percent(row: Row) -> float:
    """Returns the saving of one pool for all servers and all memory of a cluster, in percent: its upper bound."""
    least = row["provisioned"]
    return 100.0 * (1.0 - float(least["rented_at_peak_bytes"]) / float(least["local_only_bytes"]))


def summary(rows: Sequence[Row]) -> Row:
    """Returns the figures of one configuration over seeds."""
    saved, low, high = interval([saved_percent(row) for row in rows])
    tallies = [row["provisioned"]["tally"] for row in rows]

    def mean(part: str, whole: str = "started") -> float:
        return statistics.fmean(float(tally[part]) / float(tally[whole]) for tally in tallies)

    return {
        "saved_percent": saved,
        "interval_low": low,
        "interval_high": high,
        "saved_percent_by_seed": [saved_percent(row) for row in rows],
        "possible_percent": statistics.fmean(possible_percent(row) for row in rows),
        "sum_of_peaks_saved_percent": 100.0 * statistics.fmean(float(row["saved_ratio"]) for row in rows),
        "too_slow_ratio": mean("mispredicted"),
        "pool_ratio": mean("pool_gib_hours", "memory_gib_hours"),
        "moved_ratio": mean("moved"),
        "fell_back_ratio": mean("fell_back"),
        "refused_ratio": mean("rejected"),
        "spanning_ratio": mean("spanning"),
    }


def figure(results: Sequence[Row], predictors: Mapping[str, str] = PREDICTORS) -> Row:
    """Returns figure 21 by latency and predictor, from the results of all seeds."""
    data: Row = {}
    for share, latency in LATENCIES.items():
        added = int(latency.removesuffix("ns"))
        by_predictor = {
            name: summary([row for result in results for row in result["results"] if (row["memory"], row["added_ns"]) == (memory, added)])
            for name, memory in predictors.items()
        }
        static = by_predictor["static"]["too_slow_ratio"]
        for name, row in list(by_predictor.items()):
            by_predictor[name] = row | {"static_15_mispredicted_ratio": static, "published_percent": PUBLISHED[share].get(name)}
        data[share] = by_predictor
    return data


def table(data: Row) -> str:
    """Returns figure 21 as text."""
    names = f"{'saved':>6} {'95 % interval':>16} {'published':>9} {'possible':>8} {'on pools':>8} {'too slow':>8} {'moved':>6}"
    lines = [f"{'latency':<8} {'policy':<8} {names}"]
    for share in LATENCIES:
        for name, row in data[share].items():
            within = f"{row['interval_low']:.1f} to {row['interval_high']:.1f}"
            published = "" if row["published_percent"] is None else f"{row['published_percent']:.0f}"
            lines.append(
                f"{share:<8} {name:<8} {row['saved_percent']:>6.1f} {within:>16} {published:>9} {row['possible_percent']:>8.1f} "
                f"{row['pool_ratio']:>8.1%} {row['too_slow_ratio']:>8.2%} {row['moved_ratio']:>6.1%}"
            )
    return "\n".join(lines)


def sensitivity(traces: Traces, seeds: int) -> list[Row]:
    """Returns the savings of Pond and of the static policy for every case. Prints each as soon as it is known."""
    print(
        f"{'case':<36} {'Pond':>6} {'interval':>14} {'static':>7} {'interval':>14} {'possible':>8} {'sum of peaks: Pond, static':>27}",
        flush=True,
    )
    rows = []
    for case in SENSITIVITY:
        results = [traces.simulate(case, seed, ("static=15%", "pond"), (case.latency,)) for seed in range(1, seeds + 1)]
        static, pond = (summary([result["results"][at] for result in results]) for at in (0, 1))
        rows.append({"case": dataclasses.asdict(case), "seeds": seeds, "pond": pond, "static": static, "command": results[0]["command"]})
        within = [f"{row['interval_low']:.1f} to {row['interval_high']:.1f}" for row in (pond, static)]
        peaks = f"{pond['sum_of_peaks_saved_percent']:.1f}, {static['sum_of_peaks_saved_percent']:.1f}"
        print(
            f"{case.name:<36} {pond['saved_percent']:>6.1f} {within[0]:>14} {static['saved_percent']:>7.1f} {within[1]:>14} "
            f"{pond['possible_percent']:>8.1f} {peaks:>27}",
            flush=True,
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    """Simulates figure 21 and its sensitivity, writes both, and prints them."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.savings", description="Pond figure 21 with intervals over seeds.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=10, metavar="N", help="traces of figure 21, 2 to 20 (default: %(default)s)")
    made.add_argument(
        "--sensitivity-seeds", type=int, default=5, metavar="N", help="traces of each other case; 0 for none (default: %(default)s)"
    )
    made.add_argument("--clusters", type=int, default=3, metavar="N", help="clusters of a trace of figure 21 (default: %(default)s)")
    made.add_argument(
        "--traces", type=Path, default=Path("target/reproduce/savings"), metavar="DIR", help="directory of traces (default: %(default)s)"
    )
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    options = made.parse_args(arguments)
    if not 2 <= options.seeds <= 20 or options.sensitivity_seeds not in (0, *range(2, 21)):
        made.error("an interval needs 2 to 20 seeds")
    traces = Traces(options.program, options.traces)
    case = dataclasses.replace(SENSITIVITY[0], clusters=options.clusters)
    began = time.monotonic()
    results = [traces.simulate(case, seed, tuple(PREDICTORS.values()), tuple(LATENCIES.values())) for seed in range(1, options.seeds + 1)]
    data = figure(results) | {
        "seeds": options.seeds,
        "vms": [result["vms"] for result in results],
        "servers": [result["servers"] for result in results],
        "service_level": results[0]["site"]["service_level"],
        "command": results[0]["command"],
        "elapsed_seconds": time.monotonic() - began,
    }
    keep(options.out, {"figure21": data})
    print(f"{options.seeds} seeds in {data['elapsed_seconds']:.0f} s; savings in percent\n{table(data)}\n", flush=True)
    if options.sensitivity_seeds:
        keep(options.out, {"figure21_sensitivity": sensitivity(traces, options.sensitivity_seeds)})
    print(f"report in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
