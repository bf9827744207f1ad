"""Twelve ways to run out of memory or of swap, each with and without the agent: the agent causes no kill.

A job has idle, hot and file memory. The agent offloads it by age, then memory or swap runs out. A way is harmed if more
processes are killed with the agent than without it, or if the agent's requests took page cache that the job uses.

zswap is on in both runs. Once swap is full, its pool is memory that the machine has less: 24 MiB of these 512 with 48
MiB of swap, measured without an agent. zswap is the operator's choice (`zswap.manage`), and not what is compared here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thermolab import node, programs, swap
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine, SwapDisk

KERNELS = ("6.12", "7.2")

JOB = "/job"
CGROUP = f"/sys/fs/cgroup{JOB}"
IDLE_MIB, HOT_MIB, FILE_MIB = 160, 24, 48
MEMORY_MIB = 512
LATE_MIB = 260
"""Of another job that starts later: about as much as the machine has left. With swap for the rest it fits."""
LATE_NEARLY_FULL_MIB = 228
"""Where swap is nearly full: 236 MiB fit and 240 do not, with the agent as without."""
OFFLOAD_SECONDS, AFTER_SECONDS = 25, 12

HARM_MAX = 0
FILE_TAKEN_MAX_BYTES = 12 * MIB

_SETTINGS: node.Settings = {
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "4s",
    # What is judged is what happens to a job that is offloaded, not when that begins.
    "cold_age.bound": False,
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running out."""

    prepare: Callable[[Guest], object] = lambda _: None
    """Before the job starts."""
    limit: Callable[[Guest], object] = lambda _: None
    """After the job has started, before the agent does."""
    strike: Callable[[Guest], object] = lambda _: None
    """When the agent has offloaded the job."""
    swap_bytes: int = 512 * MIB
    tier: str = "zswap"
    idle_kind: str = "anon"
    settings: node.Settings = field(default_factory=dict)


def _write(path: str, text: str) -> Callable[[Guest], object]:
    return lambda guest: guest.write(path, text)


def _late(guest: Guest, size_mib: int = LATE_MIB, job: str = "/late") -> None:
    """Starts a process with this memory, and does not wait for it: it may be killed."""
    files = f"/run/late{job.replace('/', '-')}"
    spec = f"{files}.json"
    guest.write(spec, json.dumps({"seed": 3, "regions": [programs.hot("late", size_mib * MIB, 500)]}))
    argv = ["labguest", "workload", spec, "--layout", f"{files}.layout"]
    guest.spawn(argv, cgroup=guest.cgroup(job[1:]), stdout="/dev/null", stderr=f"{files}.err")
    guest.run(["sleep", "1"])


def _started(guest: Guest) -> None:
    """Whether the late programs started: one that did not would test nothing. A killed program has no last words."""
    words = guest.run(["sh", "-c", "cat /run/late*.err 2>/dev/null; true"]).stdout.strip()
    if words:
        raise LabError(f"the late program did not start: {words}")


def _wake(guest: Guest) -> None:
    """The job touches all of its memory at once, when another has taken what was freed."""
    _late(guest, 200)
    guest.run(["sh", "-c", f"kill -USR1 $(cat {CGROUP}/cgroup.procs)"])


def _offline(guest: Guest) -> None:
    """Takes memory from the machine, as much of 128 MiB as the kernel gives."""
    script = (
        "n=0; for block in /sys/devices/system/memory/memory[0-9]*; do "
        "[ $n -lt 1 ] && echo offline >$block/state 2>/dev/null && n=$((n+1)); done; echo $n"
    )
    guest.run(["sh", "-c", script], timeout_s=120)
    _late(guest, 200)


WAYS = {
    "swap_nearly_full": Way(swap_bytes=48 * MIB, strike=lambda guest: _late(guest, LATE_NEARLY_FULL_MIB)),
    "swap_absent": Way(prepare=lambda guest: guest.run(["busybox", "swapoff", swap.DEVICE]), strike=_late),
    "swap_limited": Way(limit=_write(f"{CGROUP}/memory.swap.max", str(16 * MIB)), strike=_late),
    "zswap_small": Way(settings={"zswap.max_pool": "2%"}, strike=_late),
    "zswap_limited": Way(limit=_write(f"{CGROUP}/memory.zswap.max", str(2 * MIB)), strike=_late),
    "incompressible": Way(idle_kind="weights", strike=_late),
    "slow_device": Way(prepare=lambda guest: swap.delay(guest, 100), tier="swap", strike=_wake),
    "burst_of_returns": Way(strike=_wake),
    "job_grows": Way(limit=_write(f"{CGROUP}/memory.max", str(300 * MIB)), strike=lambda guest: _late(guest, 150, JOB)),
    "limit_lowered": Way(strike=_write(f"{CGROUP}/memory.max", str(90 * MIB))),
    "machine_fills": Way(strike=lambda guest: _late(guest, 400)),
    "memory_offline": Way(strike=_offline),
}


def run(lab: Lab) -> dict[str, Any]:
    """Runs each way without the agent, then with it."""
    figures: dict[str, Any] = {}
    harmed = []
    for name, way in WAYS.items():
        without, with_agent = (_run(lab, way, agent=agent) for agent in (False, True))
        taken = without["file_bytes"] - with_agent["file_bytes"]
        harm = with_agent["kills"] > without["kills"] or taken > FILE_TAKEN_MAX_BYTES
        harmed += [name] if harm else []
        figures[name] = {"without": without, "with_agent": with_agent, "file_taken_bytes": taken, "harmed": harm}
        lab.say(
            f"{name}: killed {without['kills']} without and {with_agent['kills']} with the agent, which had "
            f"{with_agent['far_bytes'] / MIB:.0f} MiB out; page cache {-taken / MIB:+.0f} MiB, direct reclaims "
            f"{without['allocstall']} and {with_agent['allocstall']}"
        )
    lab.holds("harmed", len(harmed) <= HARM_MAX, f"harmed: {', '.join(harmed)}")
    lab.at_least("offloaded_ways", sum(way["with_agent"]["far_bytes"] > 8 * MIB for way in figures.values()), 8)
    return {"ways": len(WAYS), "harmed": len(harmed), **figures}


def _run(lab: Lab, way: Way, *, agent: bool) -> dict[str, Any]:
    with lab.guest(Machine(memory_bytes=MEMORY_MIB * MIB, swap=SwapDisk(way.swap_bytes))) as guest:
        guest.write("/sys/module/zswap/parameters/enabled", "Y")
        way.prepare(guest)
        idle = programs.phases("idle", IDLE_MIB * MIB, (80_000, None), (80_000, 1000)) | {"kind": way.idle_kind}
        file = programs.hot("file", FILE_MIB * MIB, 2000) | {"kind": "file", "path": "/root/never.file"}
        programs.workload(guest, JOB, [idle, programs.hot("hot", HOT_MIB * MIB), file])
        way.limit(guest)
        if agent:
            node.configure(guest, [node.Job(JOB, policy="cold_age", tier=way.tier)], {**_SETTINGS, **way.settings})
            running = node.start(guest)
        guest.run(["sleep", str(OFFLOAD_SECONDS)])
        stat = guest.flat_keyed(f"{CGROUP}/memory.stat")
        # What zswap refuses is charged to swap and stays in DRAM, in the swap cache.
        far = guest.number(f"{CGROUP}/memory.swap.current") - stat["swapcached"]
        way.strike(guest)
        guest.run(["sleep", str(AFTER_SECONDS)], timeout_s=300)
        _started(guest)
        events = guest.flat_keyed("/proc/vmstat")
        if agent:
            lab.holds("agent", str(running.pid) in guest.run(["ls", "/proc"]).stdout.split(), "the agent has ended")
        return {
            "far_bytes": far,
            "file_bytes": stat["file"] - stat["shmem"],
            "kills": events["oom_kill"],
            "allocstall": sum(count for key, count in events.items() if key.startswith("allocstall")),
        }
