"""What jobs experience within a time window, from the kernel's counters and from their own reports."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .guest import Guest
from .truth import Workload


@dataclass(frozen=True, slots=True)
class Stalls:
    """A cgroup's PSI totals at one moment (`some`, in microseconds), and the time of that moment."""

    at_seconds: float
    memory_us: int
    io_us: int

    @classmethod
    def now(cls, guest: Guest, cgroup: str) -> "Stalls":
        """Reads the kernel's current totals."""
        at = float(guest.read("/proc/uptime").split()[0])
        return cls(at, some_us(guest.read(f"{cgroup}/memory.pressure")), some_us(guest.read(f"{cgroup}/io.pressure")))

    def ratio_since(self, before: "Stalls") -> float:
        """Returns the stalled share of the time since `before`, for memory or I/O, whichever is larger."""
        elapsed_us = (self.at_seconds - before.at_seconds) * 1e6
        return max(self.memory_us - before.memory_us, self.io_us - before.io_us) / max(elapsed_us, 1.0)


def some_us(text: str) -> int:
    """Returns the total of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` of a pressure file."""
    line = next(line for line in text.splitlines() if line.startswith("some "))
    return int(line.rpartition("total=")[2])


@dataclass(frozen=True, slots=True)
class Window:
    """What one job that serves requests experienced over some seconds."""

    stall_ratio: float
    """Share of the time in which some task stalled on memory or on I/O, whichever is larger."""
    access_ratio: float
    """Share of the time that the job spent on reading its memory; page faults increase it."""
    faulted_ratio: float
    """Share of the time that the job spent on reads during which it had a page fault; part of `access_ratio`."""
    ops_per_s: float
    p99_us: float
    """Median over the seconds' 99th percentiles."""

    def slowdown_ratio(self, before: "Window") -> float:
        """Returns the share of the time lost to slower memory, relative to the window `before`.

        Both windows' shares are of the same requests at the same rate, so the host's speed, which varies from minute
        to minute, has little influence.
        """
        return self.access_ratio - before.access_ratio


def watch(workloads: Sequence[Workload], seconds: int) -> list[Window]:
    """Waits `seconds` and returns what each of the workloads, which all serve requests, experienced."""
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
                access_ratio=_time_ratio(lines, "access_us"),
                faulted_ratio=_time_ratio(lines, "faulted_us"),
                ops_per_s=sum(line["ops"] for line in lines) / len(lines),
                p99_us=statistics.median(line["p99_us"] for line in lines if line["p99_us"] is not None),
            )
        )
    return windows


def _time_ratio(lines: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(line[key] for line in lines) / (1e6 * len(lines)))


def settled(workload: Workload, seconds: int = 1) -> None:
    """Waits until the workload has served requests for `seconds`."""
    workload.guest.expect(workload.out, f'"t":{seconds}}}', timeout_s=10 * seconds + 60)


def _lines(workload: Workload) -> list[dict[str, Any]]:
    text = workload.guest.read(workload.out)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
