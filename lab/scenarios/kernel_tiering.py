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
- `mem_tier`: DAMON as in the kernel's `samples/damon/mtier.c` and the damo project's `scripts/mem_tier.sh`. A kdamond
  for each node, whose intervals are tuned to 4 % of observed accesses. Memory without access is demoted and memory with
  one is promoted, after a check of each page's accessed bit (filter `young`). Quotas are tuned to a goal for the free
  and the used memory of the local node: the values with as much placed as the agent placed, which overlap by 0.2 % of
  the node, as in the sample. Linux 6.16 is the first with such goals.
- `mem_tier_applied`: the same, with schemes applied at the end of each aggregation interval instead of once a second.
  While the observed accesses are above 4 %, intervals are tuned again and again, three shortest aggregation intervals
  or 0.3 s apart, and each time `damon_set_attrs()` in mm/damon/core.c starts the wait for the next application again.
- `mem_tier_job`: `mem_tier_applied` for the job's memory only, by a filter and by goals for the cgroup's memory on the
  node, and with regions of about a block's size at most. Linux 6.19 is the first with such goals.

`slow_rate_per_second` is counted by the job. The kernel's mechanisms have no parameter for the slowdown, so the bound
applies to the agent only. A mechanism that a kernel lacks has `skipped` with the reason in place of its figures.
"""

from collections.abc import Callable
from typing import Any

from thermolab import damon, numa, slow, truth
from thermolab.damon import Context, Filter, Goal, Scheme
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.numa import Watch
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12", "7.2")

LOCAL_MIB, SLOW_MIB = 640, 384
JOB_MIB = 256
SLOWDOWN = 0.03
SETTLE_PERIODS = 12
JUDGED_SECONDS = 30
RATE_MAX_RATIO = 1.1

_RECLAIM_STEP = 8 * MIB

Row = dict[str, Any]
Tier = Callable[[Guest, Workload, Watch], None]


def run(lab: Lab) -> dict[str, Any]:
    """Runs the agent first, because its placement determines the request to the kernel."""
    target = slow.budget_per_second(SLOWDOWN)
    rows = {"slowdown": _guest(lab, "slowdown", _slowdown)}
    placed = round(rows["slowdown"]["placed_ratio"] * JOB_MIB * MIB)
    rows["numa_balancing"] = _guest(
        lab, "numa_balancing", lambda guest, job, watch: _balancing(guest, job, watch, placed)
    )
    rows["damon"] = _guest(lab, "damon", _damon)
    for name, why in _unsupported(lab).items():
        if why is not None:
            lab.say(f"{name}: skipped, {why}")
            rows[name] = {"skipped": why}
            continue
        rows[name] = _guest(lab, name, _mem_tier(lab, name, placed))
    agent = rows["slowdown"]
    lab.at_most("slowdown.slow_rate_per_second", agent["slow_rate_per_second"], RATE_MAX_RATIO * target)
    lab.at_least("slowdown.placed_ratio", agent["placed_ratio"], 0.2)
    return {"target_rate_per_second": target, **rows}


def _guest(lab: Lab, name: str, tier: Tier) -> Row:
    lab.say(f"{name} ...")
    # The guest has no swap: reclaim can only demote.
    with lab.guest(numa.two_nodes(LOCAL_MIB, SLOW_MIB)) as guest:
        damon.release(guest)
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
    row = {
        "placed_ratio": placed / (JOB_MIB * MIB),
        "slow_rate_per_second": rate,
        "slow_rate_per_slow_mib": rate / (placed / MIB) if placed else 0.0,
        "huge_ratio": huge / (JOB_MIB * MIB),
    }
    lab.say(f"{name}: {row['placed_ratio']:.1%} placed, {row['slow_rate_per_second']:.0f} accesses per second there")
    return row


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
    cold = Scheme("migrate_cold", numa.SLOW, accesses=(0, 1), age=3)
    hot = Scheme("migrate_hot", numa.LOCAL, accesses=(5, damon.UNLIMITED))
    context = Context(
        schemes=(cold, hot),
        intervals={"sample_us": 100_000, "aggr_us": 1_000_000, "update_us": 10_000_000},
        # Without a minimum, DAMON merges regions until they are larger than blocks of different rates.
        regions=(256, 1024),
        # Both nodes. The machine has no hole below 2 GiB, and the firmware reserves a little at either end.
        addresses=None if virtual else (MIB, (LOCAL_MIB + SLOW_MIB - 1) * MIB),
        pid=workload.pid,
    )
    damon.start(guest, [context])
    slow.pass_time(workload, SETTLE_PERIODS * slow.period_s(guest))


def _unsupported(lab: Lab) -> dict[str, str | None]:
    """Returns why the kernel cannot run each form of `mem_tier`; `None` if it can."""
    metrics = dict.fromkeys(("mem_tier", "mem_tier_applied"), "node_mem_used_bp")
    metrics["mem_tier_job"] = "node_memcg_used_bp"
    with lab.guest() as guest:
        lacks = {name: damon.missing(guest, metric) for name, metric in metrics.items()}
        return {
            name: f"DAMON of Linux {guest.release} has no {' and no '.join(names)}" if names else None
            for name, names in lacks.items()
        }


_OVERLAP_BP = 20
"""Promotion aims at so much more used memory than demotion leaves, so that pages are exchanged even at the goals."""


def _mem_tier(lab: Lab, form: str, placed: int) -> Tier:
    job_only = form == "mem_tier_job"
    apply_us = 1_000_000 if form == "mem_tier" else 0

    def tier(guest: Guest, workload: Workload, watch: Watch) -> None:
        del watch
        total, free = numa.memory(guest, numa.LOCAL)
        # With the job's goals all other memory of the node counts as free.
        free = (total - JOB_MIB * MIB if job_only else free) + placed
        job = workload.job if job_only else None
        metric = "node_memcg" if job_only else "node_mem"
        free_bp = free * 10_000 // total
        contexts = [
            _mem_tier_context(Goal(f"{metric}_free_bp", free_bp, numa.LOCAL, job), apply_us, promote=False),
            _mem_tier_context(
                Goal(f"{metric}_used_bp", 10_000 - free_bp + _OVERLAP_BP, numa.LOCAL, job), apply_us, promote=True
            ),
        ]
        damon.start(guest, contexts)
        slow.pass_time(workload, SETTLE_PERIODS * slow.period_s(guest))
        for number, what in enumerate(("demotion", "promotion")):
            lab.say(f"{what}: {damon.tuned(guest, number)}")

    return tier


def _mem_tier_context(goal: Goal, apply_us: int, *, promote: bool) -> Context:
    """Returns what one kdamond does; `apply_us` of 0 is the aggregation interval. Other numbers are the sample's."""
    young = Filter("young", allow=promote)
    of_others = [] if goal.job is None else [Filter("memcg", allow=False, matching=False, job=goal.job)]
    scheme = Scheme(
        "migrate_hot" if promote else "migrate_cold",
        numa.LOCAL if promote else numa.SLOW,
        accesses=(1, damon.UNLIMITED) if promote else (0, 0),
        files={
            "apply_interval_us": apply_us,
            "quotas/bytes": 200 * MIB,
            "quotas/reset_interval_ms": 1000,
            "quotas/weights/sz_permil": 0,
            "quotas/weights/nr_accesses_permil": 100,
            "quotas/weights/age_permil": 100,
        },
        goal=goal,
        filters=[*of_others, young],
    )
    intervals = {"sample_us": 5_000, "aggr_us": 100_000, "update_us": 60_000_000}
    tuning = {"access_bp": 400, "aggrs": 3, "min_sample_us": 5_000, "max_sample_us": 10_000_000}
    return Context(
        schemes=[scheme],
        intervals={**intervals, **{f"intervals_goal/{name}": value for name, value in tuning.items()}},
        regions=(10, 1000) if goal.job is None else (256, 1024),
        addresses=(LOCAL_MIB * MIB, (LOCAL_MIB + SLOW_MIB - 1) * MIB) if promote else (MIB, LOCAL_MIB * MIB),
    )
