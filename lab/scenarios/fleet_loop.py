"""The fleet loop: three machines write traces to an object store, a tuner finds parameters, a rollout applies them.

Redis, memcached and PostgreSQL run in one guest each, with conservative parameters set by hand. Their traces are
compacted and used for tuning; the tuner's parameters are published as a signed bundle, assigned to one machine first
and then to all, and recorded in the journal and the trace of each. Far memory before and after is read from the
kernel's counters; `rate_after` is the promotion rate under the bundle, from the traces. An increase of far memory is
not required: in a job's first minutes more is offloaded than can stay offloaded.

Most requests of each program access a small part of its data, so that some parameters meet the objective: if all pages
were equally likely, a threshold that was good for a history of minutes would exceed the objective in the next ones.
Pages that were offloaded under the previous parameters count as promotions of the new ones when they return: under
Zipf's law PostgreSQL has many pages that are read once in ten minutes, and no parameters can prevent those promotions.
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
# In the first minutes of a job any threshold exceeds the objective, because no pages have been old before.
_RECORDED_S = 330
_AFTER_S = 240
_TIMEOUT_S = 120
# Conservative: a twelfth of the objective, met in the worst period so far, and a warm-up of minutes.
_BY_HAND: node.Settings = {
    "cold_age.promotion_rate": "1%",
    "cold_age.percentile": "100%",
    "cold_age.warmup": "180s",
}
# PostgreSQL's autovacuum wakes up once a minute, half of the default scan period, which this scenario shortens to 2 s.
# At its default pace it would wake up once in a compressed hour, touch pages that were offloaded long ago, and promote
# all of them at once.
_NAP_S = 1
_MIX = ("--hot-fraction", "0.02", "--hot-share", "0.6", "--warm-fraction", "0.07", "--cold-touches-per-s", "0.5")
_TRACE: node.Settings = {"trace.store": URL, "trace.entry_period": "6s", "trace.file_period": "18s"}


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of the fleet with one job."""

    name: str
    job: str
    guest: Guest
    agent: node.Agent

    def far_bytes(self) -> int:
        """Returns the job's bytes in swap, from the kernel."""
        return self.guest.number(f"/sys/fs/cgroup{self.job}/memory.swap.current")


def run(lab: Lab) -> dict[str, Any]:
    """Records traces, tunes, publishes and rolls out in stages."""
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
        followers = _followers(hosts, version, len(hosts))
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
        "fleet_machines": len(followers),
        "machines_in_trace_with_bundle": len(traced),
        "far_bytes_before": sum(before),
        "far_bytes_after": sum(after),
        "rate_after": rate,
    }
    lab.say(", ".join(f"{name} {value}" for name, value in figures.items()))
    lab.holds("canary", canary == {names[0]}, f"{canary} follow at the canary stage, not only {names[0]}")
    lab.at_least("fleet_machines", len(followers), len(hosts))
    lab.at_least("machines_in_trace_with_bundle", len(traced), len(hosts))
    lab.at_least("far_bytes_after", sum(after), FAR_MIN_BYTES)
    lab.at_most("rate_after", rate, node.SLO_RATIO_PER_MIN)
    return figures


_CANARY = 0.3
# Each job has only some dozen entries, of which the 98th percentile would be the maximum.
_PERCENTILE = 0.95
# A history of minutes predicts the next minutes poorly: half of the objective is kept as a margin.
_MARGIN = 0.5


def _rate(entry: dict[str, Any]) -> float:
    """Returns the promotion rate of an entry: promotions per minute as a share of the working set."""
    pages = entry["working_set_bytes"] / 4096
    return float(entry["promoted_pages"] * 60_000 / entry["duration_ms"] / pages)


def _names(operator: fleet.Operator) -> list[str]:
    """Returns one machine name that is in the canary stage, and two that are not."""
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
    # Each accessed page is read every three seconds. With a smaller working set, the hundred pages that the server
    # touches once an hour would be a tenth of it.
    load.start(3600, 600)
    return "/postgres"


def _pass(hosts: list[Host], seconds: int) -> None:
    """Waits; all guests run at the same time."""
    hosts[0].guest.run(["sleep", str(seconds)], timeout_s=seconds + 120)


def _followers(hosts: list[Host], version: int, expected: int) -> set[str]:
    """Returns the machines that follow a bundle, once there are `expected` many or after a time limit."""
    found: set[str] = set()
    for _ in range(_TIMEOUT_S // _POLL_S):
        found = {host.name for host in hosts if host.agent.status()["rollout"]["bundle_version"] == version}
        if len(found) >= expected:
            # Waits a little longer, to detect machines that should not follow.
            _pass(hosts, 3 * _POLL_S)
            return {host.name for host in hosts if host.agent.status()["rollout"]["bundle_version"] == version}
        _pass(hosts, _POLL_S)
    return found


def _tune(lab: Lab, store: ObjectStore, directory: Path) -> dict[str, dict[str, str]]:
    """Runs the tuner on the traces so far; returns its knobs by table."""
    program = lab.program("thermocline")
    # The compacted trace is kept among the results for inspection.
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
        raise LabError(f"the tuner exited with status {done.returncode}: {done.stderr.strip()[-800:]}")
    (lab.directory / "tuned.json").write_text(done.stdout)
    found: dict[str, dict[str, str]] = tomllib.loads(out.read_text())
    return found
