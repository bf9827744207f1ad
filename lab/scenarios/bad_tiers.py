"""No pressure files, a swap device that vanishes or fails, jobs that end amid a request: one job's trouble only.

Three guests. The first is booted with `psi=0`: a job under pressure-driven offloading is left alone with the remedy,
one that goes by age is offloaded as ever. In the second the only swap device is torn out while memory lies on it. In
the third all requests to it fail from some moment on: who touches a page on it is killed by the kernel, nothing more
goes there, and jobs in zswap are as they were.
"""

import signal
from typing import Any

from thermolab import node, programs, swap
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine

KERNELS = ("6.12", "7.2")

_BY_PRESSURE, _BY_AGE, _BY_BOTH = "/pressed", "/aged", "/layered"
_IDLE_BYTES = 48 * MIB

_SETTINGS: node.Settings = {
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "3s",
    "pressure.period": "500ms",
    "pressure.ratio": "10%",
    "pressure.step_max": "10%",
    "pressure.warmup": "1s",
}


def run(lab: Lab) -> dict[str, Any]:
    """One guest after the other."""
    figures: dict[str, Any] = {}
    with lab.guest(Machine(cmdline="psi=0")) as guest:
        figures["without_psi_offloaded_bytes"] = _without_psi(lab, guest)
    with lab.guest() as guest:
        figures |= _vanishing(lab, guest)
    with lab.guest() as guest:
        figures |= _failing(lab, guest)
    return figures


def _without_psi(lab: Lab, guest: Guest) -> int:
    agent = _start(guest)
    guest.expect(agent.log, "psi=1", timeout_s=30)
    offloaded = _wait_far(guest, agent, _BY_AGE)
    _goes_on(lab, agent, "psi")
    far = agent.job(_BY_PRESSURE)["far_bytes"]
    lab.holds("psi", far == 0, f"the job in trouble has {far} bytes in far memory")
    told = [line for line in guest.read(agent.log).splitlines() if _BY_PRESSURE in line and "psi=1" in line]
    lab.holds("psi", len(told) == 1, f"the trouble is told {len(told)} times")
    _ends_well(lab, agent, "psi")
    return offloaded


def _vanishing(lab: Lab, guest: Guest) -> dict[str, Any]:
    doctor = guest.run(["thermocline", "doctor"], check=False).stdout
    lab.holds("rating", "swap.write_budget" in doctor, f"doctor says nothing of the device's rating: {doctor}")
    agent = _start(guest)
    _wait_far(guest, agent, _BY_AGE)
    _wait_far(guest, agent, _BY_PRESSURE)
    # A cgroup that goes while it is being asked for memory.
    for number in range(3):
        name = f"/brief{number}"
        programs.workload(guest, name, [programs.idle("idle", 16 * MIB)])
        guest.expect(agent.log, f"{name}: job starts")
        root = f"/sys/fs/cgroup{name}"
        guest.run(
            [
                "sh",
                "-c",
                f"sleep 1.{number}; echo 1 >{root}/cgroup.kill; until rmdir {root} 2>/dev/null; do sleep 0.01; done",
            ]
        )
        guest.expect(agent.log, f"{name}: job ended")
    before = agent.job(_BY_AGE)["far_bytes"]
    guest.run(["sh", "-c", "echo 1 >/sys/block/vdb/device/../remove"])
    guest.expect(agent.log, "swap /dev/vdb", timeout_s=30)
    programs.workload(guest, "/later", [programs.hot("hot", 4 * MIB)])
    guest.expect(agent.log, "/later: job starts", timeout_s=30)
    _goes_on(lab, agent, "device")
    _ends_well(lab, agent, "device")
    return {"far_bytes_before_removal": before}


def _failing(lab: Lab, guest: Guest) -> dict[str, Any]:
    device = swap.breakable(guest).removeprefix("/dev/")
    # Idle until it is told to touch all it has.
    regions = [programs.phases("waking", _IDLE_BYTES, (80_000, None), (80_000, 100))]
    waking = programs.workload(guest, "/waking", regions)
    agent = _start(guest, node.Job("/waking", policy="pressure", tier="swap"))
    for job in ("/waking", _BY_PRESSURE, _BY_AGE, _BY_BOTH):
        _wait_far(guest, agent, job)
    before = agent.job("/waking")["far_bytes"]
    swap.break_down(guest)
    guest.kill(waking, signal.SIGUSR1)
    end = guest.wait_exit(waking)
    # The kernel sends SIGBUS; a handler whose own stack is lost too cannot be entered, and that is SIGSEGV.
    killed = end.signal in (signal.SIGBUS, signal.SIGSEGV)
    lab.holds("sigbus", killed, f"who touched lost memory ended with {end}")
    guest.expect(agent.log, f"swap device {device}: reads fail", timeout_s=30)
    # A job that comes later has nowhere to go, one of both tiers goes on in zswap.
    programs.workload(guest, "/later", [programs.idle("idle", 16 * MIB)])
    guest.expect(agent.log, "/later: tier none", timeout_s=30)
    guest.expect(agent.log, f"{_BY_BOTH}: tier zswap", timeout_s=30)
    _goes_on(lab, agent, "failing")
    view = agent.status()
    lab.holds("failing", view["tiers"]["swap_errors"] > 0, "the status counts no failed request")
    later = agent.job("/later")["far_bytes"]
    lab.holds("failing", later == 0, f"{later} bytes of a job went to a device that fails")
    told = [line for line in guest.read(agent.log).splitlines() if f"swap device {device}: reads fail" in line]
    lab.holds("failing", len(told) == 1, f"the trouble is told {len(told)} times")
    _ends_well(lab, agent, "failing")
    return {"far_bytes_before_failure": before, "swap_errors": view["tiers"]["swap_errors"]}


def _start(guest: Guest, *more: node.Job) -> node.Agent:
    for job in (_BY_PRESSURE, _BY_AGE, _BY_BOTH):
        programs.workload(guest, job, [programs.idle("idle", _IDLE_BYTES), programs.hot("hot", 4 * MIB)])
    jobs = [
        node.Job(_BY_PRESSURE, policy="pressure", tier="swap"),
        node.Job(_BY_AGE, policy="cold_age", tier="zswap"),
        node.Job("/brief*", policy="pressure", tier="zswap"),
        node.Job(_BY_BOTH, policy="pressure", tier="both"),
        node.Job("/later", policy="pressure", tier="swap"),
        *more,
    ]
    node.configure(guest, jobs, _SETTINGS)
    return node.start(guest)


def _wait_far(guest: Guest, agent: node.Agent, job: str) -> int:
    """Bytes of a job in far memory, once half of what it never touches is there."""
    for _ in range(60):
        far: int = agent.job(job)["far_bytes"]
        if far >= _IDLE_BYTES // 2:
            break
        # Nothing happens that could be waited for: time has to pass.
        guest.run(["sleep", "1"])
    return far


def _goes_on(lab: Lab, agent: node.Agent, case: str) -> None:
    """The agent lives, and the other job is as it was."""
    far = agent.job(_BY_AGE)["far_bytes"]
    lab.holds(case, far >= _IDLE_BYTES // 2, f"the other job has only {far} bytes in far memory")


def _ends_well(lab: Lab, agent: node.Agent, case: str) -> None:
    end = agent.stop()
    lab.holds(case, end.status == 0, f"the agent ended with status {end.status}, signal {end.signal}")
    said = agent.guest.read(agent.log)
    lab.holds(case, "panicked" not in said, said[-500:])
