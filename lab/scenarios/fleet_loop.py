"""The whole loop: three machines write traces to an object store, a tuner finds parameters, a rollout brings them back.

Redis, memcached and PostgreSQL, each in a guest of its own, under careful parameters set by hand. Their traces are
compacted and tuned on; what the tuner finds is published as a signed bundle, goes to one machine first and then to all,
and is in the journal and the trace of each. Far memory before and after is what the kernel's counters say, `rate_after`
what came back under the bundle, by the traces. More far memory than before is not asked for: in a job's first minutes
more is out than ought to be, and comes back.

Most requests of each program are for a small part of its data, so that some parameters do hold the objective: where
all pages are as likely as each other, a threshold that was good in a history of minutes is broken in the next. And what
the parameters of before had put out counts as theirs who come after, when it returns: PostgreSQL under Zipf's law has
many pages that are asked for once in ten minutes, and no parameters make that undone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thermolab import fleet, loads, node, services, truth
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.paths import TREE
from thermolab.qemu import MIB, Machine
from thermolab.store import URL, ObjectStore

KERNELS = ("6.12",)
FEATURES = ("s3",)
MORE_IS_BETTER = ("far_bytes_after",)

FAR_MIN_BYTES = 16 * MIB

_POLL_S = 3
# In the first minutes of a job any threshold is broken: its pages have not been old before.
_RECORDED_S = 330
_AFTER_S = 240
_PATIENCE_S = 120
# One who is careful: a twelfth of the objective, held in the worst period so far, and nothing is touched for minutes.
_BY_HAND: node.Settings = {
    "cold_age.promotion_rate": "1%",
    "cold_age.percentile": "100%",
    "cold_age.warmup": "180s",
}
# PostgreSQL looks for something to vacuum once a minute: half of the scan period that this scenario shrinks to 2 s. At
# its own pace that would be once in an hour, by pages that are long out and come back all at once.
_NAP_S = 1
_MIX = ("--hot-fraction", "0.02", "--hot-share", "0.6", "--warm-fraction", "0.07", "--cold-touches-per-s", "0.5")
_TRACE: node.Settings = {"trace.store": URL, "trace.entry_period": "6s", "trace.file_period": "18s"}


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of the fleet."""

    name: str
    job: str
    guest: Guest
    agent: node.Agent

    def far_bytes(self) -> int:
        """What of the job the kernel has in swap."""
        return self.guest.number(f"/sys/fs/cgroup{self.job}/memory.swap.current")


def run(lab: Lab) -> dict[str, Any]:
    """Record, tune, publish, stage."""
    with (
        ObjectStore() as store,
        tempfile.TemporaryDirectory(prefix="thermolab-fleet-") as directory,
        contextlib.ExitStack() as stack,
    ):
        operator = fleet.Operator(store, lab.program("thermocline"), Path(directory))
        operator.begin()
        operator.assign(bundle=None, share="0%", control="0%", stage="none")
        names = _names(operator)
        hosts = [
            _start(lab, stack, store, operator, name, program)
            for name, program in zip(names, (_redis, _memcached, _postgres), strict=True)
        ]
        _pass(hosts, _RECORDED_S)
        before = [host.far_bytes() for host in hosts]
        tuned = _tune(lab, store, Path(directory))
        lab.say(f"the tuner found {tuned}")
        version = operator.publish(1, tuned)
        operator.assign(bundle=version, share=f"{_CANARY:.0%}", control="0%", stage="canary")
        canary = _followers(hosts, version, 1)
        operator.assign(bundle=version, share="100%", control="0%", stage="fleet")
        everybody = _followers(hosts, version, len(hosts))
        _pass(hosts, _AFTER_S)
        after = [host.far_bytes() for host in hosts]
        for host in hosts:
            host.agent.stop()
        entries = store.entries(lab.program("thermocline"))
        (lab.directory / "entries.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    under = [entry for entry in entries if entry["bundle_version"] == version]
    traced = {entry["machine"] for entry in under}
    rates = [_rate(entry) for entry in under if entry["far_periods"] and entry["working_set_bytes"]]
    rate = node.percentile(rates, _PERCENTILE)
    figures = {
        "entries": len(entries),
        "machines": len({entry["machine"] for entry in entries}),
        "knobs": {f"{table}.{name}": value for table, values in tuned.items() for name, value in values.items()},
        "canary_machines": len(canary),
        "fleet_machines": len(everybody),
        "machines_in_trace_with_bundle": len(traced),
        "far_bytes_before": sum(before),
        "far_bytes_after": sum(after),
        "rate_after": rate,
    }
    lab.say(", ".join(f"{name} {value}" for name, value in figures.items()))
    lab.holds("canary", canary == {names[0]}, f"{canary} follow at the canary stage, not {names[0]} alone")
    lab.at_least("fleet_machines", len(everybody), len(hosts))
    lab.at_least("machines_in_trace_with_bundle", len(traced), len(hosts))
    lab.at_least("far_bytes_after", sum(after), FAR_MIN_BYTES)
    lab.at_most("rate_after", rate, node.SLO_RATIO_PER_MIN)
    return figures


_CANARY = 0.3
# Of some dozen entries a job, a 98th percentile is the worst of all.
_PERCENTILE = 0.95
# What minutes tell of the next ones is little: half of the objective is left as room.
_MARGIN = 0.5


def _rate(entry: dict[str, Any]) -> float:
    """What came back per minute of an entry, as a share of the working set."""
    pages = entry["working_set_bytes"] / 4096
    return float(entry["promoted_pages"] * 60_000 / entry["duration_ms"] / pages)


def _names(operator: fleet.Operator) -> list[str]:
    """One name that is in the canary stage, and two that are not."""
    places = {name: operator.place(name) for name in (f"m{number}" for number in range(20))}
    first = [name for name, place in places.items() if place < _CANARY]
    others = [name for name, place in places.items() if place >= _CANARY]
    if not first or len(others) < 2:
        raise LabError(f"no machines for a canary stage of {_CANARY:.0%}: {places}")
    return [first[0], *others[:2]]


def _start(
    lab: Lab,
    stack: contextlib.ExitStack,
    store: ObjectStore,
    operator: fleet.Operator,
    name: str,
    program: Callable[[Guest], str],
) -> Host:
    guest = stack.enter_context(lab.guest(Machine(memory_bytes=768 * MIB, cpus=1, qemu_args=store.qemu_args)))
    truth.tick(guest, 20)
    store.connect(guest)
    job = program(guest)
    operator.install_root(guest)
    node.configure(guest, [node.Job(job)], {**_BY_HAND, **_TRACE, **fleet.following(_POLL_S, name)})
    return Host(name, job, guest, node.start(guest, env=store.guest_env))


def _redis(guest: Guest) -> str:
    server = services.redis(guest)
    load = loads.Requests(server, "redis", keys=50_000, mix=_MIX)
    load.fill()
    load.start(3600, 300)
    return "/redis"


def _memcached(guest: Guest) -> str:
    server = services.memcached(guest, memory_mib=128, options=["-o", "no_lru_crawler"])
    load = loads.Requests(server, "memcached", keys=40_000, mix=_MIX)
    load.fill()
    load.start(3600, 300)
    return "/memcached"


def _postgres(guest: Guest) -> str:
    server = services.postgres(guest, shared_buffers_mib=96, options=["-c", f"autovacuum_naptime={_NAP_S}s"])
    load = loads.Pgbench(server, scale=4, asked_share=0.3)
    load.fill()
    # Each page that is asked for at all is so every three seconds. A smaller working set would make an hourly chore of
    # the server, which touches a hundred pages, a tenth of it.
    load.start(3600, 600)
    return "/postgres"


def _pass(hosts: list[Host], seconds: int) -> None:
    """They all live in the same time."""
    hosts[0].guest.run(["sleep", str(seconds)], timeout_s=seconds + 120)


def _followers(hosts: list[Host], version: int, wanted: int) -> set[str]:
    """Who goes by a bundle once so many do, or patience has ended."""
    found: set[str] = set()
    for _ in range(_PATIENCE_S // _POLL_S):
        found = {host.name for host in hosts if host.agent.status()["rollout"]["bundle_version"] == version}
        if len(found) >= wanted:
            # Nobody else does a while later, either.
            _pass(hosts, 3 * _POLL_S)
            return {host.name for host in hosts if host.agent.status()["rollout"]["bundle_version"] == version}
        _pass(hosts, _POLL_S)
    return found


def _tune(lab: Lab, store: ObjectStore, directory: Path) -> dict[str, dict[str, str]]:
    """What the tuner makes of the traces so far; knobs by table."""
    program = lab.program("thermocline")
    # What was tuned on stays, to be looked at.
    compacted, study, out = lab.directory / "fleet.compacted.parquet", directory / "study", directory / "tuned.toml"
    store.run(program, "trace", "compact", URL, "--to", str(compacted))
    argv = [sys.executable, "-m", "thermocline.tune", "run", "--format", "json", "--program", str(program)]
    argv += ["--study", str(study), "--trace", str(compacted), "--out", str(out), "--designer", "grid", "--trials", "5"]
    argv += ["--knob", "cold_age.promotion_rate", "--objective", f"{node.SLO_RATIO_PER_MIN:.0%}"]
    argv += ["--bounds", "cold_age.promotion_rate=4%..20%", "--warmups", "0s,60s,120s,180s,240s,300s"]
    argv += ["--objective-percentile", f"{_PERCENTILE:.0%}", "--margin", f"{_MARGIN:.0%}"]
    env = {**os.environ, "PYTHONPATH": str(TREE / "python")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"the tuner ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    (lab.directory / "tuned.json").write_text(done.stdout)
    found: dict[str, dict[str, str]] = tomllib.loads(out.read_text())
    return found
