"""One contender on one mix of programs, in a guest of its own: what it saves, and what that costs."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from thermolab import node, rootfs, truth
from thermolab.guest import CGROUP_ROOT, Guest
from thermolab.kernels import Kernel
from thermolab.qemu import GIB, Machine

from . import losses, programs
from .contenders import CGROUP, NOTHING, PACKAGES, Contender
from .losses import Faults, Move
from .programs import Program

SETTLE_SECONDS = 160
WATCH_SECONDS = 80
READ_SECONDS = 4

_WINDOW_SECONDS = 12
"""The worst of these windows is the "worst minute" of compressed time, and some more for a steady count."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program occupied and lost under one contender."""

    current_bytes: float
    """Mean of its `memory.current`, its share of the compressed pool included."""
    lost_ratio: float
    """Time that its faults take on real devices, as a share of the time watched."""
    settling_lost_us: int
    """The same before it was watched, in microseconds: what it cost until the contender had its state."""
    worst_lost_ratio: float
    """The same in the worst window."""
    stall_ratio: float
    """Its pressure stall (memory and I/O, some), emulated."""
    p99_us: float | None
    """Slowest percent of its requests, emulated."""


@dataclass(frozen=True, slots=True)
class Run:
    """One guest."""

    contender: str
    intensity: str
    programs: Mapping[str, Measured]
    overhead_bytes: float
    """What the pool's allocator occupies beyond the bytes that the programs are charged."""
    own_bytes: float
    """Memory of the contender's own processes."""
    cpu_ratio: float
    """CPU time of its processes and of kswapd and DAMON's threads, as a share of one emulated CPU."""
    memory: Sequence[Sequence[float]]
    """Over time: seconds, and the bytes that all programs occupy."""

    @staticmethod
    def of(data: dict[str, Any]) -> "Run":
        """Reads what `json` has written."""
        measured = {name: Measured(**fields) for name, fields in data["programs"].items()}
        return Run(**{**data, "programs": measured})

    def to_json(self) -> dict[str, Any]:
        """Returns the form for a file."""
        return asdict(self)


def run(
    kernel: Kernel,
    binaries: Mapping[str, Path],
    directory: Path,
    mix: Sequence[Program],
    contender: Contender,
    occupied: Mapping[str, float],
) -> Run:
    """Boots a guest, starts the programs, then the contender, lets it settle, and watches."""
    directory.mkdir(parents=True, exist_ok=True)
    with Guest(
        kernel,
        Machine(memory_bytes=2 * GIB),
        root=rootfs.image((*programs.PACKAGES, *PACKAGES), programs.COMPILED),
        binaries=binaries,
        console=directory / "console.log",
    ) as guest:
        truth.tick(guest)
        # Readahead of swap would bring neighbours back that nothing accessed.
        guest.write("/proc/sys/vm/page-cluster", "0")
        guest.write("/sys/module/zswap/parameters/enabled", "Y")
        for program in mix:
            program.start(guest)
        jobs = [program.name for program in mix]
        before = _read(guest, jobs)
        if contender is not NOTHING:
            contender.start(guest, jobs, occupied)
        time.sleep(SETTLE_SECONDS)
        watched = _watch(guest, jobs)
        moved: Mapping[str, Sequence[Move]] = {}
        if guest.exists(f"{node.STATE}/journal"):
            guest.keep(f"{node.STATE}/journal")
            moved = losses.moves_of_agent(guest, jobs, f"{CGROUP_ROOT}/{CGROUP}")
        lost = {job: _lost_us([before, *watched.readings], job, moved.get(job, ())) for job in jobs}
        return _run_of(contender, watched, lost)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counters of a guest at one moment."""

    at: float
    unix_ms: int
    """The guest's clock."""
    current: dict[str, int]
    faults: dict[str, Faults]
    stalled_us: dict[str, int]
    overhead: int
    own: int


@dataclass(frozen=True, slots=True)
class _Watched:
    """What was read while a guest was watched."""

    readings: Sequence[_Reading]
    cpu_us: int
    p99_us: Mapping[str, float | None]


def _watch(guest: Guest, jobs: Sequence[str]) -> _Watched:
    readings = [_read(guest, jobs)]
    cpu = _cpu_us(guest)
    while readings[-1].at < readings[0].at + WATCH_SECONDS:
        time.sleep(READ_SECONDS)
        readings.append(_read(guest, jobs))
    return _Watched(readings, _cpu_us(guest) - cpu, {job: programs.p99_us(guest, job) for job in jobs})


def _run_of(contender: Contender, watched: _Watched, lost: Mapping[str, Sequence[int]]) -> Run:
    readings = watched.readings
    first, last = readings[0], readings[-1]
    elapsed_us = (last.at - first.at) * 1e6
    measured = {
        job: Measured(
            current_bytes=statistics.fmean(reading.current[job] for reading in readings),
            settling_lost_us=lost_us[0],
            lost_ratio=(lost_us[-1] - lost_us[0]) / elapsed_us,
            worst_lost_ratio=_worst(readings, lost_us),
            stall_ratio=(last.stalled_us[job] - first.stalled_us[job]) / elapsed_us,
            p99_us=watched.p99_us[job],
        )
        for job, lost_us in lost.items()
    }
    return Run(
        contender=contender.name,
        intensity=contender.intensity,
        programs=measured,
        overhead_bytes=statistics.fmean(reading.overhead for reading in readings),
        own_bytes=statistics.fmean(reading.own for reading in readings),
        cpu_ratio=watched.cpu_us / elapsed_us,
        memory=[[reading.at - first.at, sum(reading.current.values())] for reading in readings],
    )


def _lost_us(readings: Sequence[_Reading], job: str, moved: Sequence[Move]) -> list[int]:
    """Returns the time that a program has lost since the first reading, at each later one."""
    lost = [0]
    for before, after in pairwise(readings):
        own = sum(move.within(before.unix_ms, after.unix_ms) for move in moved)
        lost.append(lost[-1] + sum(losses.lost_us(before.faults[job], after.faults[job], own).values()))
    return lost[1:]


def _worst(readings: Sequence[_Reading], lost_us: Sequence[int]) -> float:
    """Returns the largest share of time lost in any window."""
    worst = 0.0
    for start, reading in enumerate(readings):
        end = next((at for at in range(start, len(readings)) if readings[at].at >= reading.at + _WINDOW_SECONDS), None)
        if end is not None:
            worst = max(worst, (lost_us[end] - lost_us[start]) / ((readings[end].at - reading.at) * 1e6))
    return worst


def _read(guest: Guest, jobs: Sequence[str]) -> _Reading:
    current, counted, stalled, pool = {}, {}, {}, 0
    unix_ms = int(float(guest.run(["date", "+%s.%N"]).stdout) * 1000)
    for job in jobs:
        directory = f"{CGROUP_ROOT}/{job}"
        stat = guest.flat_keyed(f"{directory}/memory.stat")
        current[job] = guest.number(f"{directory}/memory.current")
        counted[job] = losses.faults(guest, job)
        stalled[job] = _stall_us(guest.read(f"{directory}/memory.pressure"))
        stalled[job] += _stall_us(guest.read(f"{directory}/io.pressure"))
        pool += stat["zswap"]
    whole = guest.number("/sys/kernel/debug/zswap/pool_total_size")
    own = 0
    if guest.exists(f"{CGROUP_ROOT}/{CGROUP}"):
        own = guest.number(f"{CGROUP_ROOT}/{CGROUP}/memory.current")
    return _Reading(time.monotonic(), unix_ms, current, counted, stalled, max(whole - pool, 0), own)


def _stall_us(pressure: str) -> int:
    """Returns the time in which any task waited, from a pressure file."""
    some = next(line for line in pressure.splitlines() if line.startswith("some"))
    return int(some.rsplit("total=", 1)[1])


_THREADS = """
cat /proc/[0-9]*/stat 2>/dev/null | awk '$2 ~ /^\\((kswapd|kdamond)/ { ticks += $14 + $15 } END { print ticks + 0 }'
"""
_TICK_US = 10_000


def _cpu_us(guest: Guest) -> int:
    """Returns the CPU time of the contender's processes and of the kernel threads that reclaim or monitor."""
    threads = int(guest.run(["busybox", "sh", "-c", _THREADS]).stdout) * _TICK_US
    if not guest.exists(f"{CGROUP_ROOT}/{CGROUP}"):
        return threads
    return threads + guest.flat_keyed(f"{CGROUP_ROOT}/{CGROUP}/cpu.stat")["usage_usec"]
