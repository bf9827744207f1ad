"""The ground-truth workload in a guest: memory whose accesses are all known, and queries about it."""

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .guest import Guest
from .qemu import MIB

SWAP_BACKED = ("anon", "shared", "memfd", "huge", "incompressible", "weights")
"""Kinds of regions that zswap can store; the remaining kind is `file`."""

_SEED = 20191


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of one kind with one access pattern."""

    name: str
    mib: int
    pattern: Mapping[str, Any]
    kind: str = "anon"
    writes: bool = False
    locked: bool = False
    """Locked by `mlock`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the workload reads."""
        return {
            "name": self.name,
            "bytes": self.mib * MIB,
            "kind": self.kind,
            "pattern": dict(self.pattern),
            "writes": self.writes,
            "locked": self.locked,
            # The layout file's directory is a memory file system, where the region would be swap-backed.
            "path": f"/root/truth.{self.name}" if self.kind == "file" else None,
        }


@dataclass(frozen=True, slots=True)
class Server:
    """Requests that a workload serves: each reads pages of the regions with pattern `requests`, and computes."""

    rounds: int
    """Rounds of computation per request."""
    rate: float | None = None
    """Requests per second; `None`: as many as can be served."""

    def to_json(self) -> dict[str, Any]:
        """Returns the form that the workload reads."""
        return {"rounds": self.rounds, "rate": self.rate}


def requests(pages: int, exponent: float) -> dict[str, Any]:
    """Returns the pattern of a region of which each request reads `pages` pages, with popularity by Zipf's law."""
    return {"requests": {"pages": pages, "exponent": exponent}}


def poisson(least: float, most: float, **more: float) -> dict[str, Any]:
    """Returns the pattern of a region whose 2 MiB blocks are accessed at random times, each at its own rate.

    Rates are distributed log-uniformly from `least` to `most` per second. `more`: `idle`, the share of blocks that are
    never accessed; `parts`, the number of a block's pages that are accessed; `exponent`, the skew between these;
    `draw`, a seed for the assignment of rates to blocks.
    """
    return {"poisson": {"least": least, "most": most, **more}}


BLOCK_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True)
class Block:
    """Accesses of one 2 MiB block of a workload, since its start or between two moments."""

    region: str
    touched: int
    """Pages that were accessed at least once."""
    accesses: int
    node: int | None
    """NUMA node of its first page; in a difference, at its end."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses of each block of a workload, as counted by the workload."""

    at_seconds: float
    """Time of `CLOCK_MONOTONIC`; in a difference, the elapsed time."""
    blocks: Mapping[int, Block]
    """Blocks by address."""

    def since(self, before: "Accesses") -> "Accesses":
        """Returns the accesses between `before` and this moment."""
        blocks = {
            address: replace(block, accesses=block.accesses - before.blocks[address].accesses)
            for address, block in self.blocks.items()
        }
        return Accesses(self.at_seconds - before.at_seconds, blocks)

    def rate(self, address: int) -> float:
        """Returns the accesses per second of one block; only for a difference."""
        return self.blocks[address].accesses / self.at_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """Memory that a tracker considers cold, as address ranges, which all of the workload's processes share."""

    taken_at_ns: int
    cold: Sequence[Sequence[int]]


def tick(guest: Guest, period_ms: int = 100) -> None:
    """Runs a small program on every CPU periodically.

    Kernels clear accessed bits without flushing the TLB and rely on its small size. An emulated TLB holds tens of
    thousands of pages and is flushed only on a context switch. If the guest is otherwise idle, hot pages of a workload
    would therefore appear idle for a whole scan, which the TLB of real hardware is too small for.
    """
    region = Region("tick", 1, {"period_ms": period_ms})
    guest.write("/root/tick.spec", json.dumps({"seed": 1, "regions": [region.to_json()]}))
    for cpu in range(guest.machine.cpus):
        out = f"/run/tick.{cpu}.out"
        argv = ["taskset", "-c", str(cpu), "labguest", "workload", "/root/tick.spec", "--layout", f"/run/tick.{cpu}"]
        guest.spawn(argv, stdout=out, stderr=out)
        guest.expect(out, "ready")


class Workload:
    """A running ground-truth workload in its own cgroup."""

    def __init__(
        self,
        guest: Guest,
        regions: Sequence[Region],
        name: str = "truth",
        server: Server | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Starts it; with `wait` false it returns before the memory is filled."""
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
        """Returns the total size of the named regions in bytes."""
        return sum(self.regions[name].mib for name in names) * MIB

    def swap_backed(self) -> list[str]:
        """Returns the names of the regions that zswap can store."""
        return [name for name, region in self.regions.items() if region.kind in SWAP_BACKED]

    def next_phase(self) -> float:
        """Starts the next phase of all regions that have phases; returns the time since boot in seconds."""
        self._phase += 1
        self.guest.kill(self.pid, signal.SIGUSR1)
        self.guest.expect(self.out, f"phase {self._phase}")
        return self.uptime()

    def uptime(self) -> float:
        """Returns the guest's time since boot in seconds."""
        return float(self.guest.read("/proc/uptime").split()[0])

    def compare(self, verdict: Verdict, idle_ms: int, slack_ms: int = 0) -> dict[str, dict[str, Any]]:
        """Compares a verdict with the known accesses; returns the correct and incorrect bytes by region."""
        body = {"pid": self.pid, "taken_at_ns": verdict.taken_at_ns, "cold": verdict.cold}
        self.guest.write(self._verdict, json.dumps(body))
        argv = ["labguest", "truth", self.layout, "--idle-ms", str(idle_ms), "--compare", self._verdict]
        report = json.loads(self.guest.run([*argv, "--slack-ms", str(slack_ms)], timeout_s=120).stdout)
        return {region["name"]: region for region in report["regions"]}

    def idle_bytes(self, names: Sequence[str], idle_ms: int, at_seconds: float) -> int:
        """Returns the bytes of the named regions that had been idle for `idle_ms` at that time since boot."""
        report = self.compare(Verdict(round(at_seconds * 1e9), []), idle_ms)
        return sum(region["idle_bytes"] for name, region in report.items() if name in names)

    def residency(self) -> dict[str, dict[str, int]]:
        """Returns each region's `present_bytes`, `swapped_bytes` and `absent_bytes`."""
        report = json.loads(self.guest.run(["labguest", "residency", self.layout]).stdout)
        return {region["name"]: region for region in report["regions"]}

    def accesses(self) -> Accesses:
        """Returns the accesses so far; filling counts as one access of every page."""
        report = json.loads(self.guest.run(["labguest", "accesses", self.layout]).stdout)
        blocks = {
            block["address"]: Block(region["name"], block["touched"], block["accesses"], block["node"])
            for region in report["regions"]
            for block in region["blocks"]
        }
        return Accesses(report["at_ns"] / 1e9, blocks)

    def returns(self, names: Sequence[str]) -> list[int]:
        """Returns how many pages of the named regions were accessed after N seconds without access, so far, by N.

        N goes from 0 to 127; the last counts all longer times.
        """
        report = json.loads(self.guest.run(["labguest", "accesses", self.layout]).stdout)
        named = [region["returns"] for region in report["regions"] if region["name"] in names]
        return [sum(counts) for counts in zip(*named, strict=True)]

    def stop(self) -> None:
        """Ends it and waits for its exit."""
        self.guest.kill(self.pid)
        self.guest.wait_exit(self.pid)
