"""What competes in the arena: each with its configuration, and with three intensities, so that curves are compared.

Time is compressed by 60 in guests (a scan of 2 s stands for 120 s), so ages and intervals that a contender documents in
minutes are seconds here; each states what was changed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thermolab import node
from thermolab.guest import Guest
from thermolab.qemu import MIB

PACKAGES = ("damo", "oomd")
"""Debian packages of contenders."""

CGROUP = "contender"
"""The cgroup of a contender's own processes."""

Start = Callable[[Guest, Sequence[str], Mapping[str, float]], None]
"""Starts a contender on jobs, given the bytes that each occupies without any contender."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of far memory at one intensity."""

    name: str
    intensity: str
    start: Start
    configuration: str
    """What was configured and why, for the page."""
    ours: bool = False

    @property
    def key(self) -> str:
        """Its name and intensity, as a file name."""
        return f"{self.name}-{self.intensity}".replace(" ", "_").replace("%", "")


SCRIPT = """
age=$1; shift
while :; do
  for job in "$@"; do
    awk -v job="$job" -v age=$((age * 1000)) '
      $1 == "memcg" { mine = $3 == job; if (mine) id = $2; next }
      mine && $1 == "node" { node = $2; next }
      mine && NF == 4 { if ($2 >= age) old = $1; max = $1 }
      END { if (max == "") exit
            if (old > max - 2) old = max - 2
            if (old != "" && old >= 0) print "-", id, node, old, 100
            print "+", id, node, max, 1, 1 }' /sys/kernel/debug/lru_gen |
    while read -r command; do echo "$command" >/sys/kernel/debug/lru_gen 2>/dev/null; done
  done
  usleep $((age * 500000))
done
"""
"""The simplest peer: opens a generation every A/2 and evicts those that are A old (A in seconds)."""


def evict_by_script(guest: Guest, age: int, jobs: Sequence[str]) -> None:
    """Starts the script on cgroups named by their paths."""
    guest.write("/root/evict", SCRIPT)
    argv = ["busybox", "sh", "/root/evict", str(age), *jobs]
    guest.spawn(argv, cgroup=guest.cgroup(CGROUP))


def _script(age: int) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        evict_by_script(guest, age, [f"/{job}" for job in jobs])

    why = f"a generation every {age / 2:g} s; generations that are {age} s old are evicted, swappiness 100"
    return Contender("MGLRU script", f"{age} s", start, why)


def _senpai(percent: float) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        arguments = {
            "cgroup": ",".join(jobs),
            "limit_min_bytes": str(MIB),
            "immediate_backoff": "true",
            "pressure_pct": str(percent),
            "io_pressure_pct": str(percent),
            "interval": "1",
        }
        ruleset = {
            "name": "reclaim",
            "detectors": [["always", {"name": "continue", "args": {}}]],
            "actions": [{"name": "senpai", "args": arguments}],
        }
        guest.write("/root/oomd.json", json.dumps({"rulesets": [ruleset]}))
        argv = ["oomd", "--interval", "1", "--config", "/root/oomd.json"]
        guest.spawn(argv, cgroup=guest.cgroup(CGROUP), stdout="/run/oomd.log", stderr="/run/oomd.log")

    why = (
        f"Debian's oomd, plugin senpai: immediate_backoff, pressure_pct and io_pressure_pct {percent:g}; an interval "
        "of 1 s in place of 6 (its shortest; time is compressed), and limit_min_bytes 1 MiB in place of 100, which "
        "exceeds what these programs occupy"
    )
    return Contender("oomd senpai", f"{percent:g} %", start, why)


def _high(percent: int) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], occupied: Mapping[str, float]) -> None:
        for job in jobs:
            limit = int(occupied[job] * percent / 100)
            # The write reclaims down to the limit before it returns.
            text = f"echo {limit} >/sys/fs/cgroup/{job}/memory.high"
            guest.spawn(["busybox", "sh", "-c", text], cgroup=guest.cgroup(CGROUP))

    why = f"memory.high at {percent} % of what each program occupies without any contender: a hand that knows that"
    return Contender("memory.high", f"{percent} %", start, why)


def _damon_reclaim(min_age_s: int) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        del jobs
        parameters = {
            "min_age": min_age_s * 1_000_000,
            "quota_ms": 200,
            "quota_sz": 128 * MIB,
            "quota_reset_interval_ms": 1000,
            "wmarks_interval": 1_000_000,
            "wmarks_high": 1000,
            "wmarks_mid": 999,
            "wmarks_low": 0,
            "sample_interval": 20_000,
            "aggr_interval": 400_000,
        }
        for name, value in parameters.items():
            guest.write(f"/sys/module/damon_reclaim/parameters/{name}", str(value))
        guest.write("/sys/module/damon_reclaim/parameters/enabled", "Y")

    why = (
        f"DAMON_RECLAIM with min_age {min_age_s} s (120 s by default, time is compressed); watermarks opened, since it "
        "otherwise waits for a shortage; quota_ms 200 a second in place of 10, since emulation multiplies its costs; "
        "samples every 20 ms, aggregates of 400 ms. It takes pages of the whole guest, of the harness too"
    )
    return Contender("DAMON_RECLAIM", f"{min_age_s} s", start, why)


def _damo(percent: float) -> Contender:
    command = [
        *("damo", "start", "paddr", "--monitoring_intervals", "20ms", "400ms", "1s"),
        *("--damos_action", "pageout", "--damos_access_rate", "0%", "0%", "--damos_age", "2s", "max"),
        *("--damos_quota_interval", "1s", "--damos_quota_time", "200ms", "--damos_quota_space", "128MB"),
        *("--damos_quota_goal", "some_mem_psi_us", f"{percent * 10:g}ms"),
    ]

    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        del jobs
        guest.run(command)

    why = (
        f"Debian's damo, `{' '.join(command)}`: pages out what was not accessed for 2 s (120 s compressed), as much as "
        f"the quota's goal permits, {percent:g} % of the guest's time stalled by memory; samples and quota_time as for "
        "DAMON_RECLAIM, and the whole guest likewise. The kernel's own filter spares young pages"
    )
    return Contender("damo", f"{percent:g} %", start, why)


_OURS: node.Settings = {
    "zswap.manage": False,
    # Half an hour by default, compressed as all times are.
    "writeback.after_min": "30s",
}


def _ours(policy: str, group: str) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        settings: node.Settings = {**_OURS, "agent.policy": policy}
        node.configure(guest, [node.Job(f"/{job}", group=group) for job in jobs], settings)
        node.start(guest, cgroup=guest.cgroup(CGROUP))

    why = f"policy {policy}, class {group}; time compressed by 60 (`lab/thermolab/node.py`), otherwise defaults"
    return Contender(f"Thermocline {policy}", group, start, why, ours=True)


def _by_stalls(percent: int, writeback: bool = True) -> Contender:
    def start(guest: Guest, jobs: Sequence[str], _: Mapping[str, float]) -> None:
        target = f"{percent}%"
        settings: node.Settings = {
            **_OURS,
            "agent.policy": "auto",
            "pressure.stall_target": target,
            "pressure.io_stall_target": target,
            "writeback.enabled": writeback,
        }
        node.configure(guest, [node.Job(f"/{job}") for job in jobs], settings)
        node.start(guest, cgroup=guest.cgroup(CGROUP))

    why = (
        f"policy auto, class standard with stall targets of {percent} % in place of 0.1, the most that is lost; time "
        "compressed by 60, otherwise defaults"
    )
    name = "Thermocline auto"
    if not writeback:
        why += "; `writeback.enabled` is false: what goes to zswap stays there"
        name += " without writeback"
    return Contender(name, f"{percent} %", start, why, ours=True)


def _nothing(guest: Guest, jobs: Sequence[str], occupied: Mapping[str, float]) -> None:
    del guest, jobs, occupied


NOTHING = Contender("nothing", "-", _nothing, "stock zswap, which acts when memory is short: here it never is")

POLICIES = ("cold_age", "auto", "pressure")
CLASSES = ("conservative", "standard", "aggressive")

CONTENDERS: Sequence[Contender] = (
    *(_script(age) for age in (30, 15, 6)),
    *(_senpai(percent) for percent in (0.5, 1, 5)),
    *(_high(percent) for percent in (90, 75, 60)),
    *(_damon_reclaim(age) for age in (30, 15, 6)),
    *(_damo(percent) for percent in (0.5, 1, 5)),
    *(_ours(policy, group) for policy in POLICIES for group in CLASSES),
    *(_by_stalls(percent, writeback) for writeback in (True, False) for percent in (1, 2, 4)),
)
