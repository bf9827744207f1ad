"""Guests with slow memory: a second NUMA node without CPUs, which is how Linux presents a CXL memory expander.

Emulated memory has the same speed on all nodes. The nodes differ only in the latencies that the firmware reports, from
which the kernel derives memory tiers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .guest import Guest
from .qemu import MIB, Machine, SwapDisk
from .truth import Workload

LOCAL, SLOW = 0, 1
"""Node ids: the node with all CPUs, and the node without CPUs."""

SLOW_LATENCY_NS = 500
"""Latency of the slow node in the HMAT; the local node's is 100 ns."""

_LATENCY_NS = {LOCAL: 100, SLOW: SLOW_LATENCY_NS}
_BANDWIDTH = {LOCAL: "10G", SLOW: "2G"}


def two_nodes(
    local_mib: int, slow_mib: int, *, hmat: bool = True, cpus: int = 2, swap: SwapDisk | None = None
) -> Machine:
    """Returns a machine with `local_mib` on the node with CPUs and `slow_mib` on the node without.

    Without `hmat` the firmware reports no latencies, and the kernel puts both nodes into one memory tier.
    """
    initiator = f",initiator={LOCAL}" if hmat else ""
    argv = ["-machine", "hmat=on"] if hmat else []
    for node, mib in ((LOCAL, local_mib), (SLOW, slow_mib)):
        # All CPUs belong to the first node.
        of = f",cpus=0-{cpus - 1}" if node == LOCAL else ""
        argv += ["-object", f"memory-backend-ram,id=m{node},size={mib}M"]
        argv += ["-numa", f"node,nodeid={node}{of},memdev=m{node}{initiator}"]
    if hmat:
        for node in (LOCAL, SLOW):
            entry = f"hmat-lb,initiator={LOCAL},target={node},hierarchy=memory"
            argv += ["-numa", f"{entry},data-type=access-latency,latency={_LATENCY_NS[node]}"]
            argv += ["-numa", f"{entry},data-type=access-bandwidth,bandwidth={_BANDWIDTH[node]}"]
    return Machine(memory_bytes=(local_mib + slow_mib) * MIB, cpus=cpus, swap=swap, qemu_args=tuple(argv))


def tiers(guest: Guest) -> dict[str, str]:
    """Returns the kernel's memory tiers: name to list of nodes, such as `{"memory_tier4": "0"}`."""
    found = guest.run(["sh", "-c", "grep -H . /sys/devices/virtual/memory_tiering/memory_tier*/nodelist"], check=False)
    pairs = (line.split(":", 1) for line in found.stdout.splitlines())
    return {path.split("/")[-2]: nodes for path, nodes in pairs}


def memory(guest: Guest, node: int) -> tuple[int, int]:
    """Returns a node's total and free memory in bytes."""
    lines = guest.read(f"/sys/devices/system/node/node{node}/meminfo").splitlines()
    # Lines such as `Node 0 MemTotal:  634404 kB`.
    kib = {fields[2].rstrip(":"): int(fields[3]) for fields in map(str.split, lines)}
    return kib["MemTotal"] << 10, kib["MemFree"] << 10


@dataclass(frozen=True, slots=True)
class Window:
    """Accesses of a workload by node, within a short time window."""

    at_seconds: float
    """End of the window, in seconds of `CLOCK_MONOTONIC`."""
    elapsed_seconds: float
    slow_bytes: int
    slow_accesses: int
    local_bytes: int
    local_accesses: int

    @property
    def slow_rate(self) -> float:
        """Returns the accesses per second on the slow node, as counted by the workload."""
        return self.slow_accesses / self.elapsed_seconds


class Watch:
    """Records twice a second which nodes a workload accesses, until `stop` or the workload's end."""

    def __init__(self, workload: Workload, every_ms: int = 500) -> None:
        self.guest = workload.guest
        self.out = f"{workload.layout}.nodes"
        argv = ["labguest", "nodes", workload.layout, "--every-ms", str(every_ms)]
        self.pid = self.guest.spawn(argv, stdout=self.out, stderr=f"{self.out}.err")

    def windows(self) -> list[Window]:
        """Returns all windows so far."""
        lines = self.guest.read(self.out).splitlines()
        return [_window(line) for line in lines if line.endswith("}")]

    def stop(self) -> list[Window]:
        """Stops recording; returns all windows."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)
        self.guest.keep(self.out)
        return self.windows()


def _window(line: str) -> Window:
    report = json.loads(line)
    nodes = [report["nodes"].get(str(node), {"bytes": 0, "accesses": 0}) for node in (SLOW, LOCAL)]
    counts = [node[figure] for node in nodes for figure in ("bytes", "accesses")]
    return Window(report["at_ns"] / 1e9, report["elapsed_s"], *counts)


def between(windows: Sequence[Window], begin: float, end: float) -> list[Window]:
    """Returns the windows between two times of `CLOCK_MONOTONIC`, in seconds."""
    return [
        window for window in windows if begin <= window.at_seconds - window.elapsed_seconds and window.at_seconds <= end
    ]


def averages(windows: Sequence[Window], seconds: float) -> list[float]:
    """Returns the slow node's accesses per second averaged over `seconds`, starting at each window."""
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
