"""How much memory is in the slow node, and how few of the accesses go there: three workloads under policy `slowdown`.

The pair of figures by which TMTS (Duraisamy and coauthors, ASPLOS 2023) judges a tiering system: residency of the
second tier, and the share of accesses that it serves. Workloads in huge pages, which count their own accesses:

- `blocks`: each block has its own rate, 0.1 to 2000 per second; three of ten are never accessed.
- `records`: the same, but a block's accesses go to 8 of its 512 pages, and to these by Zipf's law.
- `analytics`: an index in use, a table that is scanned once a minute, and a history that nothing reads.

What is judged begins after three scans and a half: the first finds the table in fast memory or on its way, and two in
slow memory show what a further one would cost.
"""

import statistics
from typing import Any

from thermolab import numa, slow, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("placed_ratio",)

SLOWDOWN = 0.005
"""50 accesses per second, of 12,000 and more."""
SETTLE_PERIODS = 12
JUDGED_PERIODS = 6
SCAN_S = 60
SETTLE_SCANS = 3.5
PLACED_MIN_RATIO = 0.4
ACCESSES_MAX_RATIO = 0.005

_RATES = {"least": 0.1, "most": 2000, "idle": 0.3}

_WORKLOADS: dict[str, list[Region]] = {
    "blocks": [Region("blocks", 192, poisson(**_RATES), kind="huge")],
    "records": [Region("records", 192, poisson(**_RATES, parts=8, exponent=1.0), kind="huge")],
    "analytics": [
        Region("index", 16, {"zipf": {"exponent": 0.8, "touches_per_s": 12_000}}, kind="huge"),
        Region("table", 48, {"period_ms": 1000 * SCAN_S}, kind="huge"),
        Region("history", 96, {"never": True}, kind="huge"),
    ],
}


def run(lab: Lab) -> dict[str, Any]:
    """Runs the workloads one after the other."""
    figures: dict[str, Any] = {}
    with lab.guest(numa.two_nodes(768, 384)) as guest:
        truth.tick(guest, 20)
        for name, regions in _WORKLOADS.items():
            figures[name] = _pair(lab, guest, name, regions)
    pairs = [f"{name}: {row['placed_ratio']:.1%}, {row['accesses_ratio']:.3%}" for name, row in figures.items()]
    lab.say(", ".join(pairs))
    for name, row in figures.items():
        lab.at_least(f"{name}.placed_ratio", row["placed_ratio"], PLACED_MIN_RATIO)
        lab.at_most(f"{name}.accesses_ratio", row["accesses_ratio"], ACCESSES_MAX_RATIO)
    return figures


def _pair(lab: Lab, guest: Guest, name: str, regions: list[Region]) -> dict[str, float]:
    workload = Workload(guest, regions, name)
    watch = numa.Watch(workload)
    agent = slow.start(guest, [workload.job], SLOWDOWN)
    began = workload.uptime()
    slow.pass_periods(workload, SETTLE_PERIODS)
    slow.pass_time(workload, max(0, began + SETTLE_SCANS * SCAN_S - workload.uptime()))
    settled = workload.uptime()
    slow.pass_periods(workload, JUDGED_PERIODS)
    slow.pass_time(workload, max(0, settled + SCAN_S - workload.uptime()))
    judged = workload.uptime()
    lab.say(f"{name}: {slow.view(agent, workload.job)['explanation']}")
    agent.stop()
    windows = numa.between(watch.stop(), settled, judged)
    workload.stop()
    in_slow = sum(window.slow_accesses for window in windows)
    accesses = in_slow + sum(window.local_accesses for window in windows)
    total = sum(region.mib for region in regions) * MIB
    return {
        "placed_ratio": statistics.mean(window.slow_bytes for window in windows) / total,
        "accesses_ratio": in_slow / accesses,
        "accesses_per_second": accesses / sum(window.elapsed_seconds for window in windows),
    }
