"""The node agent inside a guest: its configuration, its process, its status and its journal."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import LabError
from .guest import Exit, Guest

TIME_COMPRESSION = 60
"""Ratio of compressed time: a scan period of 2 s stands for 120 s."""

SLO_RATIO_PER_MIN = 0.002 * TIME_COMPRESSION
"""The objective of 0.2 % of the working set per minute, in compressed time."""

Settings = Mapping[str, str | int | bool]

LAB_SETTINGS: Settings = {
    "agent.scan_period": "2s",
    "agent.control_period": "2s",
    # Emulation multiplies every cost; these scenarios do not test the CPU budget.
    "agent.cpu_budget": "100%",
    "agent.metrics_listen": "off",
    "cold_age.promotion_rate": f"{SLO_RATIO_PER_MIN:.0%}",
    "cold_age.warmup": "20s",
    "class.conservative.promotion_rate": f"{0.0005 * TIME_COMPRESSION:.0%}",
    "class.conservative.warmup": "60s",
    "class.aggressive.promotion_rate": f"{0.01 * TIME_COMPRESSION:.0%}",
    "class.aggressive.warmup": "10s",
    "zswap.manage": True,
}

STATE = "/var/lib/thermocline"
RUNTIME = "/run/thermocline"
_FILE = "/etc/thermocline/thermocline.toml"
_LOG = "/run/agent.log"
_FOUND_WITHIN_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Job:
    """A rule of the configuration: a pattern of cgroups and their treatment."""

    cgroup: str
    group: str = "standard"
    tracker: str | None = None
    policy: str | None = None
    tier: str | None = None
    kind: str | None = None


def configure(guest: Guest, jobs: Sequence[Job], settings: Settings | None = None) -> None:
    """Writes the agent's configuration file; `settings` override the lab's defaults."""
    lines = []
    for key, value in {**LAB_SETTINGS, **(settings or {})}.items():
        lines.append(f"{key} = {json.dumps(value)}")
    for job in jobs:
        lines += ["[[job]]", f"cgroup = {json.dumps(job.cgroup)}", f"class = {json.dumps(job.group)}"]
        for key in ("tracker", "policy", "tier", "kind"):
            value = getattr(job, key)
            if value is not None:
                lines.append(f"{key} = {json.dumps(value)}")
    guest.mkdir(str(Path(_FILE).parent))
    guest.write(_FILE, "\n".join(lines) + "\n")
    # Disables swap readahead, which would swap in neighbouring pages that were not accessed.
    guest.write("/proc/sys/vm/page-cluster", "0")


@dataclass(slots=True)
class Agent:
    """A running agent."""

    guest: Guest
    pid: int
    log: str = field(default=_LOG)

    def status(self) -> dict[str, Any]:
        """Returns the output of `thermocline status --format json`."""
        view: dict[str, Any] = json.loads(self.guest.run(["thermocline", "status", "--format", "json"]).stdout)
        return view

    def job(self, name: str) -> dict[str, Any]:
        """Returns one job of the status, by its path. An agent that has just started has not found its jobs yet."""
        for _ in range(_FOUND_WITHIN_SECONDS):
            jobs: list[dict[str, Any]] = self.status()["jobs"]
            found = next((job for job in jobs if job["job"] == name), None)
            if found is not None:
                return found
            time.sleep(1)
        raise LabError(f"the agent has not found job {name} within {_FOUND_WITHIN_SECONDS} s")

    def stop(self, number: int = 15, timeout_s: float = 60.0) -> Exit:
        """Ends it by a signal; its log is copied to the host."""
        self.guest.kill(self.pid, number)
        end = self.guest.wait_exit(self.pid, timeout_s)
        self.guest.keep(self.log)
        return end


def start(
    guest: Guest,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    cgroup: str | None = None,
) -> Agent:
    """Starts the configured agent and waits until it has found its first job.

    `env` is added to its environment; `prefix` is a program that executes it; `cgroup` is the directory of its cgroup.
    """
    log = _LOG
    guest.write(log, "")
    pid = guest.spawn([*prefix, "thermocline", "agent", *arguments], env=env, cgroup=cgroup, stdout=log, stderr=log)
    guest.expect(log, "job ", timeout_s=60)
    return Agent(guest, pid, log)


def until(what: str, holds: Callable[[], bool], timeout_s: float = 90) -> None:
    """Waits until `holds` is true.

    Raises:
        LabError: it is not true within `timeout_s`; `what` says what was waited for.
    """
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            raise LabError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.5)


def journal(guest: Guest) -> list[dict[str, Any]]:
    """Returns the records of the agent's journal."""
    return [json.loads(line) for line in guest.read(f"{STATE}/journal").splitlines() if line.endswith("}")]


def periods(records: Sequence[dict[str, Any]], job: str) -> list[dict[str, Any]]:
    """Returns the control periods of one job, oldest first."""
    return [record for record in records if record["record"] == "period" and record["job"] == job]


def promotion_rates(of: Sequence[dict[str, Any]]) -> list[float]:
    """Returns promotions per minute as a ratio of the working set, for each period that has both."""
    rates = []
    for period in of:
        outcome, working_set = period["outcome"], period["step"]["working_set"]
        if outcome["elapsed_ms"] and working_set:
            rates.append(outcome["promoted"] * 60_000 / outcome["elapsed_ms"] / working_set)
    return rates


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value at or below which `share` of all values lie; 0 if there are none."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)] if ranked else 0.0
