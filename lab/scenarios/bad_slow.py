"""When slow memory is full, goes offline or cannot be used, a clear message is reported and other jobs are unaffected.

The slow node is too small for the memory to be placed there; it goes offline while in use; huge pages are disabled;
memory is locked; processes exit while they are sampled and moved; `kernel.numa_balancing` moves pages by its own rules.
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
    # Jobs are discovered by scans.
    "agent.scan_period": f"{_PERIOD_S}s",
    "slow.period": f"{_PERIOD_S}s",
    "slow.samples": 9,
    "slow.sample": "100%",
    # These cases do not depend on access rates, and there are few samples.
    "slow.latency": "10us",
}
_BRIEF = 6
_BALANCING = "/proc/sys/kernel/numa_balancing"


def run(lab: Lab) -> dict[str, Any]:
    """Runs one guest for each case of a node, and one for all cases of jobs."""
    figures = {"full": _full(lab), "offline": _offline(lab), "jobs": _jobs(lab)}
    lab.say(f"{figures}")
    return figures


def _full(lab: Lab) -> dict[str, Any]:
    """A job of which everything should be placed on a node that holds half of it."""
    with lab.guest(numa.two_nodes(640, 128)) as guest:
        workload = Workload(guest, [Region("cold", 192, COLD, kind="huge")], "full")
        agent = slow.start(guest, [workload.job], SLOWDOWN, _SETTINGS)
        # The node is full whatever else is requested.
        view = _until(agent, workload, lambda view: "is full" in view["explanation"])
        free = _free_bytes(guest)
        _check_exit(lab, agent, "full")
        lab.holds("full", _running(guest, workload.pid), "the job did not survive")
        workload.stop()
    lab.at_least("full.slow_bytes", view["slow_bytes"], 48 * MIB)
    lab.holds(
        "full",
        "is full" in view["explanation"],
        f"the explanation does not mention the full node: {view['explanation']}",
    )
    # The kernel needs some free memory, or it starts to reclaim on that node.
    lab.at_least("full.free_bytes", free, 1 * MIB)
    return {"slow_bytes": view["slow_bytes"], "free_bytes": free}


def _offline(lab: Lab) -> dict[str, Any]:
    """As much of the node as the kernel permits is taken offline under the job; then the agent is stopped."""
    # Only movable memory can be taken offline; the kernel spreads the rest evenly over the nodes.
    machine = replace(numa.two_nodes(640, 384), cmdline="kernelcore=256M")
    with lab.guest(machine) as guest:
        workload = Workload(guest, [Region("cold", 128, COLD, kind="huge")], "offline")
        other = Workload(guest, [Region("other", 16, COLD, kind="huge")], "other")
        agent = slow.start(guest, [workload.job, other.job], SLOWDOWN, _SETTINGS)
        placed = _until(agent, workload, _has(96))["slow_bytes"]
        # The idle kernel cannot take memory offline: it has no file with a block's valid zones.
        blocks = guest.run(
            ["sh", "-c", f"ls -d /sys/devices/system/node/node{numa.SLOW}/memory*/valid_zones"], check=False
        ).stdout.split()
        taken = 0
        for block in blocks:
            # EBUSY if some page of the block cannot be moved.
            offline = f"echo offline > {block.removesuffix('/valid_zones')}/state"
            taken += guest.run(["sh", "-c", offline], check=False, timeout_s=120).status == 0
        slow.pass_time(workload, 3 * _PERIOD_S)
        view = slow.view(agent, workload.job)
        _check_exit(lab, agent, "offline")
        lab.holds("offline", _running(guest, workload.pid), "the job did not survive")
        workload.stop()
        other.stop()
    lab.at_least("offline.blocks_taken", taken, min(1, len(blocks)))
    return {
        "placed_bytes": placed,
        "blocks": len(blocks),
        "blocks_taken": taken,
        "slow_bytes": view["slow_bytes"],
        "explanation": view["explanation"],
    }


def _jobs(lab: Lab) -> dict[str, Any]:
    """Locked, small and short-lived jobs beside a regular one."""
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
            # At a different moment of the agent's period each time: while the job is sampled, split or moved.
            slow.pass_time(brief, _PERIOD_S + _PERIOD_S * number / _BRIEF)
            guest.kill(brief.pid, 9)
            guest.wait_exit(brief.pid)
        views = {workload.job[1:]: _until(agent, workload, _has(mib)) for workload, mib in ((good, 30), (small, 8))}
        views["locked"] = slow.view(agent, locked.job)
        huge = slow.huge_bytes(small)
        managed = guest.number(_BALANCING)
        _check_exit(lab, agent, "jobs")
        restored = guest.number(_BALANCING)
        for workload in (good, locked, small):
            lab.holds("jobs", _running(guest, workload.pid), f"{workload.job} did not survive")
    lab.at_least("jobs.good_slow_bytes", views["good"]["slow_bytes"], 28 * MIB)
    lab.at_least("jobs.small_slow_bytes", views["small"]["slow_bytes"], 8 * MIB)
    lab.at_most("jobs.small_huge_bytes", huge, 0)
    # The program's other memory is not locked.
    lab.at_most("jobs.locked_slow_bytes", views["locked"]["slow_bytes"], 1 * MIB)
    lab.holds("jobs", (managed, restored) == (0, 1), f"numa_balancing was {managed}, and {restored} afterwards")
    return {
        **{f"{name}_slow_bytes": view["slow_bytes"] for name, view in views.items()},
        "locked_explanation": views["locked"]["explanation"],
        "conflict_explanation": conflict,
    }


def _conflict(lab: Lab, guest: Guest, workload: Workload) -> str:
    """With `kernel.numa_balancing` on and `slow.manage` off, nothing is placed, and the explanation states why."""
    agent = slow.start(guest, [workload.job], SLOWDOWN, {**_SETTINGS, "slow.manage": False})
    view = _until(agent, workload, lambda view: "numa_balancing" in view["explanation"])
    explanation: str = view["explanation"]
    _check_exit(lab, agent, "conflict")
    lab.at_most("conflict.slow_bytes", view["slow_bytes"], 0)
    lab.holds(
        "conflict", "numa_balancing" in explanation, f"the explanation does not mention numa_balancing: {explanation}"
    )
    return explanation


def _has(mib: int) -> Callable[[dict[str, Any]], bool]:
    """Returns a condition: the agent reports at least `mib` in slow memory."""
    return lambda view: bool(view["slow_bytes"] >= mib * MIB)


def _until(agent: node.Agent, workload: Workload, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Returns the agent's view of a job once it fulfils `condition`, at the latest after a minute."""
    for _ in range(30):
        view = slow.view(agent, workload.job)
        if condition(view):
            break
        slow.pass_time(workload, _PERIOD_S)
    return view


def _free_bytes(guest: Guest) -> int:
    text = guest.read(f"/sys/devices/system/node/node{numa.SLOW}/meminfo")
    return next(int(line.split()[3]) << 10 for line in text.splitlines() if "MemFree:" in line)


def _running(guest: Guest, pid: int) -> bool:
    return guest.run(["kill", "-0", str(pid)], check=False).status == 0


def _check_exit(lab: Lab, agent: node.Agent, case: str) -> None:
    end = agent.stop()
    lab.holds(case, end.status == 0, f"the agent exited with status {end.status}, signal {end.signal}")
    output = agent.guest.read(agent.log)
    lab.holds(case, "panicked" not in output, output[-500:])
