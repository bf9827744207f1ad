"""What a guest makes of pool memory, seen from its host."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .guest import Guest
from .pool import Host, PoolGuest, Refused
from .qemu import MIB

_BALLOON_SECONDS = 30.0
"""Until a guest has said how much it uses; it is asked every two."""

_COPIED_MIB = 128


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a guest, while a program was at work in it."""

    pool_bytes: int
    pool_touched_bytes: int
    local_touched_bytes: int
    pool_accessed_ratio: float
    """Of all pages accessed in the monitor's periods, by their accessed bits, those in the pool."""

    def figures(self) -> dict[str, Any]:
        """As figures of a scenario."""
        touched = self.pool_touched_bytes
        return {
            "pool_bytes": self.pool_bytes,
            "pool_touched_bytes": touched,
            "pool_touched_ratio": touched / self.pool_bytes if self.pool_bytes else 0.0,
            "memory_in_pool_ratio": touched / (touched + self.local_touched_bytes),
            "pool_accessed_ratio": self.pool_accessed_ratio,
        }


def see(host: Host, guest: PoolGuest, looks: int) -> Seen:
    """Looks at a guest with pool memory for so many of the monitor's periods."""
    sums = host.looks(guest.vm.name, looks)
    record = host.explain(guest.vm.name)
    usage = record["usage"]
    accessed = sums["pool_accessed_bytes"] + sums["local_accessed_bytes"]
    return Seen(
        pool_bytes=sum(slice_["bytes"] for slice_ in record["mapped"]),
        pool_touched_bytes=usage["pool_touched_bytes"],
        local_touched_bytes=usage["local_touched_bytes"],
        pool_accessed_ratio=sums["pool_accessed_bytes"] / accessed if accessed else 0.0,
    )


def hold(guest: PoolGuest, mark: int, mib: int, *, node: int | None = None, timeout_s: float = 120.0) -> "Marks":
    """Fills memory of a guest with a mark, by a program that goes on looking at it."""
    out = f"/run/marks.{mark}"
    argv = ["labguest", "marks", "hold", "--mark", str(mark), "--mib", str(mib)]
    if node is not None:
        argv += ["--node", str(node)]
    pid = guest.spawn(argv, stdout=out, stderr=f"{out}.err")
    guest.expect(out, "held_bytes", timeout_s)
    return Marks(guest, pid, mib * MIB, out)


@dataclass(frozen=True, slots=True)
class Marks:
    """Memory with a mark in it."""

    guest: PoolGuest
    pid: int
    held_bytes: int
    out: str

    def damaged_bytes(self) -> int:
        """What its holder has ever found changed; waits for one more look of its."""
        seen = self.guest.read(self.out).count("damaged_bytes")
        lines = self.guest.read(self.out).splitlines()
        while sum("damaged_bytes" in line for line in lines) < seen + 2:
            self.guest.run(["sleep", "0.2"])
            lines = self.guest.read(self.out).splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return max(int(line.get("damaged_bytes", 0)) for line in found)

    def is_alive(self) -> bool:
        """Whether nobody has ended its holder."""
        return self.guest.exists(f"/proc/{self.pid}/status")

    def drop(self) -> None:
        """Gives the memory back to the guest's kernel, marks and all."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)


def find(guest: PoolGuest, marks: list[int], node: int) -> tuple[list[int], int]:
    """Bytes of each mark in a node's physical memory, and how much was looked at."""
    argv = ["labguest", "marks", "find", "--node", str(node)]
    for mark in marks:
        argv += ["--mark", str(mark)]
    told = json.loads(guest.run(argv, timeout_s=300).stdout)
    return told["found_bytes"], told["looked_bytes"]


def balloon(guest: PoolGuest) -> bool:
    """Whether the guest has a driver by which it tells how much it uses; loads it if need be."""
    return guest.run(["modprobe", "virtio_balloon"], check=False).status == 0


def release(host: Host, guest: PoolGuest) -> float:
    """Takes back a guest's pool memory once it says that it has the room; seconds that its slices took in all."""
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
    """What the slices took in all that a guest has given, by what its host knows of it."""
    words = (event["what"] for event in record["events"])
    return sum(float(what.split(" in ")[1].split()[0]) for what in words if "went offline" in what)


def refused(host: Host, name: str) -> str:
    """Why a release is refused."""
    try:
        host.vm("release", name)
    except Refused as refusal:
        return str(refusal)
    return "it was not refused"


def kept(host: Host, name: str) -> str:
    """Why a guest keeps its slices although it has the room, once it says that it has."""
    deadline = time.monotonic() + _BALLOON_SECONDS
    while "must stay free" in (why := refused(host, name)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return why


def copy_seconds_per_gib(guest: Guest) -> float:
    """What a guest takes to copy its own memory: what is emulated is told as a multiple of that."""
    there = "/dev/shm/from"  # noqa: S108 -- the guest's own
    guest.run(["dd", "if=/dev/zero", f"of={there}", "bs=1M", f"count={_COPIED_MIB}"], timeout_s=120)
    # Over itself, so that no page has to be made first.
    again = ["dd", f"if={there}", f"of={there}.copy", "bs=1M", "conv=notrunc"]
    guest.run(again, timeout_s=120)
    begin = time.monotonic()
    guest.run(again, timeout_s=120)
    took = time.monotonic() - begin
    guest.run(["rm", there, f"{there}.copy"])
    return took / (_COPIED_MIB / 1024)


def out_of_memory(guest: PoolGuest) -> int:
    """How many programs the guest's kernel has ended for want of memory."""
    return guest.flat_keyed("/proc/vmstat")["oom_kill"]


def node_bytes(guest: PoolGuest, node: int) -> int:
    """What the guest's kernel manages of a node; 0 where there is none."""
    path = f"/sys/devices/system/node/node{node}/meminfo"
    if not guest.exists(path):
        return 0
    line = next(line for line in guest.read(path).splitlines() if "MemTotal" in line)
    return int(line.split()[3]) * 1024


def resident_bytes(guest: PoolGuest) -> int:
    """What a guest of local memory alone has ever touched of it, by its process's page tables."""
    text = Path(f"/proc/{guest.pid}/smaps").read_text()
    within, total = False, 0
    for line in text.splitlines():
        if line.startswith("Rss:") and within:
            total += int(line.split()[1]) * 1024
        elif "-" in line.split(" ")[0]:
            within = "memfd:memory-backend-memfd" in line
    return total
