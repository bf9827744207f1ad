"""Missing pressure files, a swap device that vanishes or fails, or a cgroup removed in use affect one job only.

Three guests. The first boots with `psi=0`: a job under pressure-driven offloading is left alone and the remedy is
logged; a job offloaded by age is unaffected. In the second the only swap device is removed while it contains memory. In
the third all requests to the swap device fail from some moment on: the kernel kills a process that touches a page on
it, nothing more is swapped to it, and jobs in zswap are unaffected.
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
    """Runs the three guests one after the other."""
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
    _check_unaffected(lab, agent, "psi")
    far = agent.job(_BY_PRESSURE)["far_bytes"]
    lab.holds("psi", far == 0, f"the job without PSI has {far} bytes in far memory")
    logged = [line for line in guest.read(agent.log).splitlines() if _BY_PRESSURE in line and "psi=1" in line]
    lab.holds("psi", len(logged) == 1, f"the error is logged {len(logged)} times")
    _check_exit(lab, agent, "psi")
    return offloaded


def _vanishing(lab: Lab, guest: Guest) -> dict[str, Any]:
    doctor = guest.run(["thermocline", "doctor"], check=False).stdout
    lab.holds("rating", "swap.write_budget" in doctor, f"doctor does not mention the device's rating: {doctor}")
    agent = _start(guest)
    _wait_far(guest, agent, _BY_AGE)
    _wait_far(guest, agent, _BY_PRESSURE)
    # Cgroups that are removed during memory.reclaim.
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
    _check_unaffected(lab, agent, "device")
    _check_exit(lab, agent, "device")
    return {"far_bytes_before_removal": before}


def _failing(lab: Lab, guest: Guest) -> dict[str, Any]:
    device = swap.breakable(guest).removeprefix("/dev/")
    # Idle until its next phase, which touches all of its memory.
    regions = [programs.phases("waking", _IDLE_BYTES, (80_000, None), (80_000, 100))]
    waking = programs.workload(guest, "/waking", regions)
    agent = _start(guest, node.Job("/waking", policy="pressure", tier="swap"))
    for job in ("/waking", _BY_PRESSURE, _BY_AGE, _BY_BOTH):
        _wait_far(guest, agent, job)
    before = agent.job("/waking")["far_bytes"]
    swap.break_down(guest)
    guest.kill(waking, signal.SIGUSR1)
    end = guest.wait_exit(waking)
    # The kernel sends SIGBUS; if the stack of the signal handler is lost too, the process gets SIGSEGV.
    killed = end.signal in (signal.SIGBUS, signal.SIGSEGV)
    lab.holds("sigbus", killed, f"the process that touched lost memory exited with {end}")
    guest.expect(agent.log, f"swap device {device}: reads fail", timeout_s=30)
    # A later job has no tier left; a job of both tiers continues with zswap.
    programs.workload(guest, "/later", [programs.idle("idle", 16 * MIB)])
    guest.expect(agent.log, "/later: tier none", timeout_s=30)
    guest.expect(agent.log, f"{_BY_BOTH}: tier zswap", timeout_s=30)
    _check_unaffected(lab, agent, "failing")
    view = agent.status()
    lab.holds("failing", view["tiers"]["swap_errors"] > 0, "the status reports no failed requests")
    later = agent.job("/later")["far_bytes"]
    lab.holds("failing", later == 0, f"{later} bytes of a job were swapped to a failing device")
    logged = [line for line in guest.read(agent.log).splitlines() if f"swap device {device}: reads fail" in line]
    lab.holds("failing", len(logged) == 1, f"the error is logged {len(logged)} times")
    _check_exit(lab, agent, "failing")
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
    """Returns a job's bytes in far memory, once that is half of its idle memory, at the latest after a minute."""
    for _ in range(60):
        far: int = agent.job(job)["far_bytes"]
        if far >= _IDLE_BYTES // 2:
            break
        # There is no event to wait for.
        guest.run(["sleep", "1"])
    return far


def _check_unaffected(lab: Lab, agent: node.Agent, case: str) -> None:
    """Checks that the agent runs and that the job offloaded by age still has its far memory."""
    far = agent.job(_BY_AGE)["far_bytes"]
    lab.holds(case, far >= _IDLE_BYTES // 2, f"the other job has only {far} bytes in far memory")


def _check_exit(lab: Lab, agent: node.Agent, case: str) -> None:
    end = agent.stop()
    lab.holds(case, end.status == 0, f"the agent exited with status {end.status}, signal {end.signal}")
    output = agent.guest.read(agent.log)
    lab.holds(case, "panicked" not in output, output[-500:])
