"""The agent under policy `slowdown` with compressed time: its settings, estimates and journal."""

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
"""Stands for 1 us: the lab's jobs have a hundredth of a server's memory and of its accesses."""

SAMPLES = 30
"""Samples per period; a third of them in each of three stages, and as many dense ones at an eighth of the interval."""

SETTINGS: node.Settings = {
    "agent.policy": "slowdown",
    # This policy does not use ages, and two trackers would clear each other's accessed bits.
    "agent.scan_period": "60s",
    "agent.control_period": "60s",
    "slow.latency": f"{LATENCY_US}us",
    "slow.samples": SAMPLES,
    # In production, with 30 s and 5 %, one pass over a job takes ten minutes; here half a minute.
    "slow.sample": "20%",
    "slow.move_rate": "100MiB/s",
    "slow.manage": True,
}

_DENSER = 8
_IDLE_SAMPLE_S = 0.24
"""With dense samples every 30 ms: the lab's hot pages leave the emulated TLB every 20 ms (`truth.tick`)."""
_DAMON_SAMPLE_S = 0.5
_DAMON_DELAY_SAMPLES = 3
_PAGE_IDLE = "/sys/kernel/mm/page_idle/bitmap"
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"


def period_s(guest: Guest, samples: int = SAMPLES) -> int:
    """Returns the shortest period in which the guest's tracker can take `samples` samples; it stands for 30 s.

    DAMON samples at most every half second, and reports the counts of each stage three samples late.
    """
    late, sample_s = (0, _IDLE_SAMPLE_S) if guest.exists(_PAGE_IDLE) else (_DAMON_DELAY_SAMPLES, _DAMON_SAMPLE_S)
    return math.ceil((samples + 3 * late + (samples + late) / _DENSER) * sample_s)


def budget_per_second(slowdown: float, latency_us: float = LATENCY_US) -> float:
    """Returns the slow-memory accesses per second that slow a job by `slowdown`: x / t_s (Thermostat section 3.4)."""
    return slowdown / (latency_us / 1e6)


def start(
    guest: Guest,
    jobs: Sequence[str],
    slowdown: float,
    settings: node.Settings | None = None,
    *,
    later: str | None = None,
) -> node.Agent:
    """Starts an agent without history that may slow each job by `slowdown`, such as 0.03.

    Waits until it has found all `jobs`. Jobs that match `later` are started afterwards.
    """
    if guest.exists(_DAMON_STAT):
        guest.write(_DAMON_STAT, "N")
    guest.run(["rm", "-rf", node.STATE])
    budget: node.Settings = {"slow.slowdown": f"{slowdown:.2%}"}
    rules = [node.Job(job) for job in [*jobs, *([] if later is None else [later])]]
    node.configure(guest, rules, {**SETTINGS, "slow.period": f"{period_s(guest)}s", **budget, **(settings or {})})
    agent = node.start(guest)
    for job in jobs:
        guest.expect(agent.log, f"{job}: job starts")
    # A job appears in the status after its first sample.
    while not set(jobs) <= {job["job"] for job in agent.status()["jobs"]}:
        guest.run(["sleep", "0.5"])
    return agent


_FLAGS = "/proc/kpageflags"
_FLAGS_READS = 100
_CHUNK_BYTES = 128 << 10


def emulation_ratio(guest: Guest) -> float | None:
    """Returns how many times more CPU time the kernel needs per page frame in this guest than on the host.

    Measured by reading the flags of all of the guest's page frames, and of as many on the host, repeatedly: a walk over
    frames, as reading accessed bits is. `None` if the host denies reading them.
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
    """Returns `slow_bytes`, `slow_rate_per_second`, `slow_budget_per_second` and `explanation` of a job's status."""
    status = agent.job(job)
    return {
        name: status[name] for name in ("slow_bytes", "slow_rate_per_second", "slow_budget_per_second", "explanation")
    }


def huge_bytes(workload: Workload) -> int:
    """Returns the bytes of a workload that are in huge pages."""
    lines = workload.guest.read(f"/proc/{workload.pid}/smaps_rollup").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def periods_ms(guest: Guest) -> list[int]:
    """Returns the end time of each period so far, from the journal."""
    return [record["unix_ms"] for record in node.journal(guest) if record["record"] == "slow"]


def rates_per_second(guest: Guest, job: str) -> list[float]:
    """Returns the job's estimated slow-memory accesses per second for each period so far, from the journal."""
    # The journal has accesses per second times 10^6.
    return [
        record["step"]["rate"] / 1e6
        for record in node.journal(guest)
        if record["record"] == "slow" and record["job"] == job
    ]


def hot_and_cold(records: Sequence[dict[str, Any]], job: str) -> list[dict[str, float]]:
    """Returns a job's memory in both nodes over time, by the journal's records: one point at the end of each period.

    `cold_bytes` is what is in the slow node, `hot_bytes` the rest of what the policy may move, both before that
    period's moves; `seconds` count from the first point.
    """
    periods = [record for record in records if record["record"] == "slow" and record["job"] == job]
    return [
        {
            "seconds": (record["unix_ms"] - periods[0]["unix_ms"]) / 1e3,
            "hot_bytes": record["memory"] - record["slow"],
            "cold_bytes": record["slow"],
            "slow_rate_per_second": record["step"]["rate"] / 1e6,
        }
        for record in periods
    ]


def pass_periods(workload: Workload, periods: int) -> None:
    """Waits until `periods` more periods have ended; on a slow or busy host they take longer than configured."""
    guest = workload.guest
    end = len(periods_ms(guest)) + periods
    waits_left = 4 * periods
    while len(periods_ms(guest)) < end:
        waits_left -= 1
        if waits_left < 0:
            raise LabError(f"{periods} periods of {period_s(guest)} s took more than four times as long")
        pass_time(workload, period_s(guest))


def pass_time(workload: Workload, seconds: float) -> None:
    """Waits until `seconds` of the guest's time have passed."""
    workload.guest.run(["sleep", f"{seconds:g}"], timeout_s=10 * seconds + 60)
