"""Dead memory leaves DRAM within twice the threshold, and hot memory stays, across two phase changes.

The job has hot memory, dead memory, and two regions that alternate: the first is dead and becomes hot while the second
dies, then they change back. The time since a death counts from the last access. After two thresholds, plus one scan
because ages count whole scans, 95 % of the dead memory must be in far memory. The threshold is one that was in effect
at two consecutive samples: at a phase change a whole region is promoted at once, and the controller correctly raises
the threshold above that region's age until the promotions are over. Far memory is checked for hot pages throughout; a
region that has just become hot is exempt for one scan, the time for its promotion.

Time runs 60 times faster than in production: a scan of 2 s stands for 120 s.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from thermolab import node, truth
from thermolab.lab import Lab
from thermolab.truth import Region

KERNELS = ("6.12-idle",)
MORE_IS_BETTER = ("saved_bytes", "samples")

RUN_S = float(os.environ.get("THERMOCLINE_LAB_SECONDS", "600"))
"""Time for which the agent runs; shorter times are for development."""

SCAN_S = 2.0
WARMUP_S = 20.0
_SAMPLE_S = 2.0
_FIRST_CHANGE, _SECOND_CHANGE = 0.5, 0.75
PERCENTILE = 0.98
"""The controller tolerates spikes in the remaining share of periods, which phase changes must not exceed."""

OFFLOADED_MIN_RATIO = 0.95
HOT_OFFLOADED_MAX_RATIO = 0.001

_HOT = {"period_ms": 100}
_DEAD = {"never": True}


def regions() -> list[Region]:
    """Returns some 200 MiB of regions; their phases change on request."""

    def phases(*patterns: dict[str, Any]) -> dict[str, Any]:
        return {"phases": [{"for_s": 80_000, **pattern} for pattern in patterns]}

    return [
        Region("hot", 48, _HOT, writes=True),
        Region("dead", 96, _DEAD),
        Region("first", 32, phases(_DEAD, _HOT)),
        Region("second", 32, phases(_HOT, _DEAD)),
    ]


@dataclass(slots=True)
class Watch:
    """Samples the placement of memory while the agent runs."""

    lab: Lab
    workload: truth.Workload
    agent: node.Agent
    hot: set[str]
    turned_hot: tuple[str, float] = ("", 0.0)
    hot_offloaded: float = 0.0
    samples: int = 0
    died: int = 0
    offloaded: int = 0
    deaths: list[dict[str, Any]] = field(default_factory=list)

    def sample(self) -> tuple[float, dict[str, dict[str, int]], float | None]:
        """Takes a sample; returns the time, each region's residency, and the threshold in effect."""
        # There is no event to wait for.
        self.workload.guest.run(["sleep", str(_SAMPLE_S)])
        now = self.workload.uptime()
        where = self.workload.residency()
        region, since = self.turned_hot
        hot = [name for name in self.hot if name != region or now - since > SCAN_S]
        share = sum(where[name]["swapped_bytes"] for name in hot) / self.workload.bytes_of(hot)
        if share > self.hot_offloaded:
            self.lab.say(f"{share:.3%} of hot memory is in far memory at {now:.0f} s")
            self.hot_offloaded = share
        self.samples += 1
        job = self.agent.job(self.workload.job)
        threshold: float | None = job["threshold_seconds"]
        return now, where, threshold

    def until(self, end: float) -> None:
        """Takes samples until a time since boot."""
        while self.sample()[0] < end:
            pass

    def death(self, names: list[str], since: float, end: float) -> None:
        """Samples regions that died at `since` for two thresholds and one scan, at most until `end`."""
        before: float | None = None
        highest = 0.0
        while True:
            now, where, threshold = self.sample()
            highest = max(highest, threshold or 0.0)
            in_effect = threshold is not None and threshold == before
            if now >= end or (in_effect and threshold is not None and now >= since + 2 * threshold + SCAN_S):
                break
            before = threshold
        died = self.workload.bytes_of(names)
        offloaded = sum(where[name]["swapped_bytes"] for name in names)
        after = now - since
        self.lab.say(
            f"{', '.join(names)}: {offloaded / died:.1%} offloaded {after:.0f} s after death; threshold {threshold} s"
        )
        self.died += died
        self.offloaded += offloaded
        self.deaths.append(
            {
                "offloaded_ratio": offloaded / died,
                "after_seconds": after,
                "threshold_seconds": threshold,
                "threshold_highest_seconds": highest,
            }
        )


def run(lab: Lab) -> dict[str, Any]:
    """Runs the agent on a workload whose regions die and become hot."""
    with lab.guest() as guest:
        truth.tick(guest)
        workload = truth.Workload(guest, regions())
        settings: node.Settings = {
            "agent.scan_period": f"{SCAN_S:g}s",
            "agent.control_period": f"{SCAN_S:g}s",
            "cold_age.warmup": f"{WARMUP_S:g}s",
            "cold_age.percentile": f"{PERCENTILE:.0%}",
        }
        node.configure(guest, [node.Job(workload.job)], settings)
        before = guest.number(f"{workload.cgroup}/memory.current")
        agent = node.start(guest)
        begin = workload.uptime()
        first_change, second_change = begin + _FIRST_CHANGE * RUN_S, begin + _SECOND_CHANGE * RUN_S
        watch = Watch(lab, workload, agent, {"hot", "second"})
        # All of it was dead before the agent's start; the agent may act after its warm-up.
        watch.death(["dead", "first"], begin + WARMUP_S, first_change)
        watch.until(first_change)
        for turned_hot, died, end in (("first", "second", second_change), ("second", "first", begin + RUN_S)):
            changed = workload.next_phase()
            watch.hot, watch.turned_hot = {"hot", turned_hot}, (turned_hot, changed)
            watch.death([died], changed, end)
            watch.until(end)
        status, job = agent.status(), agent.job(workload.job)
        agent.stop()
        guest.keep(f"{node.STATE}/journal")
        workload.stop()
    figures: dict[str, Any] = {
        "tracker": job["tracker"],
        "run_seconds": RUN_S,
        "memory_before_bytes": before,
        "memory_after_bytes": job["memory_bytes"],
        "offloaded_ratio": watch.offloaded / watch.died,
        "hot_offloaded_ratio": watch.hot_offloaded,
        "offloaded_bytes": job["far_bytes"],
        "saved_bytes": job["saved_bytes"],
        "samples": watch.samples,
        "deaths": watch.deaths,
        "slo_violations": job["totals"]["slo_violations"],
        "periods": job["totals"]["periods"],
        "reconcile_gap_ratio": status["machine"]["reconcile_gap_ratio"],
    }
    lab.at_least("offloaded_ratio", figures["offloaded_ratio"], OFFLOADED_MIN_RATIO)
    lab.at_most("hot_offloaded_ratio", figures["hot_offloaded_ratio"], HOT_OFFLOADED_MAX_RATIO)
    lab.at_least("saved_bytes", figures["saved_bytes"], 1)
    return figures
