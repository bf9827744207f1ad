"""Huge pages survive an hour under policy `slowdown`, which splits those that it samples and puts them together again.

120 periods of 30 s are an hour; here each takes as long as the guest's tracker needs for its looks, 2 s or, with DAMON,
9 s, with as many samples. Half of the job is accessed too often to be judged as a whole, so that it is split when
sampled. `kept_ratio` is what the job has in huge pages afterwards, by what it had.
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
LOOKS = 9
SLOWDOWN = 0.03
CHECKS = 12
KEPT_MIN_RATIO = 0.95


def run(lab: Lab) -> dict[str, Any]:
    """An hour, shortened."""
    with lab.guest(numa.two_nodes(512, 256)) as guest:
        truth.tick(guest, 20)
        regions = [
            Region("busy", JOB_MIB // 2, poisson(20, 200), kind="huge"),
            Region("calm", JOB_MIB // 2, poisson(0.1, 5), kind="huge"),
        ]
        workload = Workload(guest, regions)
        before = slow.huge_bytes(workload)
        period_s = slow.period_s(guest, LOOKS)
        settings: node.Settings = {"slow.period": f"{period_s}s", "slow.looks": LOOKS, "slow.sample": "5%"}
        agent = slow.start(guest, [workload.job], SLOWDOWN, settings)
        seen: list[int] = []
        periods = 0
        # A loaded host makes a period take longer than it should.
        while periods < PERIODS and len(seen) < 2 * CHECKS:
            slow.pass_time(workload, PERIODS / CHECKS * period_s)
            seen.append(slow.huge_bytes(workload))
            periods = sum(record["record"] == "slow" for record in node.journal(guest))
        vmstat = guest.flat_keyed("/proc/vmstat")
        says = slow.view(agent, workload.job)
        agent.stop()
        after = slow.huge_bytes(workload)
        workload.stop()
    figures = {
        "huge_bytes_before": before,
        "huge_bytes_after": after,
        "kept_ratio": after / before,
        # Within a period, what is sampled is split.
        "kept_min_ratio": min(seen) / before,
        "periods": periods,
        "splits": vmstat["thp_split_pmd"],
        "split_pages": vmstat["thp_split_page"],
        "collapses": vmstat["thp_collapse_alloc"],
        "placed_ratio": says["slow_bytes"] / (JOB_MIB * MIB),
    }
    lab.say(f"{before / MIB:.0f} MiB in huge pages before, {after / MIB:.0f} MiB after; {says['explanation']}")
    lab.holds("before", before >= 0.98 * JOB_MIB * MIB, f"the job had {before} B in huge pages to begin with")
    lab.at_least("kept_ratio", figures["kept_ratio"], KEPT_MIN_RATIO)
    lab.at_least("periods", figures["periods"], PERIODS)
    # Or nothing was put to the test.
    lab.at_least("split_pages", figures["split_pages"], PERIODS / 2)
    return figures
