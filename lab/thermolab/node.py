"""The node agent inside a guest: its configuration, its life, what it says and what it wrote."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .guest import Exit, Guest

TIME_COMPRESSION = 60
"""A scan period of 2 s stands for the usual 120 s."""

SLO_RATIO_PER_MIN = 0.002 * TIME_COMPRESSION
"""The objective of 0.2 % of the working set per minute, in minutes that pass 60 times faster."""

Settings = Mapping[str, str | int | bool]

LAB_SETTINGS: Settings = {
    "agent.scan_period": "2s",
    "agent.control_period": "2s",
    # Emulated, everything costs many times what it should; the budget is not what these scenarios are about.
    "agent.cpu_budget": "100%",
    "agent.metrics_listen": "off",
    "cold_age.promotion_rate": f"{SLO_RATIO_PER_MIN:.0%}",
    "cold_age.warmup": "20s",
    "zswap.manage": True,
}

STATE = "/var/lib/thermocline"
RUNTIME = "/run/thermocline"
_FILE = "/etc/thermocline/thermocline.toml"
_LOG = "/run/agent.log"


@dataclass(frozen=True, slots=True)
class Job:
    """A rule: which cgroups, and how they are treated."""

    cgroup: str
    group: str = "standard"
    tracker: str | None = None
    policy: str | None = None
    tier: str | None = None
    kind: str | None = None


def configure(guest: Guest, jobs: Sequence[Job], settings: Settings | None = None) -> None:
    """Write the agent's configuration file, with the lab's settings below the given ones."""
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
    # A swap fault would otherwise bring back neighbours that nobody asked for.
    guest.write("/proc/sys/vm/page-cluster", "0")


@dataclass(slots=True)
class Agent:
    """A running agent."""

    guest: Guest
    pid: int
    log: str = field(default=_LOG)

    def status(self) -> dict[str, Any]:
        """What `thermocline status --format json` prints."""
        view: dict[str, Any] = json.loads(self.guest.run(["thermocline", "status", "--format", "json"]).stdout)
        return view

    def job(self, name: str) -> dict[str, Any]:
        """One job of the status, by its path."""
        jobs: list[dict[str, Any]] = self.status()["jobs"]
        return next(job for job in jobs if job["job"] == name)

    def stop(self, number: int = 15, timeout_s: float = 60.0) -> Exit:
        """End it by a signal; its log is kept on the host."""
        self.guest.kill(self.pid, number)
        end = self.guest.wait_exit(self.pid, timeout_s)
        self.guest.keep(self.log)
        return end


def start(guest: Guest, *arguments: str, env: Mapping[str, str] | None = None) -> Agent:
    """Start the configured agent, with `env` added to its environment, and wait until it knows its machine."""
    log = _LOG
    guest.write(log, "")
    pid = guest.spawn(["thermocline", "agent", *arguments], env=env, stdout=log, stderr=log)
    guest.expect(log, "job ", timeout_s=60)
    return Agent(guest, pid, log)


def journal(guest: Guest) -> list[dict[str, Any]]:
    """The agent's journal, as records."""
    return [json.loads(line) for line in guest.read(f"{STATE}/journal").splitlines() if line.endswith("}")]


def periods(records: Sequence[dict[str, Any]], job: str) -> list[dict[str, Any]]:
    """The control periods of one job, oldest first."""
    return [record for record in records if record["record"] == "period" and record["job"] == job]


def promotion_rates(of: Sequence[dict[str, Any]]) -> list[float]:
    """Promotions per minute as a ratio of the working set, one for each period that has both."""
    rates = []
    for period in of:
        outcome, working_set = period["outcome"], period["step"]["working_set"]
        if outcome["elapsed_ms"] and working_set:
            rates.append(outcome["promoted"] * 60_000 / outcome["elapsed_ms"] / working_set)
    return rates


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value at or below which `share` of all lie; 0 of none."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)] if ranked else 0.0
