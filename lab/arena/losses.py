"""What a program's faults would cost on real devices.

A guest's own time says nothing about hardware: faults are counted, and charged. What a contender reads of a program is
no wait of the program's. Thermocline reads pages from zswap to write them to the device (`writeback.enabled`), and the
cgroup counts these as any other fault. The agent's journal says how many they are. Some were in the swap cache, which
is no fault that waits: no more are left out than the kernel counts such faults of the agent's tasks, those in others'
memory included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from thermolab import node
from thermolab.guest import CGROUP_ROOT, Guest

ZSWAP_US, DISK_US = 120, 500
"""What a fault takes on real devices, in microseconds. 120 us is the larger of the latencies that the first arena
measured for zswap, 500 us that of a slow SSD in TMO section 2.5."""

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Faults:
    """What a cgroup got back so far."""

    zswap: int
    """Pages from zswap."""
    disk: int
    """Pages from devices."""
    reads: int
    """All its reads from devices, of what it had never had as well."""


@dataclass(frozen=True, slots=True)
class Move:
    """Pages that a contender read from zswap and wrote to the device, between two times of the guest's clock."""

    begin_ms: int
    end_ms: int
    pages: float

    def within(self, begin_ms: int, end_ms: int) -> float:
        """Returns how many of them were moved between two times, if they were moved evenly."""
        overlap = min(self.end_ms, end_ms) - max(self.begin_ms, begin_ms)
        return self.pages * max(overlap, 0) / max(self.end_ms - self.begin_ms, 1)


def faults(guest: Guest, job: str) -> Faults:
    """Returns the counters of a cgroup."""
    stat = guest.flat_keyed(f"{CGROUP_ROOT}/{job}/memory.stat")
    io_stat = guest.read(f"{CGROUP_ROOT}/{job}/io.stat").split()
    # Before Linux 6.17 a cgroup does not count its reads from the device; refaults that are not from zswap are such.
    disk = max(stat["workingset_refault_anon"] - stat["zswpin"], 0) + stat["workingset_refault_file"]
    reads = sum(int(word.removeprefix("rios=")) for word in io_stat if word.startswith("rios="))
    return Faults(stat["zswpin"], disk, reads)


def lost_us(before: Faults, after: Faults, moved: float = 0) -> Mapping[str, int]:
    """Returns the time that a cgroup's faults between two readings take on real devices, by device.

    A read brings up to 32 pages of a file, and one wait: no more are charged than there were reads. `moved` are pages
    that the contender has read from zswap.
    """
    disk = min(after.disk - before.disk, after.reads - before.reads)
    return {"zswap": round(max(after.zswap - before.zswap - moved, 0) * ZSWAP_US), "disk": disk * DISK_US}


def moves(records: Sequence[Mapping[str, Any]], jobs: Sequence[str], counted: int) -> Mapping[str, Sequence[Move]]:
    """Returns what the journal of Thermocline's agent says that it has moved, by job.

    If that is more than `counted`, the faults of the agent's tasks, all of it is made smaller in proportion.
    """
    own = {job: [one for one in records if one["record"] == "writeback" and one["job"] == f"/{job}"] for job in jobs}
    pages = sum(one["written"] for records in own.values() for one in records) / _PAGE_BYTES
    share = min(counted / pages, 1) if pages else 1
    return {
        job: [Move(a["unix_ms"], b["unix_ms"], b["written"] / _PAGE_BYTES * share) for a, b in pairwise(records)]
        for job, records in own.items()
    }


def moves_of_agent(guest: Guest, jobs: Sequence[str], cgroup: str) -> Mapping[str, Sequence[Move]]:
    """Returns what an agent in this cgroup has moved, by job."""
    counted = sum(_major_faults(guest, int(pid)) for pid in guest.read(f"{cgroup}/cgroup.procs").split())
    return moves(node.journal(guest), jobs, counted)


def _major_faults(guest: Guest, pid: int) -> int:
    """Returns the faults of a process that waited, those in the memory of others included (`mm_account_fault()`)."""
    return int(guest.read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[9])
