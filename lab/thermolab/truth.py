"""The ground-truth workload in a guest: memory whose every access is known, and questions about it."""

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .guest import Guest
from .qemu import MIB

SWAP_BACKED = ("anon", "shared", "memfd", "huge", "incompressible", "weights")
"""Kinds of regions that zswap can hold; the other one is `file`."""

_SEED = 20191


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of one kind, accessed in one way."""

    name: str
    mib: int
    pattern: Mapping[str, Any]
    kind: str = "anon"
    writes: bool = False
    locked: bool = False
    """By `mlock`."""

    def to_json(self) -> dict[str, Any]:
        """As the workload reads it."""
        return {
            "name": self.name,
            "bytes": self.mib * MIB,
            "kind": self.kind,
            "pattern": dict(self.pattern),
            "writes": self.writes,
            "locked": self.locked,
            # Beside the layout file it would be in a memory file system, and swap-backed.
            "path": f"/root/truth.{self.name}" if self.kind == "file" else None,
        }


@dataclass(frozen=True, slots=True)
class Server:
    """Requests that a workload serves: each reads pages of the regions with the pattern `requests`, and computes."""

    rounds: int
    """Of computation per request."""
    rate: float | None = None
    """Requests per second; as many as can be served otherwise."""

    def to_json(self) -> dict[str, Any]:
        """As the workload reads it."""
        return {"rounds": self.rounds, "rate": self.rate}


def requests(pages: int, exponent: float) -> dict[str, Any]:
    """The pattern of a region of which each request reads so many pages; few are popular, and most are rare."""
    return {"requests": {"pages": pages, "exponent": exponent}}


def poisson(least: float, most: float, **more: float) -> dict[str, Any]:
    """The pattern of a region whose 2 MiB blocks are accessed at random times, each at a rate of its own.

    Rates go from `least` to `most` per second, evenly spread by their logarithm. `more`: `idle`, the share of blocks
    that are never accessed; `parts`, how many of a block's pages are; `exponent`, by how much these differ; `draw`,
    another number for another assignment of the rates.
    """
    return {"poisson": {"least": least, "most": most, **more}}


@dataclass(frozen=True, slots=True)
class Block:
    """Accesses of 2 MiB of a workload, since its start or between two moments."""

    region: str
    touched: int
    """Pages that were ever accessed."""
    accesses: int


@dataclass(frozen=True, slots=True)
class Accesses:
    """How often each block of a workload was accessed, by the workload's own count."""

    at_seconds: float
    """Of `CLOCK_MONOTONIC`; between two moments, the time that passed."""
    blocks: Mapping[int, Block]
    """By address."""

    def since(self, before: "Accesses") -> "Accesses":
        """What happened between `before` and this."""
        blocks = {
            address: Block(block.region, block.touched, block.accesses - before.blocks[address].accesses)
            for address, block in self.blocks.items()
        }
        return Accesses(self.at_seconds - before.at_seconds, blocks)

    def rate(self, address: int) -> float:
        """Accesses per second of one block; of a difference only."""
        return self.blocks[address].accesses / self.at_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tracker holds for cold, by address: the workload's processes map the same memory at the same ones."""

    taken_at_ns: int
    cold: Sequence[Sequence[int]]


def tick(guest: Guest, period_ms: int = 100) -> None:
    """Have a small program of its own run on every CPU every now and then.

    Kernels clear accessed bits without flushing the TLB, and rely on its small size. An emulated TLB holds tens of
    thousands of pages and forgets them only when a CPU changes to another process; a workload alone on a quiet guest
    may have hot pages that look idle for a whole scan. No TLB of real hardware could hold them that long.
    """
    region = Region("tick", 1, {"period_ms": period_ms})
    guest.write("/root/tick.spec", json.dumps({"seed": 1, "regions": [region.to_json()]}))
    for cpu in range(guest.machine.cpus):
        out = f"/run/tick.{cpu}.out"
        argv = ["taskset", "-c", str(cpu), "labguest", "workload", "/root/tick.spec", "--layout", f"/run/tick.{cpu}"]
        guest.spawn(argv, stdout=out, stderr=out)
        guest.expect(out, "ready")


class Workload:
    """A running workload in a cgroup of its own."""

    def __init__(
        self,
        guest: Guest,
        regions: Sequence[Region],
        name: str = "truth",
        server: Server | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Start it; without `wait` it is not filled yet, and may be killed before it is."""
        self.guest = guest
        self.regions = {region.name: region for region in regions}
        self.job = f"/{name}"
        self.cgroup = guest.cgroup(name)
        spec, self.layout, self.out = f"/root/{name}.spec", f"/run/{name}.layout", f"/run/{name}.out"
        self._verdict = f"/run/{name}.verdict"
        body: dict[str, Any] = {"seed": _SEED, "regions": [region.to_json() for region in regions]}
        if server is not None:
            body["server"] = server.to_json()
        guest.write(spec, json.dumps(body))
        argv = ["labguest", "workload", spec, "--layout", self.layout]
        self._phase = 0
        self.pid = guest.spawn(argv, cgroup=self.cgroup, stdout=self.out, stderr=f"/run/{name}.err")
        if wait:
            guest.expect(self.out, "ready", timeout_s=180)

    def bytes_of(self, names: Sequence[str]) -> int:
        """Size of the named regions."""
        return sum(self.regions[name].mib for name in names) * MIB

    def swap_backed(self) -> list[str]:
        """Names of the regions that zswap can hold."""
        return [name for name, region in self.regions.items() if region.kind in SWAP_BACKED]

    def next_phase(self) -> float:
        """Start the next phase of all regions that have phases; returns the time since boot."""
        self._phase += 1
        self.guest.kill(self.pid, signal.SIGUSR1)
        self.guest.expect(self.out, f"phase {self._phase}")
        return self.uptime()

    def uptime(self) -> float:
        """Seconds since boot, in the guest."""
        return float(self.guest.read("/proc/uptime").split()[0])

    def compare(self, verdict: Verdict, idle_ms: int, slack_ms: int = 0) -> dict[str, dict[str, Any]]:
        """What is right and wrong about a verdict, by region."""
        body = {"pid": self.pid, "taken_at_ns": verdict.taken_at_ns, "cold": verdict.cold}
        self.guest.write(self._verdict, json.dumps(body))
        argv = ["labguest", "truth", self.layout, "--idle-ms", str(idle_ms), "--compare", self._verdict]
        told = json.loads(self.guest.run([*argv, "--slack-ms", str(slack_ms)], timeout_s=120).stdout)
        return {region["name"]: region for region in told["regions"]}

    def idle_bytes(self, names: Sequence[str], idle_ms: int, at_seconds: float) -> int:
        """Bytes of the named regions that had not been accessed for `idle_ms` at that time since boot."""
        told = self.compare(Verdict(round(at_seconds * 1e9), []), idle_ms)
        return sum(region["idle_bytes"] for name, region in told.items() if name in names)

    def residency(self) -> dict[str, dict[str, int]]:
        """Bytes of each region by where they are: `present_bytes`, `swapped_bytes`, `absent_bytes`."""
        told = json.loads(self.guest.run(["labguest", "residency", self.layout]).stdout)
        return {region["name"]: region for region in told["regions"]}

    def accesses(self) -> Accesses:
        """Accesses so far; filling is one of every page."""
        told = json.loads(self.guest.run(["labguest", "accesses", self.layout]).stdout)
        blocks = {
            block["address"]: Block(region["name"], block["touched"], block["accesses"])
            for region in told["regions"]
            for block in region["blocks"]
        }
        return Accesses(told["at_ns"] / 1e9, blocks)

    def stop(self) -> None:
        """End it."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)
