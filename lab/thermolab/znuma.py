"""Pool memory as a NUMA node without CPUs (zNUMA): how a guest uses it, observed from its host."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .guest import Guest
from .pool import Host, Refused
from .pool_guest import PoolGuest
from .qemu import MIB

_BALLOON_SECONDS = 30.0
"""Time limit for the guest's first memory statistics; the balloon is polled every two seconds."""

_COPIED_MIB = 128


@dataclass(frozen=True, slots=True)
class Observation:
    """Memory use of a guest while a program ran in it."""

    pool_bytes: int
    pool_touched_bytes: int
    local_touched_bytes: int
    pool_accessed_ratio: float
    """Share of the pool in all pages found accessed in the monitor's periods, by their accessed bits."""

    def figures(self) -> dict[str, Any]:
        """Returns it as figures of a scenario."""
        touched = self.pool_touched_bytes
        return {
            "pool_bytes": self.pool_bytes,
            "pool_touched_bytes": touched,
            "pool_touched_ratio": touched / self.pool_bytes if self.pool_bytes else 0.0,
            "memory_in_pool_ratio": touched / (touched + self.local_touched_bytes),
            "pool_accessed_ratio": self.pool_accessed_ratio,
        }


def observe(host: Host, guest: PoolGuest, samples: int) -> Observation:
    """Observes a guest with pool memory for `samples` periods of the monitor."""
    sums = host.samples(guest.vm.name, samples)
    record = host.explain(guest.vm.name)
    usage = record["usage"]
    accessed = sums["pool_accessed_bytes"] + sums["local_accessed_bytes"]
    return Observation(
        pool_bytes=sum(slice_["bytes"] for slice_ in record["mapped"]),
        pool_touched_bytes=usage["pool_touched_bytes"],
        local_touched_bytes=usage["local_touched_bytes"],
        pool_accessed_ratio=sums["pool_accessed_bytes"] / accessed if accessed else 0.0,
    )


def hold(guest: PoolGuest, mark: int, mib: int, *, node: int | None = None, timeout_s: float = 120.0) -> "Marks":
    """Fills memory of a guest with a mark, by a program that keeps checking it."""
    out = f"/run/marks.{mark}"
    argv = ["labguest", "marks", "hold", "--mark", str(mark), "--mib", str(mib)]
    if node is not None:
        argv += ["--node", str(node)]
    pid = guest.spawn(argv, stdout=out, stderr=f"{out}.err")
    guest.expect(out, "held_bytes", timeout_s)
    return Marks(guest, pid, mib * MIB, out)


@dataclass(frozen=True, slots=True)
class Marks:
    """Memory filled with a mark."""

    guest: PoolGuest
    pid: int
    held_bytes: int
    out: str

    def damaged_bytes(self) -> int:
        """Returns the largest number of damaged bytes that any check found; waits for the next complete check."""
        reports = self.guest.read(self.out).count("damaged_bytes")
        lines = self.guest.read(self.out).splitlines()
        while sum("damaged_bytes" in line for line in lines) < reports + 2:
            self.guest.run(["sleep", "0.2"])
            lines = self.guest.read(self.out).splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return max(int(line.get("damaged_bytes", 0)) for line in found)

    def is_alive(self) -> bool:
        """Whether the program that holds the memory still runs."""
        return self.guest.exists(f"/proc/{self.pid}/status")

    def drop(self) -> None:
        """Frees the memory in the guest without clearing the marks."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)


def find(guest: PoolGuest, marks: list[int], node: int) -> tuple[list[int], int]:
    """Returns the bytes of each mark found in a node's physical memory, and the number of bytes searched."""
    argv = ["labguest", "marks", "find", "--node", str(node)]
    for mark in marks:
        argv += ["--mark", str(mark)]
    report = json.loads(guest.run(argv, timeout_s=300).stdout)
    return report["found_bytes"], report["searched_bytes"]


def balloon(guest: PoolGuest) -> bool:
    """Loads the guest's balloon driver, which reports its memory use; returns whether it has one."""
    return guest.run(["modprobe", "virtio_balloon"], check=False).status == 0


def release(host: Host, guest: PoolGuest) -> float:
    """Releases a guest's pool memory once the guest reports enough free memory; returns the seconds for all slices."""
    deadline = time.monotonic() + _BALLOON_SECONDS
    while True:
        try:
            record = host.vm("release", guest.vm.name)
            break
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    return offline_seconds(record)


def offline_seconds(record: dict[str, Any]) -> float:
    """Returns the total time in seconds in which a guest's slices went offline, from the host's events."""
    words = (event["what"] for event in record["events"])
    return sum(float(what.split(" in ")[1].split()[0]) for what in words if "went offline" in what)


def refused(host: Host, name: str) -> str:
    """Returns the reason for which a release is refused."""
    try:
        host.vm("release", name)
    except Refused as refusal:
        return str(refusal)
    return "it was not refused"


def kept(host: Host, name: str) -> str:
    """Returns why a guest with enough free memory keeps its slices, once its free memory is reported."""
    deadline = time.monotonic() + _BALLOON_SECONDS
    while "must stay free" in (why := refused(host, name)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return why


def copy_seconds_per_gib(guest: Guest) -> float:
    """Returns the time in which a guest copies 1 GiB of its own memory: the unit for times of an emulated guest."""
    there = "/dev/shm/from"  # noqa: S108 -- the guest's own
    guest.run(["dd", "if=/dev/zero", f"of={there}", "bs=1M", f"count={_COPIED_MIB}"], timeout_s=120)
    # Overwrites the file, so that no page has to be allocated first.
    again = ["dd", f"if={there}", f"of={there}.copy", "bs=1M", "conv=notrunc"]
    guest.run(again, timeout_s=120)
    begin = time.monotonic()
    guest.run(again, timeout_s=120)
    took = time.monotonic() - begin
    guest.run(["rm", there, f"{there}.copy"])
    return took / (_COPIED_MIB / 1024)


def out_of_memory(guest: PoolGuest) -> int:
    """Returns the number of OOM kills in the guest."""
    return guest.flat_keyed("/proc/vmstat")["oom_kill"]


def node_bytes(guest: PoolGuest, node: int) -> int:
    """Returns the bytes that the guest's kernel manages on a node; 0 if the node does not exist."""
    path = f"/sys/devices/system/node/node{node}/meminfo"
    if not guest.exists(path):
        return 0
    line = next(line for line in guest.read(path).splitlines() if "MemTotal" in line)
    return int(line.split()[3]) * 1024


def resident_bytes(guest: PoolGuest) -> int:
    """Returns the resident guest memory of a guest without pool memory, from the page tables of its process."""
    text = Path(f"/proc/{guest.pid}/smaps").read_text()
    within, total = False, 0
    for line in text.splitlines():
        if line.startswith("Rss:") and within:
            total += int(line.split()[1]) * 1024
        elif "-" in line.split(" ")[0]:
            within = "memfd:memory-backend-memfd" in line
    return total
