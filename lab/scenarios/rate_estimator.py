"""Compares the access rates estimated by `thermocline rates`, for huge and small pages, with a workload's own counts.

Blocks of 2 MiB are accessed at random times, each at its own rate from 0.1 to 1000 per second. In region `huge`
accesses are distributed over the huge page; in `few` over four of its pages; in `small` each block has one accessed
small page. `bound_coverage_ratio` is the share of estimates with an upper bound whose bound is not below the true rate:
it must be 95 %.

Kernels clear accessed bits without flushing the TLB, so that a page whose translation stays in the TLB appears idle;
Thermostat section 3.3 also counts TLB misses as accesses. An emulated TLB is flushed only on a context switch. A
periodic program provides such switches; the run without it shows the effect, and has no bounds.
"""

import json
import statistics
from dataclasses import dataclass
from typing import Any

from thermolab import truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, Machine
from thermolab.truth import Accesses, Region, Workload, poisson

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("bound_coverage_ratio", "bounded_ratio")

SAMPLES = 30
SAMPLE_PERIOD_MS = 200
RUNS = 3
COVERAGE_MIN = 0.95
PACE_MIN_RATIO = 0.9
"""A workload below this share of its nominal rate was delayed by a busy host, and so was the sampling."""
# An emulated TLB must be flushed several times between two samples, as a real one is.
TICK_MS = 20

_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"


@dataclass(frozen=True, slots=True)
class Judged:
    """An estimate of one block's rate, and the true rate."""

    region: str
    true: float
    mean: float
    upper: float | None


def regions() -> list[Region]:
    """Returns blocks of three kinds with log-spaced rates."""
    return [
        Region("huge", 96, poisson(0.1, 1000), kind="huge"),
        Region("few", 48, poisson(0.1, 1000, parts=4), kind="huge"),
        Region("small", 48, poisson(0.1, 1000, parts=1)),
    ]


def run(lab: Lab) -> dict[str, Any]:
    """Runs without TLB turnover first, then with it, each with whole and with split huge pages."""
    figures: dict[str, Any] = {"look_period_seconds": SAMPLE_PERIOD_MS / 1000, "looks": SAMPLES}
    with lab.guest(Machine(memory_bytes=GIB)) as guest:
        if guest.exists(_DAMON_STAT):
            guest.write(_DAMON_STAT, "N")
        workload = Workload(guest, regions())
        for turnover in ("without_turnover", "with_turnover"):
            if turnover == "with_turnover":
                truth.tick(guest, TICK_MS)
            figures[turnover] = {
                name: _judge(lab, workload, f"{turnover}, {name}", split)
                for name, split in (("whole", False), ("split", True))
            }
        workload.stop()
    for name, found in figures["with_turnover"].items():
        lab.at_least(f"with_turnover.{name}.bound_coverage_ratio", found["bound_coverage_ratio"], COVERAGE_MIN)
        # Coverage would be trivial if hardly any estimate had a bound.
        lab.at_least(f"with_turnover.{name}.bounded_ratio", found["bounded_ratio"], 0.3)
    split = figures["with_turnover"]["split"]
    return {**figures, **{name: split[name] for name in ("bound_coverage_ratio", "median_error_ratio")}}


def _judge(lab: Lab, workload: Workload, what: str, split: bool) -> dict[str, Any]:
    before = workload.accesses()
    runs = [_rates(workload.guest, workload.pid, split) for _ in range(RUNS)]
    passed = workload.accesses().since(before)
    judged = [estimate for rates in runs for estimate in _compared(rates, passed)]
    figures = _figures(judged)
    figures["tracker"] = runs[0]["tracker"]
    counted = sum(block.accesses for block in passed.blocks.values()) / passed.at_seconds
    figures["pace_ratio"] = counted / _nominal_rate(workload)
    lab.at_least(f"{what.replace(', ', '.')}.pace_ratio", figures["pace_ratio"], PACE_MIN_RATIO)
    figures["by_region"] = {name: _figures([one for one in judged if one.region == name]) for name in workload.regions}
    lab.say(
        f"{what}, by {figures['tracker']}: the bound holds for {figures['bound_coverage_ratio']:.1%} of the estimates "
        f"with a bound ({figures['bounded_ratio']:.0%}); the median error is {figures['median_error_ratio']:.1%}, "
        f"the bias {figures['bias_ratio']:+.1%}"
    )
    return figures


def _nominal_rate(workload: Workload) -> float:
    """Returns the nominal accesses per second of all regions, without delays."""
    rate = 0.0
    for region in workload.regions.values():
        least, most, blocks = region.pattern["poisson"]["least"], region.pattern["poisson"]["most"], region.mib // 2
        rate += sum(most * (least / most) ** (rank / (blocks - 1)) for rank in range(blocks))
    return rate


def _rates(guest: Guest, pid: int, split: bool) -> dict[str, Any]:
    argv = ["thermocline", "rates", "--pid", str(pid), "--all", "--format", "json"]
    argv += ["--samples", str(SAMPLES), "--sampling-interval", f"{SAMPLE_PERIOD_MS}ms"]
    rates: dict[str, Any] = json.loads(guest.run(argv + ["--split"] * split, timeout_s=240).stdout)
    return rates


def _compared(rates: dict[str, Any], passed: Accesses) -> list[Judged]:
    judged = []
    for block in rates["blocks"]:
        known = passed.blocks.get(block["address"])
        if known is not None:
            true = passed.rate(block["address"])
            judged.append(Judged(known.region, true, block["mean_per_second"], block["upper_per_second"]))
    return judged


def _figures(judged: list[Judged]) -> dict[str, Any]:
    bounded = [one for one in judged if one.upper is not None]
    held = [one for one in bounded if one.upper is not None and one.true <= one.upper]
    # For a block with fewer than two accesses during all samples, one access more or less is half of the estimate.
    min_rate = 2000 / (SAMPLES * SAMPLE_PERIOD_MS)
    errors = [(one.mean - one.true) / one.true for one in bounded if one.true >= min_rate]
    return {
        "estimates": len(judged),
        "bounded_ratio": len(bounded) / max(1, len(judged)),
        "bound_coverage_ratio": len(held) / len(bounded) if bounded else 0.0,
        "median_error_ratio": statistics.median(abs(error) for error in errors) if errors else 0.0,
        # The median of the signed errors: 0 for an unbiased estimator.
        "bias_ratio": statistics.median(errors) if errors else 0.0,
        "fastest_bounded_per_second": max((one.true for one in bounded), default=0.0),
    }
