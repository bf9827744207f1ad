"""Huge pages survive an hour under policy `slowdown`, which splits those that it samples and collapses them again.

120 periods of 30 s are an hour; here each takes as long as the guest's tracker needs for its samples, 2 s or, with
DAMON, 9 s, with as many samples. Half of the job is accessed too often for an estimate of the whole huge page, so that
it is split when sampled. `kept_ratio` is the job's memory in huge pages afterwards, relative to before.
"""

from typing import Any

from thermolab import node, numa, slow, truth
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12-idle", "6.12")
MORE_IS_BETTER = ("kept_ratio", "kept_min_ratio")

JOB_MIB = 128
PERIODS = 120
SAMPLES = 9
SLOWDOWN = 0.03
CHECKS = 12
KEPT_MIN_RATIO = 0.95


def run(lab: Lab) -> dict[str, Any]:
    """Runs the compressed hour."""
    with lab.guest(numa.two_nodes(512, 256)) as guest:
        truth.tick(guest, 20)
        regions = [
            Region("busy", JOB_MIB // 2, poisson(20, 200), kind="huge"),
            Region("calm", JOB_MIB // 2, poisson(0.1, 5), kind="huge"),
        ]
        workload = Workload(guest, regions)
        before = slow.huge_bytes(workload)
        period_s = slow.period_s(guest, SAMPLES)
        settings: node.Settings = {"slow.period": f"{period_s}s", "slow.samples": SAMPLES, "slow.sample": "5%"}
        agent = slow.start(guest, [workload.job], SLOWDOWN, settings)
        huge: list[int] = []
        periods = 0
        # On a loaded host a period takes longer than configured.
        while periods < PERIODS and len(huge) < 2 * CHECKS:
            slow.pass_time(workload, PERIODS / CHECKS * period_s)
            huge.append(slow.huge_bytes(workload))
            periods = sum(record["record"] == "slow" for record in node.journal(guest))
        vmstat = guest.flat_keyed("/proc/vmstat")
        view = slow.view(agent, workload.job)
        agent.stop()
        after = slow.huge_bytes(workload)
        workload.stop()
    figures = {
        "huge_bytes_before": before,
        "huge_bytes_after": after,
        "kept_ratio": after / before,
        # During a period the sampled pages are split.
        "kept_min_ratio": min(huge) / before,
        "periods": periods,
        "splits": vmstat["thp_split_pmd"],
        "split_pages": vmstat["thp_split_page"],
        "collapses": vmstat["thp_collapse_alloc"],
        "placed_ratio": view["slow_bytes"] / (JOB_MIB * MIB),
    }
    lab.say(f"{before / MIB:.0f} MiB in huge pages before, {after / MIB:.0f} MiB after; {view['explanation']}")
    lab.holds("before", before >= 0.98 * JOB_MIB * MIB, f"the job had {before} B in huge pages at first")
    lab.at_least("kept_ratio", figures["kept_ratio"], KEPT_MIN_RATIO)
    lab.at_least("periods", figures["periods"], PERIODS)
    # Otherwise the run tested nothing.
    lab.at_least("split_pages", figures["split_pages"], PERIODS / 2)
    return figures
