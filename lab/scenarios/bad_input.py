"""On missing kernel features and malformed files the agent reports the error and its remedy, and never panics.

No root, no cgroup v2, no zswap, no swap, a full zswap, unknown configuration keys, a DAMON in use by others, jobs that
vanish while the agent acts, a job at its memory limit, malformed kernel files, damaged state: in each case the agent
exits with a clear message and a status other than 0, or continues and records the reason for holding in the journal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thermolab import node, programs
from thermolab.guest import Completed, Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

_DAMON = "/sys/kernel/mm/damon/admin/kdamonds"
_JOB = "/job"
_GARBAGE = "head -c 4096 /dev/urandom"
_RUN = ("thermocline", "agent", "--for", "12s")
"""Longer than the history that a first threshold needs: eight scans of 500 ms."""
_SHORT_RUN = ("thermocline", "agent", "--for", "2s")

_SETTINGS: node.Settings = {
    "agent.scan_period": "500ms",
    "agent.control_period": "500ms",
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "1s",
}


def run(lab: Lab) -> dict[str, Any]:
    """Runs one case after the other in one guest; each case restores what it changed."""
    with lab.guest() as guest:
        programs.workload(guest, _JOB, [programs.idle("idle", 48 * MIB), programs.hot("hot", 4 * MIB)])
        cases = Cases(guest)
        for name, case in _CASES.items():
            cases.settings = dict(_SETTINGS)
            complaints = case(cases)
            lab.say(f"{name}: {'; '.join(complaints) or 'passed'}")
            lab.holds(name, not complaints, "; ".join(complaints))
            cases.well[name] = not complaints
    panics = sum("panicked" in output for output in cases.outputs)
    lab.at_most("panics", panics, 0)
    lab.at_least("cases", len(cases.well), len(_CASES))
    return {"cases": len(cases.well), "panics": panics, **cases.well}


@dataclass(slots=True)
class Cases:
    """State shared by the cases: the guest, and all output of the agent."""

    guest: Guest
    settings: dict[str, str | int | bool] = field(default_factory=dict)
    well: dict[str, bool] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def run(self, *argv: str) -> Completed:
        """Runs a command that exits by itself, with a configuration of one job."""
        node.configure(self.guest, [node.Job(_JOB)], self.settings)
        done = self.guest.run(argv, check=False, timeout_s=90)
        self.outputs.append(done.stdout + done.stderr)
        return done

    def sh(self, script: str) -> Completed:
        """Runs a shell script."""
        return self.run("sh", "-c", script)

    def fails(self, done: Completed, *parts: str, status: int = 1) -> list[str]:
        """Returns complaints about a command that should have exited with `status` and printed all of `parts`."""
        output = (done.stdout + done.stderr).strip()
        wrong = [] if done.status == status else [f"exited with status {done.status}, not {status}"]
        return wrong + [f"does not mention {part!r}: {output[-400:]}" for part in parts if part not in output]

    def holds(self, veto: str, *parts: str) -> list[str]:
        """Returns complaints about an agent that should hold for `veto`, print all of `parts` and exit with 0."""
        self.guest.run(["rm", "-rf", node.STATE])
        done = self.run(*_RUN)
        wrong = self.fails(done, *parts, status=0)
        decisions = [period["step"]["decision"] for period in node.periods(node.journal(self.guest), _JOB)]
        if {"action": "hold", "reason": {"vetoed": veto}} not in decisions:
            wrong.append(f"no decision holds for {veto}: {decisions[-1:]}")
        return wrong


def _no_root(cases: Cases) -> list[str]:
    unprivileged = "setpriv --reuid=65534 --regid=65534 --clear-groups thermocline"
    agent = cases.fails(cases.sh(f"{unprivileged} agent --for 5s"), "root")
    observe = cases.fails(cases.sh(f"{unprivileged} observe '{_JOB}' --for 2s"), "root")
    return agent + observe + cases.fails(cases.sh(f"{unprivileged} doctor"), status=3)


def _cgroup_v1_only(cases: Cases) -> list[str]:
    without = "unshare -m sh -c 'busybox umount -l /sys/fs/cgroup; "
    empty = "busybox mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/memory"
    v1 = f"{without} {empty}; thermocline agent --for 5s'"
    wrong = cases.fails(cases.sh(v1), "cgroup v1 only", "systemd.unified_cgroup_hierarchy=1")
    wrong += cases.fails(cases.sh(f"{without} thermocline agent --for 5s'"), "no cgroup v2", "boot with")
    return wrong + cases.fails(cases.sh(f"{without} thermocline doctor'"), "cgroup", status=3)


def _nothing_matched(cases: Cases) -> list[str]:
    wrong = cases.fails(cases.run("thermocline", "observe", "/nope*", "--for", "3s"), "no cgroup matched /nope*")
    wrong += cases.fails(cases.run("thermocline", "rates", "--job", "/nope"), "/nope")
    return wrong + cases.fails(cases.run("thermocline", "explain", "/nope"), "thermocline agent")


def _no_zswap(cases: Cases) -> list[str]:
    cases.settings |= {"zswap.manage": False, "swap.write_budget": "0B"}
    return cases.holds("no_far_memory", "zswap is off", "zswap.manage = true")


def _no_swap(cases: Cases) -> list[str]:
    device = cases.guest.read("/proc/swaps").splitlines()[1].split()[0]
    cases.guest.run(["busybox", "swapoff", device])
    wrong = cases.holds("no_far_memory", "no swap space is configured", "swapon")
    cases.guest.run(["busybox", "swapon", device])
    return wrong


def _full_zswap(cases: Cases) -> list[str]:
    # 48 MiB compress to about 16 MiB; 1 % of the machine is 10 MiB.
    cases.settings["zswap.max_pool"] = "1%"
    return cases.holds("no_far_memory", "zswap's pool is full", "raise zswap.max_pool")


def _unknown_key(cases: Cases) -> list[str]:
    cases.settings |= {"agent.scan_perod": "2s", "cold_age.warmup": "soon"}
    wrong: list[str] = []
    for command in (("config", "check"), ("agent", "--for", "5s")):
        done = cases.run("thermocline", *command)
        wrong += cases.fails(done, "thermocline.toml", "agent.scan_perod", "scan_period", "cold_age.warmup", "soon")
    return wrong


def _damon_busy(cases: Cases) -> list[str]:
    cases.settings["agent.tracker"] = "damon"
    cases.guest.write(f"{_DAMON}/nr_kdamonds", "1")
    wrong = cases.fails(cases.run(*_RUN), "DAMON is used by another process", "choose another tracker")
    if cases.guest.number(f"{_DAMON}/nr_kdamonds") != 1:
        wrong.append("removed the other user's kdamond")
    cases.guest.write(f"{_DAMON}/nr_kdamonds", "0")
    return wrong


def _vanished_jobs(cases: Cases) -> list[str]:
    """Cgroups whose processes and directories disappear while the agent scans and offloads them."""
    guest, log = cases.guest, "/run/vanished.log"
    node.configure(guest, [node.Job(_JOB), node.Job("/brief/*")], cases.settings)
    parent = guest.cgroup("brief")
    guest.write(f"{parent}/cgroup.subtree_control", "+memory")
    guest.write(log, "")
    pid = guest.spawn(["thermocline", "agent"], stdout=log, stderr=log)
    wrong = []
    for number in range(5):
        name = f"/brief/{number}"
        programs.workload(guest, name, [programs.idle("idle", 8 * MIB)])
        guest.expect(log, f"{name}: job starts")
        # At a different point of the agent's period each time.
        guest.run(["sh", "-c", f"sleep 1.{number}; echo 1 >{parent}/{number}/cgroup.kill; {_remove(parent, number)}"])
        guest.expect(log, f"{name}: job ended")
    guest.kill(pid)
    end = guest.wait_exit(pid)
    output = guest.read(log)
    cases.outputs.append(output)
    if end.status != 0:
        wrong.append(f"exited with status {end.status}, signal {end.signal}")
    wrong += [line for line in output.splitlines() if "ERROR" in line or "is gone" in line]
    return wrong


def _remove(parent: str, number: int) -> str:
    """Removes a cgroup as soon as its last process has been reaped."""
    return f"until rmdir {parent}/{number} 2>/dev/null; do sleep 0.01; done"


def _memory_limit(cases: Cases) -> list[str]:
    cgroup = f"/sys/fs/cgroup{_JOB}"
    limit = f"{cgroup}/memory.max"
    cases.guest.write(limit, str(cases.guest.number(f"{cgroup}/memory.current")))
    cases.settings["agent.at_limit"] = "stop"
    wrong = cases.holds("at_limit")
    cases.guest.write(limit, "max")
    return wrong


def _malformed_kernel_files(cases: Cases) -> list[str]:
    """Files that the agent reads periodically or at its start: empty, truncated, or replaced by garbage."""
    files = ("/proc/meminfo", "/proc/swaps", "/proc/zoneinfo", "/proc/uptime", f"/sys/fs/cgroup{_JOB}/memory.stat")
    wrong: list[str] = []
    for path in files:
        for make in ("true", f"head -c 17 {path}", _GARBAGE):
            mount = f"busybox mount --bind /run/malformed {path} && {' '.join(_SHORT_RUN)}"
            done = cases.sh(f"{make} >/run/malformed; unshare -m sh -c '{mount}'")
            output = done.stdout + done.stderr
            # It may continue without the file or exit with an error, but must not be killed or ignore it silently.
            if done.status not in (0, 1):
                wrong.append(f"{path} from `{make}`: status {done.status}, signal {done.signal}: {output[-300:]}")
            if path not in output and (done.status == 1 or make == _GARBAGE):
                wrong.append(f"{path} from `{make}`: the path is not mentioned: {output[-300:]}")
    return wrong


def _damaged_state(cases: Cases) -> list[str]:
    files = [
        f"{node.STATE}/history.json",
        f"{node.STATE}/journal",
        f"{node.RUNTIME}/undo.json",
        f"{node.RUNTIME}/agent.pid",
    ]
    wrong = cases.fails(cases.run(*_SHORT_RUN), status=0)
    for path in files:
        for make in ("true", "echo '{\"settings\":'", _GARBAGE):
            cases.sh(f"{make} >{path}")
            wrong += [f"{path} from `{make}`: {what}" for what in cases.fails(cases.run(*_SHORT_RUN), status=0)]
    return wrong


_CASES: dict[str, Callable[[Cases], list[str]]] = {
    "no_root": _no_root,
    "cgroup_v1_only": _cgroup_v1_only,
    "nothing_matched": _nothing_matched,
    "no_zswap": _no_zswap,
    "no_swap": _no_swap,
    "full_zswap": _full_zswap,
    "unknown_key": _unknown_key,
    "damon_busy": _damon_busy,
    "vanished_jobs": _vanished_jobs,
    "memory_limit": _memory_limit,
    "malformed_kernel_files": _malformed_kernel_files,
    "damaged_state": _damaged_state,
}
