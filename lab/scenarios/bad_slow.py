"""Slow memory in trouble: each case ends with a clear message, and other jobs go on.

The slow node is too small for what belongs there; it goes offline while it is in use; huge pages are switched off;
memory is locked; processes end while they are sampled and moved; `kernel.numa_balancing` moves pages by its own rules.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thermolab import node, numa, slow
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12-idle", "6.12", "7.2")

SLOWDOWN = 0.03
COLD = poisson(0.01, 0.1)
_PERIOD_S = 2
_SETTINGS: node.Settings = {
    # Jobs are found by scans.
    "agent.scan_period": f"{_PERIOD_S}s",
    "slow.period": f"{_PERIOD_S}s",
    "slow.looks": 9,
    "slow.sample": "100%",
    # Nothing here is about rates, and looks are few.
    "slow.latency": "10us",
}
_BRIEF = 6
_BALANCING = "/proc/sys/kernel/numa_balancing"


def run(lab: Lab) -> dict[str, Any]:
    """A guest for each node that is in trouble; one for all that jobs do."""
    figures = {"full": _full(lab), "offline": _offline(lab), "jobs": _jobs(lab)}
    lab.say(f"{figures}")
    return figures


def _full(lab: Lab) -> dict[str, Any]:
    """All of the job belongs into a node that holds half of it."""
    with lab.guest(numa.two_nodes(640, 128)) as guest:
        workload = Workload(guest, [Region("cold", 192, COLD, kind="huge")], "full")
        agent = slow.start(guest, [workload.job], SLOWDOWN, _SETTINGS)
        # Whatever more is asked for, the node is full.
        says = _until(agent, workload, lambda says: "room" in says["explanation"])
        free = _free_bytes(guest)
        _ends_well(lab, agent, "full")
        lab.holds("full", _running(guest, workload.pid), "the job did not survive")
        workload.stop()
    lab.at_least("full.slow_bytes", says["slow_bytes"], 48 * MIB)
    lab.holds("full", "room" in says["explanation"], f"nothing is said of the room: {says['explanation']}")
    # The kernel needs some for itself, or it starts to reclaim there.
    lab.at_least("full.free_bytes", free, 1 * MIB)
    return {"slow_bytes": says["slow_bytes"], "free_bytes": free}


def _offline(lab: Lab) -> dict[str, Any]:
    """As much of the node as the kernel lets go is taken away under the job; then the agent is started again."""
    # What is movable only can be taken away; the kernel spreads the rest evenly over the nodes.
    machine = replace(numa.two_nodes(640, 384), cmdline="kernelcore=256M")
    with lab.guest(machine) as guest:
        workload = Workload(guest, [Region("cold", 128, COLD, kind="huge")], "offline")
        other = Workload(guest, [Region("other", 16, COLD, kind="huge")], "other")
        agent = slow.start(guest, [workload.job, other.job], SLOWDOWN, _SETTINGS)
        placed = _until(agent, workload, _has(96))["slow_bytes"]
        # The small kernel cannot take memory away: it has no file that says which zones a block may be in.
        blocks = guest.run(
            ["sh", "-c", f"ls -d /sys/devices/system/node/node{numa.SLOW}/memory*/valid_zones"], check=False
        ).stdout.split()
        taken = 0
        for block in blocks:
            # EBUSY where something there cannot be moved.
            offline = f"echo offline > {block.removesuffix('/valid_zones')}/state"
            taken += guest.run(["sh", "-c", offline], check=False, timeout_s=120).status == 0
        slow.pass_time(workload, 3 * _PERIOD_S)
        says = slow.view(agent, workload.job)
        _ends_well(lab, agent, "offline")
        lab.holds("offline", _running(guest, workload.pid), "the job did not survive")
        workload.stop()
        other.stop()
    lab.at_least("offline.blocks_taken", taken, min(1, len(blocks)))
    return {
        "placed_bytes": placed,
        "blocks": len(blocks),
        "blocks_taken": taken,
        "slow_bytes": says["slow_bytes"],
        "explanation": says["explanation"],
    }


def _jobs(lab: Lab) -> dict[str, Any]:
    """Jobs of all kinds beside one that is as it should be."""
    with lab.guest(numa.two_nodes(640, 384)) as guest:
        good = Workload(guest, [Region("cold", 32, COLD, kind="huge")], "good")
        locked = Workload(guest, [Region("cold", 16, COLD, kind="huge", locked=True)], "locked")
        guest.write("/sys/kernel/mm/transparent_hugepage/enabled", "never")
        small = Workload(guest, [Region("cold", 16, COLD, kind="huge")], "small")
        jobs = [workload.job for workload in (good, locked, small)]
        guest.write(_BALANCING, "1")
        conflict = _conflict(lab, guest, good)
        agent = slow.start(guest, jobs, SLOWDOWN, _SETTINGS, later="/brief*")
        for number in range(_BRIEF):
            brief = Workload(guest, [Region("cold", 16, COLD)], f"brief{number}")
            guest.expect(agent.log, f"{brief.job}: job starts")
            # At another moment of its period each time: while it is looked at, split, or moved.
            slow.pass_time(brief, _PERIOD_S + _PERIOD_S * number / _BRIEF)
            guest.kill(brief.pid, 9)
            guest.wait_exit(brief.pid)
        says = {workload.job[1:]: _until(agent, workload, _has(mib)) for workload, mib in ((good, 30), (small, 8))}
        says["locked"] = slow.view(agent, locked.job)
        huge = slow.huge_bytes(small)
        managed = guest.number(_BALANCING)
        _ends_well(lab, agent, "jobs")
        put_back = guest.number(_BALANCING)
        for workload in (good, locked, small):
            lab.holds("jobs", _running(guest, workload.pid), f"{workload.job} did not survive")
    lab.at_least("jobs.good_slow_bytes", says["good"]["slow_bytes"], 28 * MIB)
    lab.at_least("jobs.small_slow_bytes", says["small"]["slow_bytes"], 8 * MIB)
    lab.at_most("jobs.small_huge_bytes", huge, 0)
    # What the program has besides is not locked.
    lab.at_most("jobs.locked_slow_bytes", says["locked"]["slow_bytes"], 1 * MIB)
    lab.holds("jobs", (managed, put_back) == (0, 1), f"numa_balancing was {managed}, and {put_back} afterwards")
    return {
        **{f"{name}_slow_bytes": said["slow_bytes"] for name, said in says.items()},
        "locked_explanation": says["locked"]["explanation"],
        "conflict_explanation": conflict,
    }


def _conflict(lab: Lab, guest: Guest, workload: Workload) -> str:
    """With `kernel.numa_balancing` on and not ours to switch off, nothing is placed, and that is said."""
    agent = slow.start(guest, [workload.job], SLOWDOWN, {**_SETTINGS, "slow.manage": False})
    says = _until(agent, workload, lambda says: "numa_balancing" in says["explanation"])
    explanation: str = says["explanation"]
    _ends_well(lab, agent, "conflict")
    lab.at_most("conflict.slow_bytes", says["slow_bytes"], 0)
    lab.holds("conflict", "numa_balancing" in explanation, f"nothing is said of numa_balancing: {explanation}")
    return explanation


def _has(mib: int) -> Callable[[dict[str, Any]], bool]:
    """Whether the agent says that so much is in slow memory."""
    return lambda says: bool(says["slow_bytes"] >= mib * MIB)


def _until(agent: node.Agent, workload: Workload, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the agent says once that is enough, or after a minute."""
    for _ in range(30):
        says = slow.view(agent, workload.job)
        if enough(says):
            break
        slow.pass_time(workload, _PERIOD_S)
    return says


def _free_bytes(guest: Guest) -> int:
    text = guest.read(f"/sys/devices/system/node/node{numa.SLOW}/meminfo")
    return next(int(line.split()[3]) << 10 for line in text.splitlines() if "MemFree:" in line)


def _running(guest: Guest, pid: int) -> bool:
    return guest.run(["kill", "-0", str(pid)], check=False).status == 0


def _ends_well(lab: Lab, agent: node.Agent, case: str) -> None:
    end = agent.stop()
    lab.holds(case, end.status == 0, f"the agent ended with status {end.status}, signal {end.signal}")
    said = agent.guest.read(agent.log)
    lab.holds(case, "panicked" not in said, said[-500:])
