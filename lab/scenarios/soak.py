"""Jobs whose every page is checked, under each policy, while faults happen to the agent and to the machine.

Faults come from a seed, one after the other, for `THERMOCLINE_SOAK_SECONDS` of the host's time. Each job knows what its
pages must contain, and checks them again and again, also after they were offloaded. A fault is survived if afterwards
the agent answers again, by itself or after it was started again, and the jobs run on. At the end nothing is left of its
settings, and a cgroup that no rule names has had nothing taken.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thermolab import node, remains, soak_faults
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine, SwapDisk

KERNELS = ("6.12", "7.2", "6.12-idle")

SECONDS = int(os.environ.get("THERMOCLINE_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("THERMOCLINE_SOAK_SEED", "1"))
MEMORY_MIB, JOB_MIB, HOT_MIB = 768, 64, 8
CHECK_MS = 12_000
"""From one check of all of a job's memory to the next: it is offloaded in between."""
FAR_BYTES_MIN = 8 * MIB
"""Offloaded from each job, at some moment: a soak in which nothing moves tests nothing."""
RECOVERED_SECONDS = 60
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"
_LOG = "/run/agent.log"

_SETTINGS: node.Settings = {
    "agent.scan_period": "1s",
    "agent.control_period": "1s",
    "agent.state_dir": soak_faults.SMALL,
    "agent.journal_size": "1MiB",
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "2s",
    # What moves is checked, not when it begins to.
    "cold_age.bound": False,
    "pressure.warmup": "2s",
    "pressure.period": "1s",
    "pressure.ratio": "5%",
    "pressure.step_max": "10%",
    "pressure.stall_target": "20%",
    "zswap.max_pool": "30%",
}


@dataclass(slots=True)
class _Soak:
    """The guest and what has happened so far."""

    lab: Lab
    guest: Guest
    agent: int
    pids: dict[str, int]
    faults: Counter[str]
    lost: list[str]
    far_max: Counter[str]


def run(lab: Lab) -> dict[str, Any]:
    """Lets faults happen until the time is over, and checks what is left."""
    with lab.guest(Machine(memory_bytes=MEMORY_MIB * MIB, swap=SwapDisk(512 * MIB))) as guest:
        if guest.exists(_DAMON_STAT):
            guest.write(_DAMON_STAT, "N")
        guest.mkdir(soak_faults.SMALL)
        guest.run(["busybox", "mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "state", soak_faults.SMALL])
        pids = {job: _checked(guest, job) for job in (*soak_faults.JOBS, soak_faults.STRANGER)}
        before = remains.inspect(guest)
        _configure(guest, soak_faults.jobs())
        guest.write(_LOG, "")
        soak = _Soak(lab, guest, _start(guest), pids, Counter(), [], Counter())
        if not _recovered(soak):
            raise LabError(f"the agent does not start: {guest.read(_LOG)[-2000:]}")
        _until_the_end(soak)
        return _end(soak, before)


def _checked(guest: Guest, job: str) -> int:
    """Starts a program that checks its memory; returns its pid."""
    files = f"/run/verify{job.replace('/', '-')}"
    argv = ["labguest", "verify", "--mib", str(JOB_MIB), "--hot-mib", str(HOT_MIB), "--every-ms", str(CHECK_MS)]
    log = f"{files}.log"
    pid = guest.spawn([*argv, "--figures", f"{files}.json"], cgroup=guest.cgroup(job[1:]), stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=120)
    return pid


def _configure(guest: Guest, jobs: Sequence[node.Job]) -> None:
    node.configure(guest, jobs, _SETTINGS)


def _start(guest: Guest) -> int:
    return guest.spawn(["thermocline", "agent"], stdout=_LOG, stderr=_LOG)


def _until_the_end(soak: _Soak) -> None:
    """One fault after the other."""
    moments = random.Random(SEED)  # noqa: S311 -- repeatable, not secret
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        fault = moments.choice(soak_faults.ALL)
        at = soak_faults.Happening(soak.guest, soak.agent, moments, lambda jobs: _configure(soak.guest, jobs))
        at.pause(2)
        fault(at)
        soak.faults[soak_faults.name(fault)] += 1
        if not _recovered(soak):
            soak.lost.append(f"{soak_faults.name(fault)} (fault {soak.faults.total()})")
        for job in soak_faults.JOBS:
            far = soak.guest.number(f"{soak.guest.cgroup(job[1:])}/memory.swap.current")
            soak.far_max[job] = max(soak.far_max[job], far)
        if soak.faults.total() % 50 == 0:
            soak.lab.say(f"{soak.faults.total()} faults, {len(soak.lost)} not survived")


def _recovered(soak: _Soak) -> bool:
    """Starts the agent again if it has ended. Returns whether it answers, and the jobs run."""
    guest = soak.guest
    end = time.monotonic() + RECOVERED_SECONDS
    while time.monotonic() < end:
        running = guest.run(["ls", "/proc"]).stdout.split()
        if not all(str(pid) in running for pid in soak.pids.values()):
            return False
        if str(soak.agent) not in running:
            soak.agent = _start(guest)
        elif guest.run(["thermocline", "status"], check=False).status == 0:
            return True
        time.sleep(0.2)
    return False


def _end(soak: _Soak, before: remains.Settings) -> dict[str, Any]:
    """Ends the agent, then the jobs, and judges."""
    lab, guest = soak.lab, soak.guest
    guest.kill(soak.agent)
    guest.wait_exit(soak.agent)
    guest.keep(_LOG)
    left = remains.differing(before, remains.inspect(guest))
    stranger = guest.number(f"{guest.cgroup(soak_faults.STRANGER[1:])}/memory.swap.current")
    for pid in soak.pids.values():
        guest.kill(pid)
        guest.wait_exit(pid, timeout_s=120)
    checked = [json.loads(guest.read(f"/run/verify-{job[1:]}.json")) for job in soak.pids]
    figures = {
        "seconds": SECONDS,
        "faults": soak.faults.total(),
        "survived": soak.faults.total() - len(soak.lost),
        "bytes_verified": sum(figure["bytes_verified"] for figure in checked),
        "bytes_corrupt": sum(figure["bytes_corrupt"] for figure in checked),
        "leftovers": len(left),
        "stranger_swapped_bytes": stranger,
        "far_bytes_max": dict(soak.far_max),
        "kinds": dict(soak.faults),
    }
    lab.at_least("survived", figures["survived"], figures["faults"])
    lab.holds("survived", not soak.lost, f"not survived: {', '.join(soak.lost[:10])}")
    lab.at_most("bytes_corrupt", figures["bytes_corrupt"], 0)
    lab.at_most("stranger_swapped_bytes", stranger, 0)
    lab.holds("leftovers", not left, "; ".join(left))
    for job in soak_faults.JOBS:
        lab.at_least(f"far_bytes_max {job}", soak.far_max[job], FAR_BYTES_MIN)
    return figures
