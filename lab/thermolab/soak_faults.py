"""Faults for a soak: each happens to a guest in which agents and jobs run, and ends before the next one begins."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import node, swap
from .guest import Guest

SMALL = "/run/thermocline-state"
"""A file system of some MiB that holds the agent's state, to be filled."""
JOBS = ("/age", "/pressure", "/auto")
STRANGER = "/stranger"
CLASSES = ("conservative", "standard", "aggressive", "observe")
POLICIES = {"/age": "cold_age", "/pressure": "pressure", "/auto": "auto"}
_DEBUGFS = "/sys/kernel/debug"
_CHURN = "for n in $(seq 100); do mkdir /sys/fs/cgroup/churn-$n; done; sleep 0.3; rmdir /sys/fs/cgroup/churn-*"


@dataclass(frozen=True, slots=True)
class Happening:
    """The guest, its agent, and the random moments of one fault."""

    guest: Guest
    agent: int
    """The agent's pid."""
    moments: random.Random
    configure: Callable[[Sequence[node.Job]], None]

    def pause(self, most_s: float) -> None:
        """Lets a random time pass."""
        self.guest.run(["sleep", f"{self.moments.uniform(0.05, most_s):.2f}"])

    def job(self) -> str:
        """A random job."""
        return self.moments.choice(JOBS)


def jobs(classes: dict[str, str] | None = None) -> list[node.Job]:
    """The rules of the configuration; cgroups of `churn` are jobs as well."""
    of = classes or {}
    named = [node.Job(path, of.get(path, "standard"), policy=policy) for path, policy in POLICIES.items()]
    return [*named, node.Job("/churn-*", "aggressive", policy="cold_age")]


def _kill(at: Happening) -> None:
    at.guest.kill(at.agent, 9)


def _stop(at: Happening) -> None:
    at.guest.kill(at.agent, 15)


def _stand_still(at: Happening) -> None:
    at.guest.kill(at.agent, 19)
    at.pause(3)
    at.guest.kill(at.agent, 18)


def _out_of_memory(at: Happening) -> None:
    """The agent's own cgroup has no room: the kernel kills it."""
    cgroup = at.guest.cgroup("agent")
    at.guest.write(f"{cgroup}/cgroup.procs", str(at.agent))
    at.guest.write(f"{cgroup}/memory.max", "65536")
    at.pause(3)
    at.guest.write(f"{cgroup}/memory.max", "max")


def _without_swap(at: Happening) -> None:
    at.guest.run(["busybox", "swapoff", swap.DEVICE], timeout_s=300, check=False)
    at.pause(2)
    at.guest.run(["busybox", "swapon", swap.DEVICE], check=False)


def _without_zswap(at: Happening) -> None:
    """An operator switches zswap off, and on again as it was found."""
    enabled = "/sys/module/zswap/parameters/enabled"
    found = at.guest.read(enabled).strip()
    at.guest.write(enabled, "N")
    at.pause(2)
    at.guest.write(enabled, found)


def _frozen(at: Happening) -> None:
    file = f"{at.guest.cgroup(at.job()[1:])}/cgroup.freeze"
    at.guest.write(file, "1")
    at.pause(3)
    at.guest.write(file, "0")


def _churn(at: Happening) -> None:
    at.guest.run(["sh", "-c", _CHURN], timeout_s=120, check=False)


def _without_debugfs(at: Happening) -> None:
    at.guest.run(["busybox", "umount", "-l", _DEBUGFS], check=False)
    at.pause(2)
    at.guest.run(["busybox", "mount", "-t", "debugfs", "none", _DEBUGFS], check=False)


def _other_time(at: Happening) -> None:
    """The wall clock steps by a day, and back."""
    for step in (86_400, -86_400):
        now = int(at.guest.run(["busybox", "date", "+%s"]).stdout)
        at.guest.run(["busybox", "date", "-s", f"@{now + step}"])
        at.pause(1)


def _state_full(at: Happening) -> None:
    at.guest.run(["sh", "-c", f"head -c 8M /dev/zero >{SMALL}/filler"], check=False)
    at.pause(3)
    at.guest.run(["rm", "-f", f"{SMALL}/filler"])


def _limited(at: Happening) -> None:
    """A job's limit falls below what it has, and is lifted: the kernel swaps, or the limit is not reached."""
    cgroup = at.guest.cgroup(at.job()[1:])
    limit = max(at.guest.number(f"{cgroup}/memory.current") * 9 // 10, 16 << 20)
    at.guest.write(f"{cgroup}/memory.max", str(limit))
    at.pause(2)
    at.guest.write(f"{cgroup}/memory.max", "max")


def _other_classes(at: Happening) -> None:
    at.configure(jobs({path: at.moments.choice(CLASSES) for path in JOBS}))
    at.guest.kill(at.agent, 1)
    at.pause(3)
    at.configure(jobs())
    at.guest.kill(at.agent, 1)


def _kdamonds_gone(at: Happening) -> None:
    """Another program stops all kdamonds."""
    script = "for f in /sys/kernel/mm/damon/admin/kdamonds/*/state; do echo off >$f; done"
    at.guest.run(["sh", "-c", script], check=False)


def _without_caches(at: Happening) -> None:
    at.guest.write("/proc/sys/vm/drop_caches", "3")


ENDS_AGENT = (_kill, _stop, _out_of_memory)
"""After these the agent is started again."""

ALL: tuple[Callable[[Happening], None], ...] = (
    _kill,
    _kill,
    _kill,
    _stop,
    _stand_still,
    _out_of_memory,
    _without_swap,
    _without_zswap,
    _frozen,
    _churn,
    _without_debugfs,
    _other_time,
    _state_full,
    _limited,
    _other_classes,
    _kdamonds_gone,
    _without_caches,
)


def name(fault: Callable[[Happening], None]) -> str:
    """The name of a fault in results."""
    return fault.__name__.lstrip("_")
