"""The agent with one policy and one tier, with compressed time, and its figures for a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import node
from .guest import Guest

STALL_TARGET = 0.01
"""Largest share of the time in which a job may stall. Production's is 0.1 %; with events of an hour in a minute, pages
return 60 times as often, and the lab's target is ten times as high."""

PRESSURE_SETTINGS: node.Settings = {
    "pressure.period": "1s",
    "pressure.ratio": "1.5%",
    "pressure.step_max": "2%",
    "pressure.stall_target": f"{STALL_TARGET:.1%}",
    "pressure.io_stall_target": f"{STALL_TARGET:.1%}",
    "pressure.warmup": "2s",
    # Slow devices are measured in these scenarios, not excluded.
    "tier.latency_max": "100ms",
    "cold_age.warmup": "10s",
}
"""Time passes six times as fast, and memory is reclaimed thirty times as fast as in production, to save run time."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What the agent reports about one job."""

    policy: str
    tier: str | None
    tier_reason: str
    memory_bytes: int
    far_bytes: int
    """Swap-backed memory that left DRAM, in bytes."""
    file_out_bytes: int
    """Page cache that left DRAM and has not returned, in bytes."""
    saved_bytes: int
    """DRAM freed by both, in bytes."""
    explanation: str

    @classmethod
    def of(cls, job: dict[str, Any]) -> "Offloaded":
        """Returns the figures of a job of `thermocline status`."""
        return cls(**{name: job[name] for name in cls.__slots__})


def start(
    guest: Guest, jobs: Sequence[str], policy: str, tier: str, settings: node.Settings | None = None
) -> node.Agent:
    """Starts an agent without history, with this policy and tier for all jobs."""
    guest.run(["rm", "-rf", node.STATE])
    chosen: node.Settings = {"agent.policy": policy, "agent.tier": tier}
    node.configure(guest, [node.Job(job) for job in jobs], {**PRESSURE_SETTINGS, **chosen, **(settings or {})})
    return node.start(guest)


def swap_read_seconds(agent: node.Agent) -> float:
    """Returns the mean time of a read from the swap device, as the agent measures it; 0 before the first."""
    return (agent.status()["tiers"]["swap_read_us"] or 0) / 1e6


def offloaded(agent: node.Agent, job: str) -> Offloaded:
    """Returns a job's figures at this moment."""
    return Offloaded.of(agent.job(job))
