"""DAMON in a guest by sysfs: kdamonds that migrate memory between nodes, with quota goals and tuned intervals.

Files are those of `Documentation/admin-guide/mm/damon/usage.rst`. The actions `migrate_hot` and `migrate_cold` are
since Linux 6.11, the filter `young` since 6.10, filters that allow since 6.14, `intervals_goal` since 6.15, the goals
`node_mem_used_bp` and `node_mem_free_bp` since 6.16, and `node_memcg_used_bp` and `node_memcg_free_bp` since 6.19.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .guest import Guest

_KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds"
_STAT = "/sys/module/damon_stat/parameters/enabled"
_MAX_U32, _MAX_U64 = 2**32 - 1, 2**64 - 1


@dataclass(frozen=True, slots=True)
class Goal:
    """A value of the machine to which DAMON tunes a scheme's quota."""

    metric: str
    basis_points: int
    """The value to reach, of the node's memory."""
    node: int
    job: str | None = None
    """Cgroup, for the metrics of one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Pages that a scheme takes or leaves alone; of several filters, the first that a page meets decides."""

    kind: str
    allow: bool
    matching: bool = True
    """Whether it concerns pages of this kind, or all others."""
    job: str | None = None
    """Cgroup, for the kind `memcg`."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Memory of an access pattern, and the node to which it migrates."""

    action: str
    node: int
    accesses: tuple[int, int]
    """Least and most samples of an aggregation interval that found an access."""
    age: int = 0
    """Aggregation intervals for which the pattern has to last."""
    files: Mapping[str, int | str] | None = None
    """Other files of the scheme's directory."""
    goal: Goal | None = None
    filters: Sequence[Filter] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What one kdamond monitors, and how."""

    schemes: Sequence[Scheme]
    intervals: Mapping[str, int]
    """Files of `monitoring_attrs/intervals`, such as `sample_us`."""
    regions: tuple[int, int]
    """Least and most regions."""
    addresses: tuple[int, int] | None = None
    """Physical addresses; without them, the virtual ones of `pid`."""
    pid: int | None = None


UNLIMITED = _MAX_U32
"""No upper bound on the accesses of a pattern."""


def release(guest: Guest) -> None:
    """Stops the kernel's own use of DAMON, which is on by default in Debian's 7.2 and excludes any other."""
    if guest.exists(_STAT):
        guest.write(_STAT, "N")


def start(guest: Guest, contexts: Sequence[Context]) -> None:
    """Starts one kdamond for each context; sysfs permits one context for each."""
    guest.write(f"{_KDAMONDS}/nr_kdamonds", str(len(contexts)))
    for number, context in enumerate(contexts):
        _configure(guest, f"{_KDAMONDS}/{number}/contexts", context)
    for number in range(len(contexts)):
        guest.write(f"{_KDAMONDS}/{number}/state", "on")


def missing(guest: Guest, metric: str) -> list[str]:
    """Returns which of tuned intervals and goals of `metric` the kernel lacks, by their names in sysfs."""
    kdamond = f"{_KDAMONDS}/0/contexts"
    release(guest)
    guest.write(f"{_KDAMONDS}/nr_kdamonds", "1")
    guest.write(f"{kdamond}/nr_contexts", "1")
    guest.write(f"{kdamond}/0/schemes/nr_schemes", "1")
    goals = f"{kdamond}/0/schemes/0/quotas/goals"
    guest.write(f"{goals}/nr_goals", "1")
    lacks = []
    if not guest.exists(f"{kdamond}/0/monitoring_attrs/intervals/intervals_goal"):
        lacks.append("intervals_goal")
    if guest.run(["sh", "-c", f"echo {metric} > {goals}/0/target_metric"], check=False).status != 0:
        lacks.append(metric)
    guest.write(f"{_KDAMONDS}/nr_kdamonds", "0")
    return lacks


def tuned(guest: Guest, number: int) -> dict[str, int]:
    """Returns the intervals of a kdamond, and the quota and migrated bytes of its first scheme, as of now."""
    kdamond = f"{_KDAMONDS}/{number}"
    for command in ("update_tuned_intervals", "update_schemes_effective_quotas", "update_schemes_stats"):
        guest.write(f"{kdamond}/state", command)
    context = f"{kdamond}/contexts/0"
    files = {
        "sample_us": "monitoring_attrs/intervals/sample_us",
        "aggr_us": "monitoring_attrs/intervals/aggr_us",
        "effective_bytes": "schemes/0/quotas/effective_bytes",
        "sz_applied": "schemes/0/stats/sz_applied",
    }
    return {name: guest.number(f"{context}/{path}") for name, path in files.items()}


def _configure(guest: Guest, contexts: str, context: Context) -> None:
    guest.write(f"{contexts}/nr_contexts", "1")
    directory = f"{contexts}/0"
    guest.write(f"{directory}/operations", "vaddr" if context.addresses is None else "paddr")
    for name, value in context.intervals.items():
        guest.write(f"{directory}/monitoring_attrs/intervals/{name}", str(value))
    least, most = context.regions
    # DAMON refuses a minimum above the maximum.
    guest.write(f"{directory}/monitoring_attrs/nr_regions/max", str(most))
    guest.write(f"{directory}/monitoring_attrs/nr_regions/min", str(least))
    guest.write(f"{directory}/targets/nr_targets", "1")
    if context.addresses is None:
        guest.write(f"{directory}/targets/0/pid_target", str(context.pid))
    else:
        regions = f"{directory}/targets/0/regions"
        guest.write(f"{regions}/nr_regions", "1")
        guest.write(f"{regions}/0/start", str(context.addresses[0]))
        guest.write(f"{regions}/0/end", str(context.addresses[1]))
    guest.write(f"{directory}/schemes/nr_schemes", str(len(context.schemes)))
    for number, scheme in enumerate(context.schemes):
        _add(guest, f"{directory}/schemes/{number}", scheme)


def _add(guest: Guest, directory: str, scheme: Scheme) -> None:
    least, most = scheme.accesses
    files: dict[str, int | str] = {
        "action": scheme.action,
        "target_nid": scheme.node,
        "access_pattern/sz/max": _MAX_U64,
        "access_pattern/nr_accesses/min": least,
        "access_pattern/nr_accesses/max": most,
        "access_pattern/age/min": scheme.age,
        "access_pattern/age/max": _MAX_U32,
        **(scheme.files or {}),
    }
    if scheme.goal is not None:
        goal = scheme.goal
        files["quotas/goals/nr_goals"] = 1
        files["quotas/goals/0/target_metric"] = goal.metric
        files["quotas/goals/0/target_value"] = goal.basis_points
        files["quotas/goals/0/nid"] = goal.node
        if goal.job is not None:
            files["quotas/goals/0/path"] = goal.job
    if scheme.filters:
        files["ops_filters/nr_filters"] = len(scheme.filters)
    for number, one in enumerate(scheme.filters):
        files[f"ops_filters/{number}/type"] = one.kind
        files[f"ops_filters/{number}/matching"] = "Y" if one.matching else "N"
        files[f"ops_filters/{number}/allow"] = "Y" if one.allow else "N"
        if one.job is not None:
            files[f"ops_filters/{number}/memcg_path"] = one.job
    for name, value in files.items():
        guest.write(f"{directory}/{name}", str(value))
