"""Reclaim before memory is short, against reclaim when it is (SDFM section 3.2): four ways with the same DRAM.

A server answers at a fixed rate while jobs begin, rest and end beside it; together they want more than the machine has.
Each run of a way has a guest of its own: no swap at all, zswap with the kernel's own reclaim, `memory.high` on all
jobs, and Thermocline with its default class. Of each: latency of the server beside its own latency before the jobs,
direct reclaims (`allocstall`), stall, processes killed, how long a job takes to fill its memory, and free DRAM.

The first jobs fill the machine, and from them the agent learns which memory rests: that time is kept apart (`begin`).
One run does not measure a tail: what is compared is run three times, in turns, and medians count. In an emulated
processor compressors take far longer than on hardware; the agent chooses one by what it takes, as on any machine.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thermolab import loads, node, services
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine, SwapDisk

KERNELS = ("6.12-idle",)
"""Not stock kernels: their sampled ages take longer than these jobs live until most may go out."""
MORE_IS_BETTER = ("free_bytes_mean",)

MACHINE_MIB = 512
KEYS, RATE = 20_000, 300
ALONE_SECONDS, BEGIN_SECONDS, JUDGED_SECONDS = 15, 70, 100
JOB_MIB, JOB_HOT_MIB = 72, 4
"""A job fills its memory and then rests: only its hot part is read."""
JOBS_AT_ONCE, JOB_EVERY_SECONDS = 6, 10
HIGH_MIB = 260
"""`memory.high` of all jobs together: what the server and the kernel leave."""

FILL_MAX_RATIO = 1.25
"""A job may fill its memory a little later beside the agent, whose scans take time of an emulated processor."""
POOL_PERCENT = 50
"""Limit of zswap's pool in every way: what rests does not fit into the kernel's default of 20 %."""

_SWAP = SwapDisk(512 * MIB)
_FREE = "/run/free"
_RULE = node.Job("/batch/*")
# Only where ages are sampled, on other kernels: the default sample is as large as this machine.
_SETTINGS: node.Settings = {
    "cold_age.warmup": "8s",
    "agent.sample_points": 2048,
    "zswap.max_pool": f"{POOL_PERCENT}%",
}

SAMPLE = "while :; do grep MemFree /proc/meminfo >>$0; sleep 1; done"


@dataclass(frozen=True, slots=True)
class Way:
    """How memory is found for the next job."""

    swap: bool
    rounds: int = 3
    prepare: Callable[[Guest], object] = lambda _: None
    agent: bool = False


def _zswap(guest: Guest) -> None:
    guest.write("/sys/module/zswap/parameters/max_pool_percent", str(POOL_PERCENT))
    guest.write("/sys/module/zswap/parameters/enabled", "Y")


def _high(guest: Guest) -> None:
    _zswap(guest)
    guest.write(f"{guest.cgroup('batch')}/memory.high", str(HIGH_MIB * MIB))


WAYS = {
    "no_swap": Way(swap=False, rounds=1),
    "stock": Way(swap=True, prepare=_zswap),
    "memory_high": Way(swap=True, rounds=1, prepare=_high),
    "thermocline": Way(swap=True, agent=True),
}


def run(lab: Lab) -> dict[str, Any]:
    """Measures each way, in rounds."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for number in range(1, max(way.rounds for way in WAYS.values()) + 1):
        for name, way in WAYS.items():
            if number > way.rounds:
                continue
            with lab.guest(Machine(memory_bytes=MACHINE_MIB * MIB, swap=_SWAP if way.swap else None)) as guest:
                rounds[name].append(row := _measure(guest, way))
            lab.say(f"round {number}, {name}: {_shown(row)}")
    figures = {name: _median(rows) for name, rows in rounds.items()}
    for name, row in figures.items():
        lab.say(f"median of {len(rounds[name])}, {name}: {_shown(row)}")
    ours, stock = figures["thermocline"], figures["stock"]
    lab.at_least("stock.allocstall", stock["allocstall"], 100)
    lab.at_most("thermocline.oom_kills", ours["oom_kills"], stock["oom_kills"])
    lab.at_most("thermocline.allocstall", ours["allocstall"], stock["allocstall"] / 10)
    lab.at_least("thermocline.free_bytes_mean", ours["free_bytes_mean"], stock["free_bytes_mean"])
    lab.at_most("thermocline.fill_seconds", ours["fill_seconds"], FILL_MAX_RATIO * stock["fill_seconds"])
    lab.at_most("thermocline.p99_ratio", ours["p99_ratio"], stock["p99_ratio"] / 2)
    return {**figures, "rounds": rounds}


def _shown(row: dict[str, Any]) -> str:
    return (
        f"p99 {row['p99_ratio']:.2f} times that of the server alone, {row['allocstall']:.0f} direct reclaims, "
        f"{row['free_bytes_mean'] / MIB:.0f} MiB free, {row['oom_kills']:.0f} killed, {row['jobs_filled']:.0f} jobs "
        f"filled in {row['fill_seconds']:.2f} s each"
    )


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, nested ones too."""
    values = {key: [row[key] for row in rows] for key in rows[0]}
    nested = {key: _median(of) for key, of in values.items() if isinstance(of[0], dict)}
    return {key: statistics.median(of) for key, of in values.items() if key not in nested} | nested


def _measure(guest: Guest, way: Way) -> dict[str, Any]:
    batch = guest.cgroup("batch")
    guest.write(f"{batch}/cgroup.subtree_control", "+memory")
    way.prepare(guest)
    server = services.redis(guest)
    load = loads.Requests(server, "redis", keys=KEYS)
    load.fill()
    alone = _p99(guest, load, ALONE_SECONDS)
    if way.agent:
        node.configure(guest, [_RULE], _SETTINGS)
        guest.write("/run/agent.log", "")
        guest.spawn(["thermocline", "agent"], stdout="/run/agent.log", stderr="/run/agent.log")
    sampler = guest.spawn(["sh", "-c", SAMPLE, _FREE])
    begun = guest.spawn(["sh", "-c", _jobs()], stdout="/run/begun", stderr="/dev/null")
    begin, judged = (_window(guest, server, load, seconds, alone) for seconds in (BEGIN_SECONDS, JUDGED_SECONDS))
    for pid in (begun, sampler):
        guest.kill(pid, 9)
    guest.keep(_FREE)
    for path in ("/run/jobs.err", "/run/agent.log", f"{node.STATE}/journal"):
        if guest.exists(path):
            guest.keep(path)
    return {**judged, "begin": begin}


def _window(guest: Guest, server: services.Service, load: loads.Requests, seconds: int, alone: float) -> dict[str, Any]:
    """What is counted while the server answers for `seconds`; `alone` is its latency without jobs."""
    samples, jobs = len(_free(guest)), len(_fill_seconds(guest))
    before = _counted(guest, server)
    beside = _p99(guest, load, seconds)
    after = _counted(guest, server)
    free, filled = _free(guest)[samples:], _fill_seconds(guest)[jobs:]
    return {
        "p99_ratio": beside / alone,
        "free_bytes_mean": sum(free) / len(free),
        "free_bytes_min": min(free),
        "jobs_filled": len(filled),
        "fill_seconds": statistics.median(filled),
        **{key: after[key] - before[key] for key in after},
    }


def _free(guest: Guest) -> list[int]:
    return [int(line.split()[1]) * 1024 for line in guest.read(_FREE).splitlines()] if guest.exists(_FREE) else []


def _fill_seconds(guest: Guest) -> list[float]:
    """How long each job took from its start until its memory was full, in the order in which they were done."""
    done = guest.run(["sh", "-c", "stat -c '%.9Y %n' /run/job-*.begun /run/job-*.layout 2>/dev/null || true"]).stdout
    at = {name: float(second) for second, name in map(str.split, done.splitlines())}
    filled = sorted((end, name) for name, end in at.items() if name.endswith(".layout"))
    return [end - at[name.replace(".layout", ".begun")] for end, name in filled]


def _jobs() -> str:
    """A script that begins jobs; each fills its memory, rests, and ends some jobs later."""
    regions = [
        {"name": "resting", "bytes": JOB_MIB * MIB, "kind": "anon", "pattern": {"never": True}},
        {"name": "hot", "bytes": JOB_HOT_MIB * MIB, "kind": "anon", "pattern": {"period_ms": 500}},
    ]
    spec = json.dumps({"seed": 4, "regions": regions})
    return f"""
        echo '{spec}' >/run/job.json
        n=0
        while :; do
          n=$((n+1)); c=/sys/fs/cgroup/batch/$n; mkdir $c
          : >/run/job-$n.begun
          run="/lab/labguest workload /run/job.json --layout /run/job-$n.layout"
          sh -c "echo 0 >$c/cgroup.procs; exec $run" >/dev/null 2>>/run/jobs.err &
          echo $n
          old=$((n-{JOBS_AT_ONCE}))
          [ $old -gt 0 ] && echo 1 >/sys/fs/cgroup/batch/$old/cgroup.kill
          [ $old -gt 1 ] && rmdir /sys/fs/cgroup/batch/$((old-1))
          sleep {JOB_EVERY_SECONDS}
        done"""


def _p99(guest: Guest, load: loads.Requests, seconds: int) -> float:
    """The server's latency at a fixed rate, in microseconds; the last line of a load's output is of the whole run."""
    pid = load.start(seconds, RATE)
    guest.wait_exit(pid, timeout_s=10 * seconds)
    summary = json.loads(guest.read(load.out).splitlines()[-1])
    guest.keep(load.out)
    return float(summary["p99_us"])


def _counted(guest: Guest, server: services.Service) -> dict[str, int]:
    events = guest.flat_keyed("/proc/vmstat")
    pressure = [line for line in guest.read(f"{server.cgroup}/memory.pressure").splitlines() if line.startswith("some")]
    return {
        "allocstall": sum(count for key, count in events.items() if key.startswith("allocstall")),
        "oom_kills": events["oom_kill"],
        "swap_ins": events["pswpin"] + events.get("zswpin", 0),
        "server_stall_us": int(pressure[0].rpartition("=")[2]),
    }
