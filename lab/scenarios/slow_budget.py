"""The slow node's access rate stays at its budget, and overshoot ends within a period (Thermostat figure 3).

A job of 256 MiB in huge pages, each accessed at its own rate from 0.1 to 1000 per second, runs under policy `slowdown`.
The job itself counts the accesses of the slow node. After half of the run every block gets another rate: memory that
was cold and is in slow memory becomes hot. Thermostat section 3.5 promotes such memory within one period.
"""

import statistics
from itertools import accumulate, pairwise
from typing import Any

from thermolab import node, numa, slow, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.numa import Window
from thermolab.qemu import MIB
from thermolab.truth import BLOCK_BYTES, Accesses, Region, Workload, poisson

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("placed_ratio", "placed_ratio_to_oracle", "budget_used_ratio")

JOB_MIB = 256
SLOWDOWN = 0.03
SETTLE_PERIODS = 10
JUDGED_PERIODS = 6
TICK_MS = 20

BUDGET_USED_MIN_RATIO = 0.8
ORACLE_MIN_RATIO = 0.9
"""An oracle knows the accesses to each block, and places the coldest ones that the budget allows."""
OVERSHOOT_MAX_PERIODS = 1.0
RATE_MAX_RATIO = 1.0
"""Bound on the rate averaged over a period, as in the figure."""
OVERSHOOT_MIN_RATIO = 1.1
"""A window with a rate above this is overshoot; below it is chance."""


def run(lab: Lab) -> dict[str, Any]:
    """Settles, judges, changes all rates, and judges again."""
    target = slow.budget_per_second(SLOWDOWN)
    with lab.guest(numa.two_nodes(640, 384)) as guest:
        truth.tick(guest, TICK_MS)
        phases = [{"for_s": 36_000, **poisson(0.1, 1000, draw=draw)} for draw in (0, 1)]
        workload = Workload(guest, [Region("blocks", JOB_MIB, {"phases": phases}, kind="huge")])
        watch = numa.Watch(workload)
        agent = slow.start(guest, [workload.job], SLOWDOWN)
        begins = workload.uptime()
        judged: list[Window] = []
        rates: list[float] = []
        to_oracle: list[float] = []
        classified: list[dict[str, float]] = []
        for stretch in ("first", "second"):
            slow.pass_periods(workload, SETTLE_PERIODS)
            settled, before = workload.uptime(), workload.accesses()
            slow.pass_periods(workload, JUDGED_PERIODS)
            accesses = workload.accesses().since(before)
            stretch_windows = numa.between(watch.windows(), settled, workload.uptime())
            judged += stretch_windows
            placed = statistics.mean(window.slow_bytes for window in stretch_windows)
            to_oracle.append(placed / (_oracle_blocks(accesses, target) * BLOCK_BYTES))
            classified.append(_classified(accesses, target) | _moved(stretch_windows, settled))
            period_s = _period_s(guest)
            rates += numa.averages(stretch_windows, period_s)
            lab.say(f"{stretch} stretch: {slow.view(agent, workload.job)['explanation']}")
            if stretch == "first":
                changed = workload.next_phase()
        view = slow.view(agent, workload.job)
        agent.stop()
        guest.keep(f"{node.STATE}/journal")
        windows = watch.stop()
        workload.stop()
        configured_s = slow.period_s(guest)
    figures = {
        "target_rate_per_second": target,
        "p95_rate_per_second": node.percentile(rates, 0.95),
        "mean_rate_per_second": sum(rates) / len(rates),
        "budget_used_ratio": sum(rates) / len(rates) / target,
        "placed_ratio": min(window.slow_bytes for window in judged) / (JOB_MIB * MIB),
        "placed_ratio_to_oracle": min(to_oracle),
        "period_seconds": period_s,
        "configured_period_seconds": configured_s,
        "job_rate_per_second": sum(window.slow_accesses + window.local_accesses for window in judged)
        / sum(window.elapsed_seconds for window in judged),
        **_overshoot(windows, changed, target, period_s),
        "moved_bytes_per_second": _moved(windows, begins)["moved_bytes_per_second"],
        "false_slow_blocks": max(found["false_slow_blocks"] for found in classified),
        "false_slow_ratio": max(found["false_slow_ratio"] for found in classified),
        "false_fast_ratio": max(found["false_fast_ratio"] for found in classified),
        "corrected_bytes_per_second": max(found["promoted_bytes_per_second"] for found in classified),
    }
    lab.say(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    lab.at_most("p95_rate_per_second", figures["p95_rate_per_second"], RATE_MAX_RATIO * target)
    lab.at_least("budget_used_ratio", figures["budget_used_ratio"], BUDGET_USED_MIN_RATIO)
    lab.at_least("placed_ratio_to_oracle", figures["placed_ratio_to_oracle"], ORACLE_MIN_RATIO)
    lab.at_least("overshoot_rate_per_second", figures["overshoot_rate_per_second"], 2 * target)
    lab.at_most("overshoot_periods", figures["overshoot_periods"], OVERSHOOT_MAX_PERIODS)
    budget = view["slow_budget_per_second"]
    lab.holds("budget", budget is not None and abs(budget - target) < 1, f"status reports {budget}, not {target}")
    return figures


def _oracle_blocks(accesses: Accesses, target: float) -> int:
    """Returns how many of the coldest blocks may be placed if all accesses are known."""
    rates = sorted(accesses.rate(address) for address in accesses.blocks)
    return sum(1 for total in accumulate(rates) if total <= target)


def _classified(accesses: Accesses, target: float) -> dict[str, float]:
    """Compares the placement at the end of `accesses` with the oracle's: false classification (Thermostat table 3).

    A slow block is false if the oracle does not place it, and a fast one if it does.
    """
    coldest = sorted(accesses.blocks, key=accesses.rate)
    oracle = set(coldest[: _oracle_blocks(accesses, target)])
    placed = {address for address, block in accesses.blocks.items() if block.node == numa.SLOW}
    return {
        "false_slow_blocks": len(placed - oracle),
        "false_slow_ratio": len(placed - oracle) / max(1, len(placed)),
        "false_fast_ratio": len(oracle - placed) / max(1, len(oracle)),
    }


def _period_s(guest: Guest) -> float:
    """Returns the median duration of a period, which is longer than configured if reading samples takes long."""
    return statistics.median(later - earlier for earlier, later in pairwise(slow.periods_ms(guest))) / 1000


def _overshoot(windows: list[Window], changed: float, target: float, period_s: float) -> dict[str, float]:
    """Returns the maximum rate after the change, and the number of periods for which it stayed above the target."""
    after = [window for window in windows if window.at_seconds > changed]
    above = changed
    for first, second in pairwise(after):
        # A single window exceeds the target by chance.
        if min(first.slow_rate, second.slow_rate) > OVERSHOOT_MIN_RATIO * target:
            above = max(above, second.at_seconds)
    return {
        "overshoot_rate_per_second": max(window.slow_rate for window in after),
        "overshoot_periods": (above - changed) / period_s,
    }


def _moved(windows: list[Window], begins: float) -> dict[str, float]:
    """Returns lower bounds on the bytes moved between the nodes per second: a window shows only the net change.

    While rates stay the same, a promotion corrects a false classification.
    """
    after = [window for window in windows if window.at_seconds > begins]
    demoted = [second.slow_bytes - first.slow_bytes for first, second in pairwise(after)]
    seconds = after[-1].at_seconds - after[0].at_seconds
    return {
        "moved_bytes_per_second": sum(map(abs, demoted)) / seconds,
        "promoted_bytes_per_second": sum(max(0, -net) for net in demoted) / seconds,
    }
