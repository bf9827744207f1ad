"""Redis, memcached, PostgreSQL and nginx under each policy: what is saved, and what it costs in throughput and stalls.

A row per server and policy. All data is of graded popularity, and requests come at half the rate that the server can
serve while an agent that knows nothing yet settles and is judged. Then the agent is stopped in its tracks, and the
server measured as fast as it goes, with far memory as it is and, with all memory back in DRAM, without.

THERMOCLINE_LAB_SERVERS names the servers to run, separated by commas; all of them by default.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from thermolab import loads, offload, services, swap, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.loads import Load, Measured
from thermolab.qemu import MIB
from thermolab.services import Service
from thermolab.windows import Stalls

KERNELS = ("6.12", "7.2")
POLICIES = ("cold_age", "pressure", "auto")
SERVERS = os.environ.get("THERMOCLINE_LAB_SERVERS", "redis,memcached,postgres,nginx").split(",")
MORE_IS_BETTER = tuple(
    f"{server}.{policy}.{figure}"
    for server in SERVERS
    for policy in POLICIES
    for figure in ("saved_bytes", "offloaded_anon_bytes", "offloaded_file_bytes", "throughput_ratio")
)

SETTLE_SECONDS = 24
JUDGED_SECONDS = 12
RATE_SHARE = 0.5
"""Of what the server can serve. Far memory settles by what is accessed at that rate: a server that is suddenly asked
for ten times as much gets its memory back ten times as fast, which no policy has promised."""

RUNS = 3
"""Measurements with far memory, and as many without, of which the medians count."""

REST_SECONDS = 5
"""Load at the fixed rate before a run without far memory is over, so that a server's caches are warm again."""

STALL_MAX_RATIO = 2 * offload.STALL_TARGET
THROUGHPUT_MIN_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """A server, its load, and how much of it."""

    service: Service
    load: Load
    requests: int
    """Of one measurement."""
    files: str | None = None
    """Directory of the files that it serves from page cache."""


def _redis(guest: Guest) -> Case:
    service = services.redis(guest)
    return Case(service, loads.Requests(service, "redis", keys=90_000), requests=15_000)


def _memcached(guest: Guest) -> Case:
    service = services.memcached(guest, memory_mib=400, options=["-o", "no_lru_crawler"])
    return Case(service, loads.Requests(service, "memcached", keys=90_000), requests=15_000)


def _postgres(guest: Guest) -> Case:
    service = services.postgres(guest)
    return Case(service, loads.Pgbench(service, scale=6), requests=2_000, files="/var/lib/postgresql")


def _nginx(guest: Guest) -> Case:
    service = services.nginx(guest)
    load = loads.Requests(service, "http", keys=2_000, value_factor=64)
    return Case(service, load, requests=3_000, files="/srv")


_CASES: dict[str, Callable[[Guest], Case]] = {
    "redis": _redis,
    "memcached": _memcached,
    "postgres": _postgres,
    "nginx": _nginx,
}


def run(lab: Lab) -> dict[str, Any]:
    """A guest for each server, all policies in turn in it."""
    figures: dict[str, Any] = {"stall_target_ratio": offload.STALL_TARGET}
    for name in SERVERS:
        with lab.guest() as guest:
            truth.tick(guest)
            case = _CASES[name](guest)
            case.load.fill()
            rate = round(case.load.measure(case.requests).ops_per_s * RATE_SHARE)
            figures[name] = {policy: _row(lab, case, policy, rate) for policy in POLICIES}
            case.service.stop()
        for policy, row in figures[name].items():
            prefix = f"{name}.{policy}"
            lab.at_most(f"{prefix}.errors", row["errors"], 0)
            lab.at_least(f"{prefix}.throughput_ratio", row["throughput_ratio"], THROUGHPUT_MIN_RATIO)
            if policy != "cold_age":
                lab.at_least(f"{prefix}.saved_bytes", row["saved_bytes"], 1)
                lab.at_most(f"{prefix}.stall_ratio", row["stall_ratio"], STALL_MAX_RATIO)
    return figures


def _row(lab: Lab, case: Case, policy: str, rate: int) -> dict[str, Any]:
    guest, cgroup = case.service.guest, case.service.cgroup
    job = cgroup.removeprefix("/sys/fs/cgroup")
    before = case.service.memory_current()
    load = case.load.start(SETTLE_SECONDS + JUDGED_SECONDS, rate)
    agent = offload.start(guest, [job], policy, "auto")
    # Nothing happens that could be waited for: the controllers' time has to pass.
    guest.run(["sleep", str(SETTLE_SECONDS)], timeout_s=SETTLE_SECONDS + 60)
    stalls = Stalls.now(guest, cgroup)
    guest.wait_exit(load, timeout_s=JUDGED_SECONDS + 120)
    stall_ratio = Stalls.now(guest, cgroup).ratio_since(stalls)
    view = offload.offloaded(agent, job)
    # It scans sixty times as often here as in production: what that costs two emulated CPUs is no matter of far memory.
    guest.kill(agent.pid, signal.SIGSTOP)
    with_far = _medians(case)
    _bring_back(case, rate)
    without = _medians(case)
    guest.kill(agent.pid, signal.SIGCONT)
    agent.stop()
    # What the agent took meanwhile is not the next one's.
    swap.empty(guest)
    row: dict[str, Any] = {
        "memory_before_bytes": before,
        "saved_bytes": view.saved_bytes,
        "offloaded_anon_bytes": view.far_bytes,
        "offloaded_file_bytes": view.file_out_bytes,
        "tier": view.tier or "none",
        "throughput_ratio": with_far.ops_per_s / without.ops_per_s,
        "latency_p99_ratio": with_far.p99_us / without.p99_us,
        "stall_ratio": stall_ratio,
        "requests_per_s": rate,
        "requests_per_s_max": without.ops_per_s,
        "errors": with_far.errors + without.errors,
    }
    lab.say(
        f"{case.load.name:>9} {policy:>8}: {row['saved_bytes'] / MIB:6.1f} MiB saved of {before / MIB:.0f}, "
        f"throughput {row['throughput_ratio']:.3f}, p99 {row['latency_p99_ratio']:.2f}, stalled {stall_ratio:.2%}, "
        f"in {row['tier']}; {view.explanation}"
    )
    return row


def _medians(case: Case) -> Measured:
    runs = [case.load.measure(case.requests) for _ in range(RUNS)]
    ops, p99 = median(run.ops_per_s for run in runs), median(run.p99_us for run in runs)
    return Measured(ops, p99, sum(run.errors for run in runs))


def _bring_back(case: Case, rate: int) -> None:
    """All that was offloaded, back into DRAM, and the server busy for a while."""
    guest = case.service.guest
    swap.empty(guest)
    if case.files is not None:
        read = ["find", case.files, "-type", "f", "-exec", "cat", "{}", "+"]
        # Charged to the job that reads.
        guest.run(["sh", "-c", f"{' '.join(read)} >/dev/null"], cgroup=case.service.cgroup, timeout_s=120)
    guest.wait_exit(case.load.start(REST_SECONDS, rate), timeout_s=REST_SECONDS + 60)
