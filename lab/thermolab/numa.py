"""Guests with slow memory: a second NUMA node without CPUs, as a CXL memory expander is to Linux.

Emulated memory is equally fast on all nodes. What differs is what the firmware says of it, and so which tier the
kernel puts it into.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .guest import Guest
from .qemu import MIB, Machine, SwapDisk
from .truth import Workload

LOCAL, SLOW = 0, 1
"""Node ids: the one with all CPUs, and the one with none."""

SLOW_LATENCY_NS = 500
"""What the HMAT says of reads and writes on the slow node; 100 ns of the local one."""

_LATENCY_NS = {LOCAL: 100, SLOW: SLOW_LATENCY_NS}
_BANDWIDTH = {LOCAL: "10G", SLOW: "2G"}


def two_nodes(
    local_mib: int, slow_mib: int, *, hmat: bool = True, cpus: int = 2, swap: SwapDisk | None = None
) -> Machine:
    """A machine with `local_mib` beside its CPUs and `slow_mib` apart from them.

    Without `hmat` the firmware does not tell how fast a node is, and the kernel has one memory tier only.
    """
    initiator = f",initiator={LOCAL}" if hmat else ""
    argv = ["-machine", "hmat=on"] if hmat else []
    for node, mib in ((LOCAL, local_mib), (SLOW, slow_mib)):
        # CPUs belong to the first node; a node that is given none has none.
        of = f",cpus=0-{cpus - 1}" if node == LOCAL else ""
        argv += ["-object", f"memory-backend-ram,id=m{node},size={mib}M"]
        argv += ["-numa", f"node,nodeid={node}{of},memdev=m{node}{initiator}"]
    if hmat:
        for node in (LOCAL, SLOW):
            told = f"hmat-lb,initiator={LOCAL},target={node},hierarchy=memory"
            argv += ["-numa", f"{told},data-type=access-latency,latency={_LATENCY_NS[node]}"]
            argv += ["-numa", f"{told},data-type=access-bandwidth,bandwidth={_BANDWIDTH[node]}"]
    return Machine(memory_bytes=(local_mib + slow_mib) * MIB, cpus=cpus, swap=swap, qemu_args=tuple(argv))


def tiers(guest: Guest) -> dict[str, str]:
    """The kernel's memory tiers: name to list of nodes, such as `{"memory_tier4": "0"}`."""
    found = guest.run(["sh", "-c", "grep -H . /sys/devices/virtual/memory_tiering/memory_tier*/nodelist"], check=False)
    pairs = (line.split(":", 1) for line in found.stdout.splitlines())
    return {path.split("/")[-2]: nodes for path, nodes in pairs}


@dataclass(frozen=True, slots=True)
class Window:
    """A short stretch of a workload's time."""

    at_seconds: float
    """Its end, of `CLOCK_MONOTONIC`."""
    elapsed_seconds: float
    slow_bytes: int
    slow_accesses: int
    local_bytes: int
    local_accesses: int

    @property
    def slow_rate(self) -> float:
        """Accesses of the slow node per second, as the workload counts them."""
        return self.slow_accesses / self.elapsed_seconds


class Watch:
    """Tells, twice a second, on which node a workload is accessed. It ends with the workload, or by `stop`."""

    def __init__(self, workload: Workload, every_ms: int = 500) -> None:
        self.guest = workload.guest
        self.out = f"{workload.layout}.nodes"
        argv = ["labguest", "nodes", workload.layout, "--every-ms", str(every_ms)]
        self.pid = self.guest.spawn(argv, stdout=self.out, stderr=f"{self.out}.err")

    def windows(self) -> list[Window]:
        """All that was told so far."""
        lines = self.guest.read(self.out).splitlines()
        return [_window(line) for line in lines if line.endswith("}")]

    def stop(self) -> list[Window]:
        """End it; all that was told."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)
        self.guest.keep(self.out)
        return self.windows()


def _window(line: str) -> Window:
    told = json.loads(line)
    nodes = [told["nodes"].get(str(node), {"bytes": 0, "accesses": 0}) for node in (SLOW, LOCAL)]
    counts = [node[figure] for node in nodes for figure in ("bytes", "accesses")]
    return Window(told["at_ns"] / 1e9, told["elapsed_s"], *counts)


def between(windows: Sequence[Window], begin: float, end: float) -> list[Window]:
    """Those that lie within two times of `CLOCK_MONOTONIC`, in seconds."""
    return [
        window for window in windows if begin <= window.at_seconds - window.elapsed_seconds and window.at_seconds <= end
    ]


def averages(windows: Sequence[Window], seconds: float) -> list[float]:
    """The slow node's accesses per second over stretches of `seconds`, one for each window that one may begin with."""
    found = []
    for first in range(len(windows)):
        accesses, elapsed = 0, 0.0
        for window in windows[first:]:
            accesses += window.slow_accesses
            elapsed += window.elapsed_seconds
            if elapsed >= seconds:
                found.append(accesses / elapsed)
                break
    return found
