"""Redis, memcached, PostgreSQL and nginx under each policy: memory saved, and cost in throughput and stalls.

One row per server and policy. All data has skewed popularity. An agent without history settles and is then judged while
requests arrive at half of the rate that the server can serve. Then the agent is stopped by SIGSTOP, and the server's
maximum throughput is measured, first with far memory and then with all memory swapped in.

THERMOCLINE_LAB_SERVERS is a comma-separated list of servers to run; default: all.
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
"""Share of the rate that the server can serve. Far memory settles for the accesses at that rate: ten times as many
requests would swap memory in ten times as fast, which no policy claims to prevent."""

RUNS = 3
"""Measurements with far memory, and as many without; their medians are compared."""

REST_SECONDS = 5
"""Duration of the load at the fixed rate before a run without far memory, so that a server's caches are warm again."""

STALL_MAX_RATIO = 2 * offload.STALL_TARGET
THROUGHPUT_MIN_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """A server and its load."""

    service: Service
    load: Load
    requests: int
    """Number of requests in one measurement."""
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
    """Runs one guest for each server, and all policies in turn in it."""
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
    # There is no event to wait for: the controllers need time.
    guest.run(["sleep", str(SETTLE_SECONDS)], timeout_s=SETTLE_SECONDS + 60)
    stalls = Stalls.now(guest, cgroup)
    guest.wait_exit(load, timeout_s=JUDGED_SECONDS + 120)
    stall_ratio = Stalls.now(guest, cgroup).ratio_since(stalls)
    view = offload.offloaded(agent, job)
    # The agent scans sixty times as often as in production; that cost on two emulated CPUs would distort the
    # comparison.
    guest.kill(agent.pid, signal.SIGSTOP)
    with_far = _medians(case)
    _restore_memory(case, rate)
    without = _medians(case)
    guest.kill(agent.pid, signal.SIGCONT)
    agent.stop()
    # Discards what the agent offloaded meanwhile, before the next policy.
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


def _restore_memory(case: Case, rate: int) -> None:
    """Swaps in everything that was offloaded, and keeps the server busy for a while."""
    guest = case.service.guest
    swap.empty(guest)
    if case.files is not None:
        read = ["find", case.files, "-type", "f", "-exec", "cat", "{}", "+"]
        # The pages are charged to the job that reads them.
        guest.run(["sh", "-c", f"{' '.join(read)} >/dev/null"], cgroup=case.service.cgroup, timeout_s=120)
    guest.wait_exit(case.load.start(REST_SECONDS, rate), timeout_s=REST_SECONDS + 60)
