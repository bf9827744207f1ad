"""Real programs under policy `slowdown` at 3, 6 and 10 %: their share in slow memory (Thermostat figures 5 to 11).

Redis with a hotspot, memcached and PostgreSQL with popularity by Zipf's law, and an analytics job that scans a table
while it uses a small index. A guest has no memory that is slower, so the slowdown is calculated as the accesses of the
slow node per second times the latency of one. The analytics job counts them itself; for the servers they are the
agent's estimates (see `rate_estimator` for their accuracy), averaged over a minute of periods.

`series` has hot and cold data over time, as the paper's figures 5 to 10 do: a point for each period from the agent's
start to its end. `converged_seconds` is when cold data first had nine tenths of its final size; null without any.

`overhead_ratio` is the agent's CPU time per elapsed time, emulated, which is many times that on hardware;
`sampling_cpu_ratio` is the part of it for sampling, and `sampling_held_ratio` the share of the time in which huge pages
were being split or collapsed. `sampling_estimate_ratio` estimates the sampling's CPU time on the host's CPU with
periods of 30 s, assuming that sampling and reading page frame flags are slowed down equally by emulation.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thermolab import loads, node, numa, services, slow, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload

KERNELS = ("6.12-idle", "6.12")

TARGETS = (0.03, 0.06, 0.10)
SETTLE_PERIODS = 12
JUDGED_PERIODS = 3
JUDGED_MIN_S = 60
CONVERGED_RATIO = 0.9
"""A single period's estimate is based on few samples: a server is judged by the mean over this time."""
SLOWDOWN_MAX_RATIO = 1.1
PLACED_MIN_RATIO = 0.05
SAMPLING_MAX_RATIO = 0.01
PERIOD_S = 30
"""Production's period in seconds."""
_SCAN_S = 60


@dataclass(frozen=True, slots=True)
class Case:
    """A program that runs in a cgroup, and its load."""

    job: str
    busy: Callable[[float], int | None]
    """Starts a load for the given seconds; returns its pid, if it is a process of its own."""
    workload: Workload | None = None
    """The program itself, if it counts its own accesses."""
    cycle_s: int = 0
    """Length of its cycle; the judged time is at least that."""


def _redis(guest: Guest) -> Case:
    service = services.redis(guest)
    mix = ("--hot-fraction", "0.01", "--hot-share", "0.9", "--write-share", "0.1")
    load = loads.Requests(service, "redis", keys=100_000, mix=mix)
    load.fill()
    return Case("/redis", lambda seconds: load.start(seconds, 300))


def _memcached(guest: Guest) -> Case:
    service = services.memcached(guest, memory_mib=256, options=["-o", "no_lru_crawler"])
    load = loads.Requests(service, "memcached", keys=90_000)
    load.fill()
    return Case("/memcached", lambda seconds: load.start(seconds, 300))


def _postgres(guest: Guest) -> Case:
    service = services.postgres(guest, shared_buffers_mib=160)
    load = loads.Pgbench(service, scale=8)
    load.fill()
    return Case("/postgres", lambda seconds: load.start(seconds, 60))


def _analytics(guest: Guest) -> Case:
    regions = [
        Region("index", 16, {"zipf": {"exponent": 0.8, "touches_per_s": 2000}}, kind="huge"),
        # A scan of 48 MiB is 12288 accesses in a burst, 205 per second on average.
        Region("table", 48, {"period_ms": 1000 * _SCAN_S}, kind="huge"),
        Region("history", 96, {"never": True}, kind="huge"),
    ]
    workload = Workload(guest, regions, "analytics")
    return Case(workload.job, lambda _: None, workload, _SCAN_S)


_CASES = {"redis": _redis, "memcached": _memcached, "postgres": _postgres, "analytics": _analytics}


def run(lab: Lab) -> dict[str, Any]:
    """Runs one guest for each program, and all targets in turn in it."""
    figures: dict[str, Any] = {}
    for name, start in _CASES.items():
        with lab.guest(numa.two_nodes(768, 384)) as guest:
            if name == "postgres" and not guest.exists("/proc/sysvipc"):
                lab.say("this kernel has no System V shared memory, which PostgreSQL needs: skipped")
                continue
            truth.tick(guest, 20)
            case = start(guest)
            figures[name] = {f"{target:.0%}": _row(lab, guest, case, target) for target in TARGETS}
        for target in TARGETS:
            row, prefix = figures[name][f"{target:.0%}"], f"{name}.{target:.0%}"
            lab.at_most(f"{prefix}.slowdown_ratio", row["slowdown_ratio"], SLOWDOWN_MAX_RATIO * target)
            lab.at_least(f"{prefix}.placed_ratio", row["placed_ratio"], PLACED_MIN_RATIO)
            if row["sampling_estimate_ratio"] is not None:
                lab.at_most(f"{prefix}.sampling_estimate_ratio", row["sampling_estimate_ratio"], SAMPLING_MAX_RATIO)
    return figures


def _row(lab: Lab, guest: Guest, case: Case, target: float) -> dict[str, Any]:
    # Measured before and after: on a busy host the guest's CPUs are delayed at times, which it accounts as CPU time.
    slower = [slow.emulation_ratio(guest)]
    settle_s = SETTLE_PERIODS * slow.period_s(guest)
    judged_s = max(JUDGED_PERIODS * slow.period_s(guest), case.cycle_s, JUDGED_MIN_S)
    load = case.busy(settle_s + judged_s)
    watch = None if case.workload is None else numa.Watch(case.workload)
    agent = slow.start(guest, [case.job], target)
    begins = _uptime(guest)
    # There is no event to wait for: the controller needs time.
    guest.run(["sleep", str(settle_s)], timeout_s=settle_s + 60)
    settled, settled_periods = _uptime(guest), len(slow.rates_per_second(guest, case.job))
    guest.run(["sleep", str(judged_s)], timeout_s=judged_s + 60)
    view, costs = slow.view(agent, case.job), agent.status()["costs"]
    elapsed = _uptime(guest) - begins
    memory = agent.job(case.job)["memory_bytes"]
    agent.stop()
    slower.append(slow.emulation_ratio(guest))
    ratios = [ratio for ratio in slower if ratio is not None]
    if load is not None:
        guest.wait_exit(load, timeout_s=120)
    rates = slow.rates_per_second(guest, case.job)[settled_periods:]
    rate, counted = statistics.mean(rates), "estimated"
    if watch is not None:
        windows = numa.between(watch.stop(), settled, settled + judged_s)
        rate = sum(window.slow_accesses for window in windows) / sum(window.elapsed_seconds for window in windows)
        counted = "counted"
    series = slow.hot_and_cold(node.journal(guest), case.job)
    in_production = slow.period_s(guest) / PERIOD_S
    row = {
        "placed_ratio": view["slow_bytes"] / memory,
        "placed_bytes": view["slow_bytes"],
        "memory_bytes": memory,
        "slow_rate_per_second": rate,
        "slowdown_ratio": rate * slow.LATENCY_US / 1e6,
        "rate_is": counted,
        "series": series,
        "converged_seconds": _converged_seconds(series),
        "periods": len(rates),
        "worst_period_rate_per_second": max(rates),
        "overhead_ratio": costs["cpu_seconds"] / elapsed,
        "sampling_cpu_ratio": costs["rates_cpu_ratio"],
        "sampling_held_ratio": costs["rates_held_ratio"],
        "emulation_ratio": statistics.mean(ratios) if ratios else None,
        "sampling_estimate_ratio": costs["rates_cpu_ratio"] * in_production / statistics.mean(ratios)
        if ratios
        else None,
    }
    lab.say(
        f"{case.job} at {target:.0%}: {row['placed_ratio']:.1%} of {memory / MIB:.0f} MiB placed, slowdown "
        f"{row['slowdown_ratio']:.2%} {counted}, agent {row['overhead_ratio']:.2%} of a CPU, sampling "
        f"{row['sampling_cpu_ratio']:.2%}; {view['explanation']}"
    )
    return row


def _converged_seconds(series: Sequence[dict[str, float]]) -> float | None:
    final = series[-1]["cold_bytes"] if series else 0
    if not final:
        return None
    return next(point["seconds"] for point in series if point["cold_bytes"] >= CONVERGED_RATIO * final)


def _uptime(guest: Guest) -> float:
    return float(guest.read("/proc/uptime").split()[0])
