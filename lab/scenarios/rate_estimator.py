"""Access rates of huge and small pages, as `thermocline rates` estimates them, against a workload that counts its own.

Blocks of 2 MiB are accessed at random times, each at a rate of its own from 0.1 to 1000 per second. In region `huge`
accesses fall on any part of a huge page; in `few` on four of them; in `small` on one small page of each block.
`bound_coverage_ratio` is the share of estimates whose upper bound is not below the true rate, of those that have one:
it must be 95 %.

Kernels clear accessed bits without flushing the TLB, so that a page whose translation stays there looks idle; 002
section 3.3 counts TLB misses for accesses, too. An emulated TLB forgets only when a CPU changes to another process. One
that ticks makes it; without that the figures show what goes wrong, and no bound is held.
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

LOOKS = 30
LOOK_PERIOD_MS = 200
RUNS = 3
COVERAGE_MIN = 0.95
PACE_MIN_RATIO = 0.9
"""A workload that makes fewer of its accesses was held up, by a host too busy for the guest, and so was who looks."""
# An emulated TLB must forget several times between two looks, as a real one does.
TICK_MS = 20

_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"


@dataclass(frozen=True, slots=True)
class Judged:
    """One estimate of one block, and the truth."""

    region: str
    true: float
    mean: float
    upper: float | None


def regions() -> list[Region]:
    """Log-spaced rates, in blocks of three kinds."""
    return [
        Region("huge", 96, poisson(0.1, 1000), kind="huge"),
        Region("few", 48, poisson(0.1, 1000, parts=4), kind="huge"),
        Region("small", 48, poisson(0.1, 1000, parts=1)),
    ]


def run(lab: Lab) -> dict[str, Any]:
    """Still first, then with turnover, each with huge pages whole and split."""
    figures: dict[str, Any] = {"look_period_seconds": LOOK_PERIOD_MS / 1000, "looks": LOOKS}
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
        # A bound that is never given holds always.
        lab.at_least(f"with_turnover.{name}.bounded_ratio", found["bounded_ratio"], 0.3)
    split = figures["with_turnover"]["split"]
    return {**figures, **{name: split[name] for name in ("bound_coverage_ratio", "median_error_ratio")}}


def _judge(lab: Lab, workload: Workload, what: str, split: bool) -> dict[str, Any]:
    before = workload.accesses()
    told = [_rates(workload.guest, workload.pid, split) for _ in range(RUNS)]
    passed = workload.accesses().since(before)
    judged = [estimate for rates in told for estimate in _compared(rates, passed)]
    figures = _figures(judged)
    figures["tracker"] = told[0]["tracker"]
    counted = sum(block.accesses for block in passed.blocks.values()) / passed.at_seconds
    figures["pace_ratio"] = counted / _nominal_rate(workload)
    lab.at_least(f"{what.replace(', ', '.')}.pace_ratio", figures["pace_ratio"], PACE_MIN_RATIO)
    figures["by_region"] = {name: _figures([one for one in judged if one.region == name]) for name in workload.regions}
    lab.say(
        f"{what}, by {figures['tracker']}: the bound holds for {figures['bound_coverage_ratio']:.1%} of "
        f"{figures['bounded_ratio']:.0%} that have one; the median error is {figures['median_error_ratio']:.1%}, "
        f"the bias {figures['bias_ratio']:+.1%}"
    )
    return figures


def _nominal_rate(workload: Workload) -> float:
    """Accesses per second of all regions, were they never late."""
    rate = 0.0
    for region in workload.regions.values():
        least, most, blocks = region.pattern["poisson"]["least"], region.pattern["poisson"]["most"], region.mib // 2
        rate += sum(most * (least / most) ** (rank / (blocks - 1)) for rank in range(blocks))
    return rate


def _rates(guest: Guest, pid: int, split: bool) -> dict[str, Any]:
    argv = ["thermocline", "rates", "--pid", str(pid), "--all", "--format", "json"]
    argv += ["--looks", str(LOOKS), "--look-period", f"{LOOK_PERIOD_MS}ms"]
    told: dict[str, Any] = json.loads(guest.run(argv + ["--split"] * split, timeout_s=240).stdout)
    return told


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
    # Of a block that is accessed less than twice in all looks, one access more or less is half the estimate.
    seen_per_second = 2000 / (LOOKS * LOOK_PERIOD_MS)
    errors = [(one.mean - one.true) / one.true for one in bounded if one.true >= seen_per_second]
    return {
        "estimates": len(judged),
        "bounded_ratio": len(bounded) / max(1, len(judged)),
        "bound_coverage_ratio": len(held) / len(bounded) if bounded else 0.0,
        "median_error_ratio": statistics.median(abs(error) for error in errors) if errors else 0.0,
        # Half of the estimates are further off to this side, if there is one.
        "bias_ratio": statistics.median(errors) if errors else 0.0,
        "fastest_bounded_per_second": max((one.true for one in bounded), default=0.0),
    }
