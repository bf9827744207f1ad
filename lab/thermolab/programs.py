"""Ground-truth workloads as jobs: programs whose memory accesses are all known."""

import json
from collections.abc import Sequence
from typing import Any

from .guest import Guest

Region = dict[str, Any]


def idle(name: str, size_bytes: int) -> Region:
    """Returns a region that is filled once and never accessed again."""
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"never": True}}


def hot(name: str, size_bytes: int, period_ms: int = 100) -> Region:
    """Returns a region of which every page is read once per period."""
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"period_ms": period_ms}}


def phases(name: str, size_bytes: int, *parts: tuple[float, int | None]) -> Region:
    """Returns a region that is written once per period, in phases of (seconds, period in ms); `None`: an idle phase."""
    pattern = [{"for_s": length, **({"never": True} if ms is None else {"period_ms": ms})} for length, ms in parts]
    return {"name": name, "bytes": size_bytes, "kind": "anon", "pattern": {"phases": pattern}, "writes": True}


def workload(guest: Guest, job: str, regions: Sequence[Region], *, seed: int = 2) -> int:
    """Starts `labguest workload` in the cgroup `job` (with a leading slash); returns its pid once memory is filled."""
    files = f"/run/workload{job.replace('/', '-')}"
    spec, log = f"{files}.json", f"{files}.log"
    guest.write(spec, json.dumps({"seed": seed, "regions": list(regions)}))
    argv = ["labguest", "workload", spec, "--layout", f"{files}.layout"]
    pid = guest.spawn(argv, cgroup=guest.cgroup(job[1:]), stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=120)
    return pid


def as_service(guest: Guest, unit: str, regions: Sequence[Region], *, seed: int = 2) -> None:
    """Starts `labguest workload` as a service of systemd; returns once its memory is filled."""
    spec, log = f"/run/{unit}.json", f"/run/{unit}.log"
    guest.write(spec, json.dumps({"seed": seed, "regions": list(regions)}))
    command = f"/lab/labguest workload {spec} --layout /run/{unit}.layout"
    guest.write(f"/run/systemd/system/{unit}", f"[Service]\nExecStart={command}\nStandardOutput=append:{log}\n")
    guest.run(["systemctl", "daemon-reload"])
    guest.run(["systemctl", "start", unit])
    guest.expect(log, "ready", timeout_s=120)
