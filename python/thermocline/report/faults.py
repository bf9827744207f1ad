"""Pools under faults: (Pond finding 10) with slices that are stuck and small buffers, and how many VMs a device takes along.

`make reproduce-pond-faults`. Every row is a mean over generated traces, those of `make reproduce-pond-savings`, with pools of 16
sockets that have as much memory as was needed without limits (`--confirm`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from . import savings
from .into import keep

RELEASES = tuple((stuck, buffer) for stuck in ("0%", "10%", "50%") for buffer in ("0GiB", "8GiB", "32GiB"))
"""Shares of the releases of a GiB that fail at first and are repeated ten seconds later, and buffers of a pool."""

DEVICES = (1, 2, 4, 8)
"""Devices of a pool. All of a VM's pool memory is behind one of them."""

DEVICE_FAILS = "30d"
"""Mean time between failures of a device: short, so that a trace has enough of them. VMs lost per failure do not depend on it."""

MEMORY = ("static=15%", "pond")


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def releases(traces: savings.Traces, seeds: int) -> list[savings.Row]:
    """Returns by case the shares of VM starts that needed faster releases than 1 and 10 GiB/s, and the memory that pools need.

    The latter is a multiple of what they need with the same buffer if no slice is stuck.
    """
    rows: list[savings.Row] = []
    least: dict[str, float] = {}
    for stuck, buffer in RELEASES:
        case = savings.Case(f"stuck {stuck}, buffer {buffer}", rule="", more=("--confirm", "--stuck", stuck, "--buffer", buffer))
        results = [traces.simulate(case, seed, ("pond",), ("64ns",))["results"][0] for seed in range(1, seeds + 1)]
        confirmed = [one["confirmed"] for one in results]
        needed = _mean([float(one["measured"]["required"]["pool_bytes"]) for one in results])
        row = {
            "stuck": stuck,
            "buffer": buffer,
            "starts": sum(one["started"] for one in confirmed),
            "above_1_gib_per_s_ratio": _mean([one["starts_above_1_gib_per_s"] / one["started"] for one in confirmed]),
            "above_10_gib_per_s_ratio": _mean([one["starts_above_10_gib_per_s"] / one["started"] for one in confirmed]),
            "release_gib_per_s_max": max(one["release_gib_per_s_max"] for one in confirmed),
            "all_local_ratio": _mean([one["fell_back"] / one["started"] for one in confirmed]),
            "pool_memory_ratio": needed / least.setdefault(buffer, needed),
        }
        rows.append(row)
        print(
            f"{stuck:>5} {buffer:>6} {row['above_1_gib_per_s_ratio']:>10.4%} {row['above_10_gib_per_s_ratio']:>10.4%} "
            f"{row['release_gib_per_s_max']:>8.1f} {row['all_local_ratio']:>9.4%} {row['pool_memory_ratio']:>11.3f}",
            flush=True,
        )
    return rows


def devices(traces: savings.Traces, seeds: int) -> list[savings.Row]:
    """Returns the VMs lost with a device, for each failure, by memory policy and by the number of a pool's devices."""
    rows = []
    for count in DEVICES:
        case = savings.Case(f"{count} devices", rule="", more=("--emcs", str(count), "--emc-fails", DEVICE_FAILS))
        results = [traces.simulate(case, seed, MEMORY, ("64ns",))["results"] for seed in range(1, seeds + 1)]
        for at, memory in enumerate(MEMORY):
            tallies = [result[at]["measured"] for result in results]
            faults, lost = sum(one["faults"] for one in tallies), sum(one["lost_with_emc"] for one in tallies)
            row = {
                "devices": count,
                "memory": memory,
                "failures": faults,
                "lost": lost,
                "lost_per_failure": lost / faults if faults else None,
                "lost_ratio": lost / sum(one["started"] for one in tallies),
            }
            rows.append(row)
            per = "-" if row["lost_per_failure"] is None else f"{row['lost_per_failure']:.1f}"
            print(f"{count:>7} {memory:<10} {faults:>8} {per:>16} {row['lost_ratio']:>12.3%}", flush=True)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Simulates both, writes them, and prints them."""
    made = argparse.ArgumentParser(prog="python -m thermocline.report.faults", description="Pools under faults: releases and devices.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=3, metavar="N", help="traces (default: %(default)s)")
    made.add_argument(
        "--traces", type=Path, default=Path("target/reproduce/savings"), metavar="DIR", help="directory of traces (default: %(default)s)"
    )
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    options = made.parse_args(arguments)
    if options.seeds < 1:
        made.error("--seeds must be at least 1")
    traces = savings.Traces(options.program, options.traces)
    print("stuck buffer  >1 GiB/s  >10 GiB/s  fastest  all local  pool memory", flush=True)
    keep(options.out, {"finding_10_faults": releases(traces, options.seeds)})
    print("\ndevices memory     failures lost per failure  of all VMs", flush=True)
    keep(options.out, {"devices": devices(traces, options.seeds)})
    print(f"report in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
