"""zram is a tier: cold memory that compresses goes to it, and its own memory is never counted as saved.

Two guests. The first swaps to zram only, the second to a small zram device of high priority and then to a disk. The
agent has its default policy and tier in both, and its net saving must agree with MemAvailable. In the first guest a
second job has random memory, which must be left alone. In the second guest each area has a row with a latency of its
own, and only what went to the disk is charged to the write budget.
"""

from typing import Any

from thermolab import node, programs, remains, swap
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.meminfo import Memory
from thermolab.qemu import MIB, Machine

KERNELS = ("6.12", "7.2")
MORE_IS_BETTER = ("saved_bytes", "with_disk.saved_bytes")

_COMPRESSIBLE, _RANDOM = "/compressible", "/random"
_COLD_BYTES = 192 * MIB
_RANDOM_BYTES = 48 * MIB
_SMALL_ZRAM = 96 * MIB

SETTLE_SECONDS_MAX = 120
OFFLOADED_MIN_RATIO = 0.9
DISAGREEMENT_MAX_RATIO = 0.1
"""Bound on the differences between what the agent reports and what the kernel's totals show."""

_SETTINGS: node.Settings = {"zswap.manage": False}


def run(lab: Lab) -> dict[str, Any]:
    """Runs a guest with zram only, then one with zram and a disk."""
    with lab.guest(Machine(swap=None)) as guest:
        swap.zram(guest, 512 * MIB)
        figures = _zram_only(lab, guest)
    with lab.guest() as guest:
        swap.zram(guest, _SMALL_ZRAM)
        figures["with_disk"] = _with_disk(lab, guest)
    return figures


def _zram_only(lab: Lab, guest: Guest) -> dict[str, Any]:
    programs.workload(guest, _RANDOM, [_random(_RANDOM_BYTES)])
    agent, settings, before = _start(guest)
    found = _settled(guest, agent, before)
    _check_saving(lab, "zram", found)
    moved = guest.number(f"/sys/fs/cgroup{_RANDOM}/memory.swap.current")
    lab.at_most("incompressible_job_moved_bytes", moved, 0)
    job = agent.job(_COMPRESSIBLE)
    lab.holds("zram.tier", job["tier"] == "zram0", f"the tier is {job['tier']!r}: {job['tier_reason']}")
    written = agent.status()["tiers"]["written_bytes"]
    lab.holds("zram.written", written == 0, f"{written} bytes written to zram were charged to the write budget")
    doctor = guest.run(["thermocline", "doctor"], check=False).stdout
    lab.holds("zram.doctor", "zram0: 512.0 MiB, priority -" in doctor, doctor)
    _check_exit(lab, agent, settings, "zram")
    return {**found, "incompressible_job_moved_bytes": moved}


def _with_disk(lab: Lab, guest: Guest) -> dict[str, Any]:
    written_before = swap.written_bytes(guest)
    agent, settings, before = _start(guest)
    # Reads of the disk, whose latency the agent measures; nothing has been swapped in yet.
    guest.run(["dd", f"if={swap.DEVICE}", "of=/dev/null", "bs=4k", "count=512", "iflag=direct"])
    found = _settled(guest, agent, before)
    _check_saving(lab, "with_disk", found)
    tiers = agent.status()["tiers"]
    rows = {row["name"]: row for row in tiers["rows"]}
    order = [row["name"] for row in tiers["rows"]]
    lab.holds("with_disk.rows", order == ["zram0", "vdb"], f"the rows are {order}")
    latencies = {name: rows[name]["read_us"] for name in order}
    lab.holds("with_disk.latencies", None not in latencies.values(), f"the latencies are {latencies} us")
    written = swap.written_bytes(guest) - written_before
    disagreement = abs(tiers["written_bytes"] - written) / max(written, 1)
    lab.at_most("with_disk.written_disagreement_ratio", disagreement, DISAGREEMENT_MAX_RATIO)
    lab.at_least("with_disk.written_bytes", written, 1)
    _check_exit(lab, agent, settings, "with_disk")
    return {
        **found,
        "written_bytes": written,
        "written_disagreement_ratio": disagreement,
        "zram_read_seconds": (latencies["zram0"] or 0) / 1e6,
        "disk_read_seconds": (latencies["vdb"] or 0) / 1e6,
    }


def _random(size_bytes: int) -> programs.Region:
    return {"name": "random", "bytes": size_bytes, "kind": "incompressible", "pattern": {"never": True}}


def _start(guest: Guest) -> tuple[node.Agent, remains.Settings, Memory]:
    """Starts the compressible job, then the agent; returns the settings and the available memory in between."""
    programs.workload(guest, _COMPRESSIBLE, [programs.idle("cold", _COLD_BYTES), programs.hot("hot", 8 * MIB)])
    node.configure(guest, [node.Job(_COMPRESSIBLE), node.Job(_RANDOM)], _SETTINGS)
    settings, before = remains.inspect(guest), _available(guest)
    return node.start(guest), settings, before


def _available(guest: Guest) -> Memory:
    guest.write("/proc/sys/vm/drop_caches", "3")
    return Memory.now(guest)


def _settled(guest: Guest, agent: node.Agent, before: Memory) -> dict[str, Any]:
    """Waits until the cold memory is offloaded, and compares the agent's figures with the kernel's."""
    for _ in range(SETTLE_SECONDS_MAX):
        # The agent lists a job from its first scan on.
        jobs = agent.status()["jobs"]
        if any(job["job"] == _COMPRESSIBLE and job["far_bytes"] >= 0.95 * _COLD_BYTES for job in jobs):
            break
        # There is no event to wait for.
        guest.run(["sleep", "1"])
    # Two scan periods, so that the view is newer than the last offload.
    guest.run(["sleep", "5"])
    now = _available(guest)
    gained = now.available_bytes - before.available_bytes
    view = agent.status()
    zram_memory = swap.zram_memory_bytes(guest)
    job = next(job for job in view["jobs"] if job["job"] == _COMPRESSIBLE)
    charged = sum(job["zram_bytes"] for job in view["jobs"])
    return {
        "offloaded_bytes": job["far_bytes"],
        "offloaded_ratio": job["far_bytes"] / _COLD_BYTES,
        "saved_bytes": job["saved_bytes"],
        "saved_net_bytes": view["saved_bytes"],
        "zram_memory_bytes": zram_memory,
        "zram_charged_ratio": charged / max(zram_memory, 1),
        "available_gained_bytes": gained,
        "saved_net_ratio_to_memavailable": view["saved_bytes"] / max(gained, 1),
        "meminfo_changes_mib": now.changes(before),
    }


def _check_saving(lab: Lab, case: str, found: dict[str, Any]) -> None:
    lab.say(
        f"{case}: {found['offloaded_bytes'] / MIB:.1f} MiB offloaded, zram occupies "
        f"{found['zram_memory_bytes'] / MIB:.1f} MiB, {found['saved_net_bytes'] / MIB:.1f} MiB saved net, "
        f"MemAvailable gained {found['available_gained_bytes'] / MIB:.1f} MiB ({found['meminfo_changes_mib']})"
    )
    lab.at_least(f"{case}.offloaded_ratio", found["offloaded_ratio"], OFFLOADED_MIN_RATIO)
    for name in ("saved_net_ratio_to_memavailable", "zram_charged_ratio"):
        lab.at_least(f"{case}.{name}", found[name], 1 - DISAGREEMENT_MAX_RATIO)
        lab.at_most(f"{case}.{name}", found[name], 1 + DISAGREEMENT_MAX_RATIO)


def _check_exit(lab: Lab, agent: node.Agent, settings: remains.Settings, case: str) -> None:
    end = agent.stop()
    lab.holds(f"{case}.exit", end.status == 0, f"the agent exited with status {end.status}, signal {end.signal}")
    left = remains.differing(settings, remains.inspect(agent.guest))
    lab.holds(f"{case}.undo", not left, "; ".join(left))
