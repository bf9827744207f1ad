"""A job whose memory limit is full of page cache is offloaded like one without a limit.

Two jobs are equal: memory that is never accessed again, memory in use, and a stream of files that is read once. One has
a limit, which the stream keeps full of page cache; the other has none. Both are offloaded at the same time, by age.
Policies that use stalls are not judged: the kernel counts the reclaim of page cache at the limit as a stall.
"""

from typing import Any

from thermolab import offload, programs, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine

KERNELS = ("6.12",)
MORE_IS_BETTER = ("saved_ratio_to_unlimited",)

COLD_MIB, HOT_MIB = 64, 16
LIMIT_MIB = 128
"""Leaves 48 MiB for page cache and for what the kernel holds."""
STREAM_MIB_PER_S = 8
FILL_SECONDS = 20
AGENT_SECONDS = 75

SAVED_MIN_RATIO = 0.9

_JOBS = {"limited": LIMIT_MIB, "unlimited": None}

# A hole of a sparse file is read through the page cache, like data.
_STREAM = """
mib=$1; file=$2; number=0
truncate -s 1T $file
while :; do
    dd if=$file of=/dev/null bs=1M count=$mib skip=$((number * mib)) 2>/dev/null
    number=$((number + 1))
    sleep 1
done
"""


def run(lab: Lab) -> dict[str, Any]:
    """Offloads both jobs and compares them."""
    with lab.guest(Machine(memory_bytes=2 * GIB)) as guest:
        truth.tick(guest)
        figures = _offload(guest)
    saved, unlimited = (figures[name]["saved_bytes"] for name in _JOBS)
    figures["saved_ratio_to_unlimited"] = saved / max(unlimited, 1)
    lab.say(f"{saved / MIB:.1f} MiB saved with a limit full of page cache, {unlimited / MIB:.1f} without a limit")
    lab.at_least("unlimited.saved_bytes", unlimited, COLD_MIB * MIB // 3)
    lab.at_least("limited.limit_events", figures["limited"]["limit_events"], 1)
    lab.at_least("saved_ratio_to_unlimited", figures["saved_ratio_to_unlimited"], SAVED_MIN_RATIO)
    return figures


def _offload(guest: Guest) -> dict[str, Any]:
    """Runs both jobs under an agent; returns what was saved of their swap-backed memory."""
    for name, limit in _JOBS.items():
        cgroup = guest.cgroup(name)
        guest.write(f"{cgroup}/memory.max", "max" if limit is None else str(limit * MIB))
        regions = [programs.idle("cold", COLD_MIB * MIB), programs.hot("hot", HOT_MIB * MIB)]
        programs.workload(guest, f"/{name}", regions)
        argv = ["sh", "-c", _STREAM, "stream", str(STREAM_MIB_PER_S), f"/root/stream-{name}"]
        guest.spawn(argv, cgroup=cgroup)
    guest.run(["sleep", str(FILL_SECONDS)])
    before = {name: _limit_events(guest, name) for name in _JOBS}
    agent = offload.start(guest, [f"/{name}" for name in _JOBS], "cold_age", "zswap")
    guest.run(["sleep", str(AGENT_SECONDS)], timeout_s=2 * AGENT_SECONDS)
    row: dict[str, Any] = {}
    for name in _JOBS:
        job = offload.offloaded(agent, f"/{name}")
        row[name] = {
            "saved_bytes": job.saved_bytes,
            "far_bytes": job.far_bytes,
            "memory_bytes": job.memory_bytes,
            "limit_events": _limit_events(guest, name) - before[name],
            "explanation": job.explanation,
        }
    agent.stop()
    return row


def _limit_events(guest: Guest, name: str) -> int:
    return guest.flat_keyed(f"{guest.cgroup(name)}/memory.events")["max"]
