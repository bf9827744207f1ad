"""The agent's estimate of what a job loses to far memory, beside what the job itself counts.

Three kinds of far memory, each at three intensities: zswap, a slow swap device, and a slow node. The agent only
measures in the first two: a loop evicts a fixed amount of the job's memory per second, through `memory.reclaim`. The
job serves requests at a fixed rate and times each access. Its loss is the time of the accesses during which it had a
page fault; without one, an access takes about a hundredth of that. How much longer the other accesses become is a
result too, without a bound: it is measured against the same requests while the loop evicts as much of another job, and
it is the eviction's cost (flushed translations, which are dear in an emulated processor), whether or not a page
returns. A slow node costs an emulated guest nothing: there, the job counts its accesses to the node, and each of them
counts as the configured latency. It counts those to its data only, which is in huge pages. What the agent estimates
for the job's other memory, such as its stack of three pages, is left out of the comparison, and is a result of its own.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from thermolab import node, numa, offload, slow, swap, truth
from thermolab.lab import Lab
from thermolab.truth import Region, Server, Workload, poisson, requests
from thermolab.windows import Window, settled, watch

KERNELS = ("6.12-idle",)

JOB_MIB = 128
SERVER = Server(rounds=20_000, rate=60)
EXPONENT = 0.5
PAGES = 4
"""Pages that a request reads."""
DELAY_MS = 2
STEPS = ("low", "middle", "high")
EVICTED_KIB_PER_SECOND = {"zswap": (2048, 4096, 8192), "device": (128, 256, 512)}
SLOWDOWNS = (0.02, 0.05, 0.10)
SETTLE_SECONDS = 8
JUDGED_SECONDS = 20
SETTLE_PERIODS = 6
JUDGED_PERIODS = 5

HUGE_BYTES = 2 << 20

ERROR_MAX_RATIO = 0.3
LOST_MIN_RATIO = 0.002
"""An intensity at which the job loses less than this share of its time would test nothing."""

_MEASURE: node.Settings = {"agent.scan_period": "60s", "agent.control_period": "1s"}


def run(lab: Lab) -> dict[str, Any]:
    """Runs a guest for each kind of far memory."""
    rows = {}
    worst = 0.0
    for kind in (*EVICTED_KIB_PER_SECOND, "slow_node"):
        measured = _slow_node(lab) if kind == "slow_node" else _evicted(lab, kind)
        rows[kind] = dict(zip(STEPS, measured, strict=True))
        for step, row in rows[kind].items():
            worst = max(worst, row["error_ratio"])
            lab.at_least(f"{kind}.{step}.job_lost_ratio", row["job_lost_ratio"], LOST_MIN_RATIO)
    lab.at_most("worst_error_ratio", worst, ERROR_MAX_RATIO)
    return {"worst_error_ratio": worst, **rows}


def _row(job_lost: float, agent_lost: float, seconds: float, waits: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_lost_ratio": job_lost / seconds,
        "agent_lost_ratio": agent_lost / seconds,
        "error_ratio": abs(agent_lost - job_lost) / max(job_lost, 1e-9),
        "swap_in_mean_us": waits["swap_in_mean_us"],
        "slowdown_ratio": waits["slowdown_ratio"],
        "lost": waits["lost"],
    }


def _evicted(lab: Lab, kind: str) -> list[dict[str, Any]]:
    """Measures a job whose memory is evicted to zswap or to a slow device."""
    with lab.guest() as guest:
        guest.write("/proc/sys/kernel/task_delayacct", "1")
        if kind == "device":
            swap.delay(guest, DELAY_MS)
        truth.tick(guest)
        content = "weights" if kind == "device" else "anon"
        region = Region("data", JOB_MIB, requests(PAGES, EXPONENT), kind=content)
        workload, other = (Workload(guest, [region], name, SERVER) for name in ("truth", "other"))
        tier = "swap" if kind == "device" else "zswap"
        guest.run(["rm", "-rf", node.STATE])
        guest.write("/sys/module/zswap/parameters/enabled", "N" if kind == "device" else "Y")
        own: node.Settings = {"agent.tier": tier, "zswap.manage": False}
        settings: node.Settings = {**offload.PRESSURE_SETTINGS, **_MEASURE, **own}
        node.configure(guest, [node.Job(workload.job, group="observe")], settings)
        agent = node.start(guest)
        settled(other, 5)
        steps = EVICTED_KIB_PER_SECOND[kind]
        # All of these first: what leaves the job returns for a long time.
        bases = [_evicting(other, workload, agent, kib)[0] for kib in steps]
        rows = []
        for kib, base in zip(steps, bases, strict=True):
            rows.append(_intensity(workload, agent, base, kib))
            lab.say(f"{kind}, {kib} KiB/s evicted: {rows[-1]}")
        agent.stop()
        for job in (workload, other):
            job.stop()
    return rows


def _intensity(workload: Workload, agent: node.Agent, base: Window, kib: int) -> dict[str, Any]:
    """Measures one intensity."""
    window, before, after = _evicting(workload, workload, agent, kib)
    lost = (window.faulted_ratio - base.faulted_ratio) * JUDGED_SECONDS
    row = _row(lost, after["lost_seconds"] - before["lost_seconds"], JUDGED_SECONDS, after)
    mapped, mapped_base = (of.access_ratio - of.faulted_ratio for of in (window, base))
    return {**row, "without_fault_ratio": mapped - mapped_base}


def _evicting(
    evicted: Workload, workload: Workload, agent: node.Agent, kib: int
) -> tuple[Window, dict[str, Any], dict[str, Any]]:
    """Watches `workload` while some of the memory of `evicted` is evicted per second."""
    guest = workload.guest
    loop = f"while :; do echo {kib}K > {evicted.cgroup}/memory.reclaim 2>/dev/null; sleep 1; done"
    evicting = guest.spawn(["sh", "-c", loop], stdout="/run/evict.out", stderr="/run/evict.out")
    watch([workload], SETTLE_SECONDS)
    before = _waits(agent, workload)
    (window,) = watch([workload], JUDGED_SECONDS)
    after = _waits(agent, workload)
    guest.kill(evicting)
    guest.wait_exit(evicting)
    return window, before, after


def _waits(agent: node.Agent, workload: Workload) -> dict[str, Any]:
    waits: dict[str, Any] = agent.job(workload.job)["waits"]
    return waits


def _slow_node(lab: Lab) -> list[dict[str, Any]]:
    """Measures a job a part of which is in a slow node, with three budgets."""
    with lab.guest(numa.two_nodes(640, 384)) as guest:
        truth.tick(guest, 20)
        workload = Workload(guest, [Region("blocks", 256, poisson(0.1, 1000), kind="huge")])
        nodes = numa.Watch(workload)
        rows = []
        for slowdown in SLOWDOWNS:
            rows.append(_budget(lab, workload, nodes, slowdown))
            lab.say(f"slow node, budget {slowdown:.0%}: {rows[-1]}")
        nodes.stop()
        workload.stop()
    return rows


def _budget(lab: Lab, workload: Workload, nodes: numa.Watch, slowdown: float) -> dict[str, Any]:
    """Measures one budget."""
    guest = workload.guest
    agent = slow.start(guest, [workload.job], slowdown, {"agent.control_period": "1s"})
    slow.pass_periods(workload, SETTLE_PERIODS)
    begins, before = workload.uptime(), _waits(agent, workload)
    slow.pass_periods(workload, JUDGED_PERIODS)
    ends, after = workload.uptime(), _waits(agent, workload)
    time.sleep(1)
    windows: Sequence[numa.Window] = numa.between(nodes.windows(), begins, ends)
    rates = slow.rates_per_second(guest, workload.job)[-JUDGED_PERIODS:]
    huge = slow.huge_bytes(workload)
    # A period's rate counts until the next one has ended.
    judged = [record for record in node.journal(guest) if record["record"] == "slow"][-JUDGED_PERIODS - 1 :]
    uncounted = sum(
        _uncounted_per_second(record) * (next_record["unix_ms"] - record["unix_ms"]) / 1e3 * slow.LATENCY_US / 1e6
        for record, next_record in pairwise(judged)
    )
    agent.stop()
    accesses = sum(window.slow_accesses for window in windows)
    counted = sum(window.elapsed_seconds for window in windows)
    lost = accesses / counted * slow.LATENCY_US / 1e6 * (ends - begins)
    row = _row(lost, after["lost_seconds"] - before["lost_seconds"] - uncounted, ends - begins, after)
    if row["error_ratio"] > ERROR_MAX_RATIO / 2:
        lab.say(f"what the agent saw in its last periods: {judged}")
    uncounted_ratio = uncounted / (ends - begins)
    return {
        **row,
        "agent_uncounted_ratio": uncounted_ratio,
        "seconds": ends - begins,
        "rates_per_second": rates,
        "huge_bytes": huge,
    }


def _uncounted_per_second(record: dict[str, Any]) -> float:
    """Returns the estimated accesses per second to slow memory that is not in huge pages."""
    small = [run for run in record["input"]["slow"] if run["bytes"] < HUGE_BYTES]
    return float(sum(run["mean"] * run["blocks"] for run in small)) / 1e6
