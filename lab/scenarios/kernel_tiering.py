"""The kernel's tiering and DAMON's beside policy `slowdown`: how much each places slow, and its access rate there.

The same job, 256 MiB in huge pages that are accessed at known rates from 0.1 to 1000 per second, runs in one guest for
each mechanism:

- `slowdown`: the agent, with a tolerable slowdown of 3 %.
- `numa_balancing`: the kernel's demotion of pages that reclaim considers old, and promotion by hint faults
  (`kernel.numa_balancing=2`). The kernel demotes only when memory is short, so `memory.reclaim` requests as much as the
  agent placed.
- `damon`: migrate_cold for regions accessed in at most one of ten samples of a second, for three seconds, and
  migrate_hot for regions accessed in half of the samples. Linux 6.12 supports these for physical addresses only; for
  virtual addresses it accepts the action without effect.

`slow_rate_per_second` is counted by the job. The kernel's mechanisms have no parameter for the slowdown, so the bound
applies to the agent only.
"""

from collections.abc import Callable
from typing import Any

from thermolab import numa, slow, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.numa import Watch
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12", "7.2")

JOB_MIB = 256
SLOWDOWN = 0.03
SETTLE_PERIODS = 12
JUDGED_SECONDS = 30
RATE_MAX_RATIO = 1.1

_DAMON = "/sys/kernel/mm/damon/admin/kdamonds"
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"
_ALL = str(2**64 - 1)
_RECLAIM_STEP = 8 * MIB

Row = dict[str, Any]


def run(lab: Lab) -> dict[str, Any]:
    """Runs the agent first, because its placement determines the request to the kernel."""
    target = slow.budget_per_second(SLOWDOWN)
    rows = {"slowdown": _guest(lab, "slowdown", _slowdown)}
    placed = round(rows["slowdown"]["placed_ratio"] * JOB_MIB * MIB)
    rows["numa_balancing"] = _guest(
        lab, "numa_balancing", lambda guest, job, watch: _balancing(guest, job, watch, placed)
    )
    rows["damon"] = _guest(lab, "damon", _damon)
    for name, row in rows.items():
        lab.say(
            f"{name}: {row['placed_ratio']:.1%} placed, {row['slow_rate_per_second']:.0f} accesses per second there"
        )
    agent = rows["slowdown"]
    lab.at_most("slowdown.slow_rate_per_second", agent["slow_rate_per_second"], RATE_MAX_RATIO * target)
    lab.at_least("slowdown.placed_ratio", agent["placed_ratio"], 0.2)
    return {"target_rate_per_second": target, **rows}


def _guest(lab: Lab, name: str, tier: Callable[[Guest, Workload, Watch], None]) -> Row:
    lab.say(f"{name} ...")
    # The guest has no swap: reclaim can only demote.
    with lab.guest(numa.two_nodes(640, 384)) as guest:
        if guest.exists(_DAMON_STAT):
            guest.write(_DAMON_STAT, "N")
        guest.write("/proc/sys/kernel/numa_balancing", "0")
        truth.tick(guest, 20)
        workload = Workload(guest, [Region("blocks", JOB_MIB, poisson(0.1, 1000), kind="huge")])
        watch = Watch(workload)
        tier(guest, workload, watch)
        settled = workload.uptime()
        slow.pass_time(workload, JUDGED_SECONDS)
        windows = numa.between(watch.windows(), settled, workload.uptime())
        huge = slow.huge_bytes(workload)
    seconds = sum(window.elapsed_seconds for window in windows)
    placed = sum(window.slow_bytes * window.elapsed_seconds for window in windows) / seconds
    rate = sum(window.slow_accesses for window in windows) / seconds
    return {
        "placed_ratio": placed / (JOB_MIB * MIB),
        "slow_rate_per_second": rate,
        "slow_rate_per_slow_mib": rate / (placed / MIB) if placed else 0.0,
        "huge_ratio": huge / (JOB_MIB * MIB),
    }


def _slowdown(guest: Guest, workload: Workload, watch: Watch) -> None:
    del watch
    slow.start(guest, [workload.job], SLOWDOWN)
    slow.pass_time(workload, SETTLE_PERIODS * slow.period_s(guest))


def _balancing(guest: Guest, workload: Workload, watch: Watch, placed: int) -> None:
    """Demotes as much as the agent placed, and leaves corrections to promotion."""
    guest.write("/proc/sys/kernel/numa_balancing", "2")
    guest.write("/sys/kernel/mm/numa/demotion_enabled", "1")
    begins = workload.uptime()
    while workload.uptime() < begins + SETTLE_PERIODS * slow.period_s(guest):
        windows = watch.windows()
        if windows and windows[-1].slow_bytes < placed:
            # Demoted pages stay charged to the job, so the kernel may report that it reclaimed nothing (EAGAIN).
            request = f"echo {_RECLAIM_STEP} > {workload.cgroup}/memory.reclaim"
            guest.run(["sh", "-c", request], check=False, timeout_s=120)
        slow.pass_time(workload, 1)


def _damon(guest: Guest, workload: Workload, watch: Watch) -> None:
    del watch
    virtual = guest.release.split(".")[0] != "6"
    guest.write(f"{_DAMON}/nr_kdamonds", "1")
    context = f"{_DAMON}/0/contexts/0"
    guest.write(f"{_DAMON}/0/contexts/nr_contexts", "1")
    guest.write(f"{context}/operations", "vaddr" if virtual else "paddr")
    intervals = {"sample_us": 100_000, "aggr_us": 1_000_000, "update_us": 10_000_000}
    for name, micros in intervals.items():
        guest.write(f"{context}/monitoring_attrs/intervals/{name}", str(micros))
    # Without a minimum, DAMON merges regions until they are larger than blocks of different rates.
    for name, regions in (("max", 1024), ("min", 256)):
        guest.write(f"{context}/monitoring_attrs/nr_regions/{name}", str(regions))
    guest.write(f"{context}/targets/nr_targets", "1")
    if virtual:
        guest.write(f"{context}/targets/0/pid_target", str(workload.pid))
    else:
        # Both nodes. The machine has no hole below 2 GiB, and the firmware reserves a little at either end.
        regions_of = f"{context}/targets/0/regions"
        guest.write(f"{regions_of}/nr_regions", "1")
        guest.write(f"{regions_of}/0/start", str(MIB))
        guest.write(f"{regions_of}/0/end", str(guest.machine.memory_bytes - MIB))
    guest.write(f"{context}/schemes/nr_schemes", "2")
    schemes = (("migrate_cold", numa.SLOW, "0", "1", "3"), ("migrate_hot", numa.LOCAL, "5", "4294967295", "0"))
    for number, (action, node, least, most, age) in enumerate(schemes):
        scheme = f"{context}/schemes/{number}"
        guest.write(f"{scheme}/action", action)
        guest.write(f"{scheme}/target_nid", str(node))
        pattern = {
            "sz/max": _ALL,
            "nr_accesses/min": least,
            "nr_accesses/max": most,
            "age/min": age,
            "age/max": "4294967295",
        }
        for name, value in pattern.items():
            guest.write(f"{scheme}/access_pattern/{name}", value)
    guest.write(f"{_DAMON}/0/state", "on")
    slow.pass_time(workload, SETTLE_PERIODS * slow.period_s(guest))
