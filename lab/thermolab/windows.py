"""What jobs go through in a stretch of time, by the kernel's counters and by their own report."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .guest import Guest
from .truth import Workload


@dataclass(frozen=True, slots=True)
class Stalls:
    """A cgroup's pressure stall totals at one moment (`some`, microseconds), and when that was."""

    at_seconds: float
    memory_us: int
    io_us: int

    @classmethod
    def now(cls, guest: Guest, cgroup: str) -> "Stalls":
        """As the kernel has them."""
        at = float(guest.read("/proc/uptime").split()[0])
        return cls(at, some_us(guest.read(f"{cgroup}/memory.pressure")), some_us(guest.read(f"{cgroup}/io.pressure")))

    def ratio_since(self, before: "Stalls") -> float:
        """Share of the time since `before` that the worse of the two took."""
        elapsed_us = (self.at_seconds - before.at_seconds) * 1e6
        return max(self.memory_us - before.memory_us, self.io_us - before.io_us) / max(elapsed_us, 1.0)


def some_us(text: str) -> int:
    """The total of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` of a pressure file."""
    line = next(line for line in text.splitlines() if line.startswith("some "))
    return int(line.rpartition("total=")[2])


@dataclass(frozen=True, slots=True)
class Window:
    """One job that serves requests, over some seconds."""

    stall_ratio: float
    """Share of the time in which some task waited for memory or for I/O, whichever is worse."""
    access_ratio: float
    """Share of the time that the job spent in reading its memory: faults make it longer."""
    ops_per_s: float
    p99_us: float
    """The median second's."""

    def slowdown_ratio(self, before: "Window") -> float:
        """Time lost to memory that was slower than in the window `before`, as a share of the time.

        Both windows' shares are of the same requests at the same rate, so that the speed of the host, which changes
        from minute to minute, matters little.
        """
        return self.access_ratio - before.access_ratio


def watch(workloads: Sequence[Workload], seconds: int) -> list[Window]:
    """Let time pass, and tell what each of the workloads, all with servers, went through."""
    guest = workloads[0].guest
    begins = [(_lines(workload)[-1]["t"], Stalls.now(guest, workload.cgroup)) for workload in workloads]
    windows = []
    for workload, (first, before) in zip(workloads, begins, strict=True):
        guest.expect(workload.out, f'"t":{first + seconds}}}', timeout_s=10 * seconds + 60)
        stalls = Stalls.now(guest, workload.cgroup).ratio_since(before)
        lines = [line for line in _lines(workload) if first < line["t"] <= first + seconds]
        windows.append(
            Window(
                stall_ratio=stalls,
                access_ratio=sum(line["access_us"] for line in lines) / (1e6 * len(lines)),
                ops_per_s=sum(line["ops"] for line in lines) / len(lines),
                p99_us=statistics.median(line["p99_us"] for line in lines if line["p99_us"] is not None),
            )
        )
    return windows


def settled(workload: Workload, seconds: int = 1) -> None:
    """Wait until the workload has served for so many seconds."""
    workload.guest.expect(workload.out, f'"t":{seconds}}}', timeout_s=10 * seconds + 60)


def _lines(workload: Workload) -> list[dict[str, Any]]:
    text = workload.guest.read(workload.out)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
