"""Tier `both`: a job's memory is compressed first, and zswap writes its oldest pages back to the swap device.

A job has more cold memory than zswap's pool may hold. First, policy `pressure` runs with a small pool, which the kernel
keeps below its limit by writeback; then with a pool that can hold everything, where only zswap's shrinker writes back,
and the kernel decides how much. Hot memory must stay; the agent's figures are compared with the kernel's counters.
"""

from dataclasses import dataclass
from typing import Any

from thermolab import node, offload, swap, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload

KERNELS = ("6.12", "7.2")
MORE_IS_BETTER = ("small_pool.written_back_bytes", "shrinker_alone.written_back_bytes")

PAGE_BYTES = 4096
COLD_MIB, HOT_MIB = 128, 16
# 48 MiB of such pages compress to about 16 MiB; 2 % of the machine is 20 MiB.
SMALL_POOL, LARGE_POOL = "2%", "20%"
_SETTINGS: node.Settings = {"pressure.ratio": "5%", "pressure.step_max": "5%", "zswap.shrinker": True}
OFFLOAD_SECONDS_MAX = 60

WRITTEN_BACK_MIN_BYTES = 8 * MIB
OFFLOADED_MIN_RATIO = 0.75
HOT_RESIDENT_MIN_RATIO = 0.9
DISAGREEMENT_MAX_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters, of the job and of the machine."""

    saved_bytes: int
    """Bytes swapped out and not in the swap cache, less zswap's pool with its allocator's pages."""
    written_back_bytes: int
    written_bytes: int
    """Bytes written to swap devices by all processes since boot."""

    @classmethod
    def now(cls, guest: Guest, cgroup: str) -> "Counters":
        """Reads the counters."""
        stat = guest.flat_keyed(f"{cgroup}/memory.stat")
        swapped = guest.number(f"{cgroup}/memory.swap.current")
        return cls(
            saved_bytes=swapped - stat["swapcached"] - (guest.flat_keyed("/proc/meminfo")["Zswap"] << 10),
            written_back_bytes=stat["zswpwb"] * PAGE_BYTES,
            written_bytes=guest.flat_keyed("/proc/vmstat")["pswpout"] * PAGE_BYTES,
        )


def run(lab: Lab) -> dict[str, Any]:
    """Runs with a small pool, then with the shrinker only."""
    figures: dict[str, Any] = {}
    with lab.guest() as guest:
        truth.tick(guest)
        regions = [Region("cold", COLD_MIB, {"never": True}), Region("hot", HOT_MIB, {"period_ms": 100})]
        workload = Workload(guest, regions, "layered")
        figures["small_pool"] = _run(lab, workload, "small_pool", SMALL_POOL)
        swap.empty(guest)
        figures["shrinker_alone"] = _run(lab, workload, "shrinker_alone", LARGE_POOL)
        workload.stop()
    lab.at_least("small_pool.written_back_bytes", figures["small_pool"]["written_back_bytes"], WRITTEN_BACK_MIN_BYTES)
    for name, found in figures.items():
        lab.holds(
            f"{name}.tier", found["tier"] == "zswap+vdb", f"the tier is {found['tier']!r}: {found['tier_reason']}"
        )
        lab.at_least(f"{name}.offloaded_ratio", found["offloaded_ratio"], OFFLOADED_MIN_RATIO)
        lab.at_least(f"{name}.hot_resident_ratio", found["hot_resident_ratio"], HOT_RESIDENT_MIN_RATIO)
        for what in ("saved", "written"):
            key = f"{what}_disagreement_ratio"
            lab.at_most(f"{name}.{key}", found[key], DISAGREEMENT_MAX_RATIO)
    return figures


def _run(lab: Lab, workload: Workload, name: str, pool: str) -> dict[str, Any]:
    """Runs an agent until the job's cold memory is offloaded; returns the figures."""
    guest = workload.guest
    before = Counters.now(guest, workload.cgroup)
    agent = offload.start(guest, [workload.job], "pressure", "both", {**_SETTINGS, "zswap.max_pool": pool})
    job = offload.offloaded(agent, workload.job)
    for _ in range(OFFLOAD_SECONDS_MAX):
        if job.far_bytes >= 0.9 * COLD_MIB * MIB:
            break
        # There is no event to wait for.
        guest.run(["sleep", "1"])
        job = offload.offloaded(agent, workload.job)
    found = _judge(workload, agent, before)
    agent.stop()
    reclaimed = found["written_back_bytes"] / MIB
    lab.say(f"{name}: {job.far_bytes / MIB:.1f} MiB offloaded, {reclaimed:.1f} MiB of it written back from zswap")
    return found


def _judge(workload: Workload, agent: node.Agent, before: Counters) -> dict[str, Any]:
    guest = workload.guest
    # The view is of the last period, so the kernel's counters before and after reading it are approximate bounds.
    first = Counters.now(guest, workload.cgroup)
    view = agent.status()
    now = Counters.now(guest, workload.cgroup)
    job = next(job for job in view["jobs"] if job["job"] == workload.job)
    residency = workload.residency()["hot"]
    swap_backed = job["saved_bytes"] - job["file_out_bytes"]
    written = now.written_bytes - before.written_bytes
    reported = view["tiers"]["written_bytes"]
    return {
        "tier": job["tier"],
        "tier_reason": job["tier_reason"],
        "offloaded_bytes": job["far_bytes"],
        "offloaded_ratio": job["far_bytes"] / (COLD_MIB * MIB),
        "pool_bytes": job["pool_bytes"],
        "saved_bytes": job["saved_bytes"],
        "hot_resident_ratio": residency["present_bytes"] / (HOT_MIB * MIB),
        "written_back_bytes": now.written_back_bytes - before.written_back_bytes,
        "written_bytes": written,
        "job_written_bytes": job["written_bytes"],
        "saved_disagreement_ratio": _outside(swap_backed, first.saved_bytes, now.saved_bytes),
        "written_disagreement_ratio": _outside(reported, first.written_bytes - before.written_bytes, written),
    }


def _outside(value: int, one: int, other: int) -> float:
    """Returns the distance of a value from an interval, relative to its upper end, which counts as 1 MiB at least."""
    low, high = sorted((one, other))
    return max(low - value, value - high, 0) / max(high, MIB)
