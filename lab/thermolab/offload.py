"""The agent under a policy and over a tier, in a lab's time; and what its view calls the figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import node
from .guest import Guest

STALL_TARGET = 0.01
"""Share of the time in which a job may wait. Production's is 0.1 %; where an hour's events happen in a minute, pages
come back 60 times as often, and less than that is asked for here."""

PRESSURE_SETTINGS: node.Settings = {
    "pressure.period": "1s",
    "pressure.ratio": "1.5%",
    "pressure.step_max": "2%",
    "pressure.stall_target": f"{STALL_TARGET:.1%}",
    "pressure.io_stall_target": f"{STALL_TARGET:.1%}",
    "pressure.warmup": "2s",
    # A slow device is to be measured, not to be left out.
    "tier.latency_max": "100ms",
    "cold_age.warmup": "10s",
}
"""Six seconds pass in one, and memory leaves thirty times faster than in production: minutes must do."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What the agent says about one job."""

    policy: str
    tier: str | None
    tier_reason: str
    memory_bytes: int
    far_bytes: int
    """Swap-backed memory that left DRAM."""
    file_out_bytes: int
    """Page cache that left DRAM and has not come back."""
    saved_bytes: int
    """DRAM that was given back by both."""
    explanation: str

    @classmethod
    def of(cls, job: dict[str, Any]) -> "Offloaded":
        """From a job of `thermocline status`."""
        return cls(**{name: job[name] for name in cls.__slots__})


def start(
    guest: Guest, jobs: Sequence[str], policy: str, tier: str, settings: node.Settings | None = None
) -> node.Agent:
    """Start an agent that knows nothing of the jobs yet, with this policy and tier for all of them."""
    guest.run(["rm", "-rf", node.STATE])
    ours: node.Settings = {"agent.policy": policy, "agent.tier": tier}
    node.configure(guest, [node.Job(job) for job in jobs], {**PRESSURE_SETTINGS, **ours, **(settings or {})})
    return node.start(guest)


def swap_read_seconds(agent: node.Agent) -> float:
    """Mean time of a read from the swap device, as the agent measures it; 0 before the first."""
    return (agent.status()["tiers"]["swap_read_us"] or 0) / 1e6


def offloaded(agent: node.Agent, job: str) -> Offloaded:
    """What has become of a job so far."""
    return Offloaded.of(agent.job(job))
