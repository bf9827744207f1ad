"""Ground-truth workloads as jobs: programs whose every access to memory is known."""

import json
from collections.abc import Sequence
from typing import Any

from .guest import Guest

Region = dict[str, Any]


def idle(name: str, size_bytes: int) -> Region:
    """Memory that is filled once and never accessed again."""
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"never": True}}


def hot(name: str, size_bytes: int, period_ms: int = 100) -> Region:
    """Memory that is read whole in each period."""
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"period_ms": period_ms}}


def phases(name: str, size_bytes: int, *parts: tuple[float, int | None]) -> Region:
    """Memory that is written whole in each period, in phases of (seconds, period in ms), idle where that is `None`."""
    pattern = [{"for_s": length, **({"never": True} if ms is None else {"period_ms": ms})} for length, ms in parts]
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"phases": pattern}, "writes": True}


def workload(guest: Guest, job: str, regions: Sequence[Region], *, seed: int = 2) -> int:
    """Start `labguest workload` in the cgroup `job` (a path that starts with a slash), filled; its pid."""
    files = f"/run/workload{job.replace('/', '-')}"
    spec, log = f"{files}.json", f"{files}.log"
    guest.write(spec, json.dumps({"seed": seed, "regions": list(regions)}))
    argv = ["labguest", "workload", spec, "--layout", f"{files}.layout"]
    pid = guest.spawn(argv, cgroup=guest.cgroup(job[1:]), stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=120)
    return pid
