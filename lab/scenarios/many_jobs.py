"""With 200 jobs on one machine the agent's loop keeps its period, and the agent's memory stays small.

Each job is a process of 3 MiB, an eighth of it hot, in its own cgroup. Scan and control periods are 5 s, because
emulation makes everything many times slower; in production they are 120 s and 60 s.
"""

import json
from typing import Any

from thermolab import node
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine, SwapDisk

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("jobs", "jobs_offloaded", "scans")

JOBS = 200
SCANS = 24
_JOB_KIB = 3072
_PERIOD_SECONDS = 5
_ROUNDS = "/run/agent.json"
_LOG = "/run/agent.log"

_SETTINGS: node.Settings = {
    "agent.scan_period": f"{_PERIOD_SECONDS}s",
    "agent.control_period": f"{_PERIOD_SECONDS}s",
    # The objective in compressed time, 24 times as fast as in production.
    "cold_age.promotion_rate": "5%",
    "cold_age.warmup": f"{3 * _PERIOD_SECONDS}s",
}


def run(lab: Lab) -> dict[str, Any]:
    """Starts the jobs, runs the agent for two minutes and reads its costs."""
    with lab.guest(Machine(memory_bytes=2 * GIB, swap=SwapDisk(2 * GIB))) as guest:
        _crowd(guest)
        node.configure(guest, [node.Job("/crowd/*")], _SETTINGS)
        lab.say(f"{JOBS} jobs are up")
        guest.write(_ROUNDS, "")
        pid = guest.spawn(["thermocline", "agent", "--format", "json"], stdout=_ROUNDS, stderr=_LOG)
        guest.expect(_ROUNDS, f'"scans":{SCANS},', timeout_s=3 * SCANS * _PERIOD_SECONDS)
        costs = _costs(guest)
        agent = node.Agent(guest, pid, _LOG)
        status = agent.status()
        agent.stop()
    figures = _figures(costs, status)
    _bounds(lab, figures)
    return figures


def _crowd(guest: Guest) -> None:
    parent, log = guest.cgroup("crowd"), "/run/crowd.log"
    guest.write(f"{parent}/cgroup.subtree_control", "+memory")
    size = ["--count", str(JOBS), "--kib", str(_JOB_KIB), "--hot-kib", str(_JOB_KIB // 8)]
    guest.spawn(["labguest", "crowd", "--cgroup", parent, *size], stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=300)


def _costs(guest: Guest) -> list[dict[str, Any]]:
    """Returns the agent's costs after each scan; they are extracted in the guest, because the views are long."""
    cut = r's/.*"costs":\({[^}]*}\).*/\1/'
    costs = [json.loads(line) for line in guest.run(["sed", cut, _ROUNDS], timeout_s=180).stdout.splitlines()]
    return [cost for cost in costs if cost["scans"] <= SCANS]


def _figures(costs: list[dict[str, Any]], status: dict[str, Any]) -> dict[str, Any]:
    last, jobs = costs[-1], status["jobs"]
    return {
        "jobs": len(jobs),
        "jobs_offloaded": sum(job["totals"]["offloaded"] > 0 for job in jobs),
        "scans": last["scans"],
        "late_scans": last["late_scans"],
        "scan_share_of_period_max_ratio": max(cost["scan_seconds"] for cost in costs) / _PERIOD_SECONDS,
        "agent_cpu_ratio": last["cpu_seconds"] / (last["scans"] * _PERIOD_SECONDS),
        "agent_rss_bytes": max(cost["rss_bytes"] for cost in costs),
        "machine_bytes": status["machine"]["total_bytes"],
    }


def _bounds(lab: Lab, figures: dict[str, Any]) -> None:
    lab.at_least("jobs", figures["jobs"], JOBS)
    # A loop without work would keep its period trivially.
    lab.at_least("jobs_offloaded", figures["jobs_offloaded"], JOBS * 9 // 10)
    lab.at_least("scans", figures["scans"], SCANS)
    lab.at_most("late_scans", figures["late_scans"], 0)
    lab.at_most("agent_rss_bytes", figures["agent_rss_bytes"], figures["machine_bytes"] * 0.0005 + 20 * MIB)
