"""The agent under policy `slowdown` in a lab's time: what it is told, and what it says it did."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import node
from .errors import LabError
from .guest import Guest
from .truth import Workload

LATENCY_US = 100
"""Stands for 1 us: the lab's jobs are a hundredth of a server's memory, and make a hundredth of its accesses."""

LOOKS = 30
"""In a period; a third of them in each of its three stages."""

SETTINGS: node.Settings = {
    "agent.policy": "slowdown",
    # Ages are not what this policy goes by, and two trackers would clear each other's accessed bits.
    "agent.scan_period": "60s",
    "agent.control_period": "60s",
    "slow.latency": f"{LATENCY_US}us",
    "slow.looks": LOOKS,
    # In production's 30 s and 5 % it takes ten minutes to see all of a job once; here it takes half a minute.
    "slow.sample": "20%",
    "slow.move_rate": "100MiB/s",
    "slow.manage": True,
}

_DAMON_LOOK_S = 0.5
_HANDING_OUT_LOOKS = 3
_PAGE_IDLE = "/sys/kernel/mm/page_idle/bitmap"
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"


def period_s(guest: Guest, looks: int = LOOKS) -> int:
    """What stands for a period of 30 s: the shortest in which the guest's tracker can look so often.

    DAMON cannot look more often than every half second, and takes three looks more in each stage to tell what it saw.
    """
    if guest.exists(_PAGE_IDLE):
        return math.ceil(looks / 5)
    return math.ceil((looks + 3 * _HANDING_OUT_LOOKS) * _DAMON_LOOK_S)


def budget_per_second(slowdown: float, latency_us: float = LATENCY_US) -> float:
    """Accesses of slow memory per second that slow a job by `slowdown`: x / t_s (002 section 3.4)."""
    return slowdown / (latency_us / 1e6)


def start(
    guest: Guest,
    jobs: Sequence[str],
    slowdown: float,
    settings: node.Settings | None = None,
    *,
    later: str | None = None,
) -> node.Agent:
    """Start an agent that knows nothing of the jobs yet and may slow each of them by `slowdown`, such as 0.03.

    Waits until it has found all `jobs`. Those that match `later` are started afterwards.
    """
    if guest.exists(_DAMON_STAT):
        guest.write(_DAMON_STAT, "N")
    guest.run(["rm", "-rf", node.STATE])
    told: node.Settings = {"slow.slowdown": f"{slowdown:.2%}"}
    rules = [node.Job(job) for job in [*jobs, *([] if later is None else [later])]]
    node.configure(guest, rules, {**SETTINGS, "slow.period": f"{period_s(guest)}s", **told, **(settings or {})})
    agent = node.start(guest)
    for job in jobs:
        guest.expect(agent.log, f"{job}: job starts")
    # What is found is shown once it has been looked at.
    while not set(jobs) <= {job["job"] for job in agent.status()["jobs"]}:
        guest.run(["sleep", "0.5"])
    return agent


_FLAGS = "/proc/kpageflags"
_FLAGS_READS = 100
_CHUNK_BYTES = 128 << 10


def emulation_ratio(guest: Guest) -> float | None:
    """How many times longer the kernel takes for a page in this guest than on the host, by the processor's time.

    Measured by reading the flags of all the guest's page frames, and of as many on the host, again and again: a walk
    over frames, as looking at them is. None where the host does not let us read them.
    """
    frames_bytes = int(guest.run(["sh", "-c", f"cat {_FLAGS} | wc -c"]).stdout)
    again = f"exec cat {' '.join([_FLAGS] * _FLAGS_READS)} > /dev/null"
    guest_s = guest.run(["sh", "-c", again], timeout_s=300).cpu_s
    try:
        begins = time.process_time()
        for _ in range(_FLAGS_READS):
            with Path(_FLAGS).open("rb", buffering=0) as flags:
                for _ in range(0, frames_bytes, _CHUNK_BYTES):
                    os.read(flags.fileno(), _CHUNK_BYTES)
    except OSError:
        return None
    return guest_s / (time.process_time() - begins)


def view(agent: node.Agent, job: str) -> dict[str, Any]:
    """What the agent says of a job: `slow_bytes`, `slow_rate_per_second`, `slow_budget_per_second`, `explanation`."""
    told = agent.job(job)
    return {
        name: told[name] for name in ("slow_bytes", "slow_rate_per_second", "slow_budget_per_second", "explanation")
    }


def huge_bytes(workload: Workload) -> int:
    """Bytes of a workload in huge pages."""
    lines = workload.guest.read(f"/proc/{workload.pid}/smaps_rollup").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def periods_ms(guest: Guest) -> list[int]:
    """When each period so far has ended, by the journal."""
    return [record["unix_ms"] for record in node.journal(guest) if record["record"] == "slow"]


def rates_per_second(guest: Guest, job: str) -> list[float]:
    """How often the job accessed slow memory in each period so far, as the agent estimates it, by the journal."""
    # The journal counts millionths.
    return [
        record["step"]["rate"] / 1e6
        for record in node.journal(guest)
        if record["record"] == "slow" and record["job"] == job
    ]


def pass_periods(workload: Workload, periods: int) -> None:
    """Wait until so many periods more have ended. They take longer than they should on a host that is slow or busy."""
    guest = workload.guest
    end = len(periods_ms(guest)) + periods
    patience = 4 * periods
    while len(periods_ms(guest)) < end:
        patience -= 1
        if patience < 0:
            raise LabError(f"{periods} periods of {period_s(guest)} s took more than four times as long")
        pass_time(workload, period_s(guest))


def pass_time(workload: Workload, seconds: float) -> None:
    """Wait until so much of the guest's time has passed."""
    workload.guest.run(["sleep", f"{seconds:g}"], timeout_s=10 * seconds + 60)
