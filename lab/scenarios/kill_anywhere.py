"""Killing the agent at 50 random moments while it acts leaves a healthy machine and a complete journal.

Three programs alternate between hot and idle, one is at its memory limit, one forks continuously: so `memory.low`,
`memory.swap.max`, zswap parameters and, in half of the runs, kdamonds are set and changed all the time. After each kill
`thermocline agent --restore` must restore every setting, every line of the journal must parse except for a torn last
one, no earlier line may be missing, and the journal must replay to the same decisions. Then: SIGTERM leaves no settings
either, a second agent is refused, and a restarted agent continues with each job's history.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from thermolab import node, programs, remains
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12-idle", "6.12", "7.2")

KILLS = 50
SEED = 2
_DELAY_SECONDS_MAX = 3.0
_WARMUP = "4s"

_PROGRAMS = ("/a", "/b", "/forks")
_LIMITED = "/limited"
_LIMIT_BYTES = 24 * MIB
_JOURNAL = f"{node.STATE}/journal"
_UNDO = f"{node.RUNTIME}/undo.json"
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"
_LOG = "/run/agent.log"
_ROUNDS = "/run/agent.json"

_SETTINGS: node.Settings = {
    "agent.scan_period": "300ms",
    "agent.control_period": "300ms",
    "agent.at_limit": "fail_fast",
    # Slow enough that an offload is in progress at most moments.
    "agent.offload_rate": "16MiB/s",
    "cold_age.promotion_rate": "100%",
    "cold_age.percentile": "50%",
    "cold_age.warmup": _WARMUP,
    # Offloading begins at once: what is put back is tested, not when offloading begins.
    "cold_age.bound": False,
    "zswap.max_pool": "30%",
}


def run(lab: Lab) -> dict[str, Any]:
    """Kills the agent, restores and checks, fifty times; then the second agent and the restart."""
    with lab.guest() as guest:
        _start_programs(guest)
        if guest.exists(_DAMON_STAT):
            # Some kernels enable it at boot; the agent cannot use DAMON while it is on.
            guest.write(_DAMON_STAT, "N")
        before = remains.inspect(guest)
        _configure(guest, damon=False)
        _warm_up(guest)
        figures = _kill(lab, guest, before)
        lab.say("a second agent, SIGTERM, and the history after a restart")
        _second_agent(lab, guest)
        _restart(lab, guest, before)
    return figures


@dataclass(slots=True)
class _Journal:
    """The journal as read so far, and the errors found in it."""

    lines: list[str] = field(default_factory=list)
    bytes_read: int = 0
    checksum: str = ""
    torn_max: int = 0
    unreadable: int = 0
    missing: int = 0

    def read_new(self, guest: Guest) -> None:
        """Reads the lines since the last call, and checks that all earlier lines are still there."""
        if _head_checksum(guest, self.bytes_read) != self.checksum:
            earlier = set(self.lines)
            self.missing += len(earlier - set(guest.read(_JOURNAL).splitlines()))
        new = guest.run(["tail", "-c", f"+{self.bytes_read + 1}", _JOURNAL]).stdout
        whole, newline, torn = new.rpartition("\n")
        self.torn_max = max(self.torn_max, int(bool(torn)))
        for line in whole.splitlines():
            self.lines.append(line)
            self.unreadable += not _is_record(line)
        self.bytes_read += len((whole + newline).encode())
        self.checksum = _head_checksum(guest, self.bytes_read)


def _head_checksum(guest: Guest, count: int) -> str:
    return guest.run(["sh", "-c", f"head -c {count} {_JOURNAL} | sha256sum"]).stdout if count else ""


def _is_record(line: str) -> bool:
    try:
        return "record" in json.loads(line)
    except ValueError:
        return False


def _start_programs(guest: Guest) -> None:
    regions = [
        programs.phases("breathing", 16 * MIB, (1, 1000), (3, None)),
        programs.idle("idle", 8 * MIB),
        programs.hot("hot", 2 * MIB),
    ]
    for job in _PROGRAMS:
        programs.workload(guest, job, regions)
    # Each iteration starts another process to monitor.
    guest.spawn(["sh", "-c", "while :; do sleep 0.4; done"], cgroup=guest.cgroup("forks"))
    # The operator's setting, which must be restored to this value and not to the kernel's default.
    guest.write(f"{guest.cgroup('b')}/memory.low", str(MIB))
    guest.write(f"{guest.cgroup(_LIMITED[1:])}/memory.max", str(_LIMIT_BYTES))
    programs.workload(guest, _LIMITED, [programs.idle("idle", 2 * _LIMIT_BYTES)])


def _configure(guest: Guest, *, damon: bool) -> None:
    forks = node.Job("/forks", tracker="damon" if damon else None)
    node.configure(guest, [node.Job("/a"), node.Job("/b"), forks, node.Job(_LIMITED)], _SETTINGS)


def _warm_up(guest: Guest) -> None:
    """Runs the agent until it offloads, and ends it by SIGTERM."""
    guest.write(_LOG, "")
    pid = guest.spawn(["thermocline", "agent"], stdout=_LOG, stderr=_LOG)
    guest.expect(_JOURNAL, '"action":"offload"', timeout_s=90)
    guest.kill(pid)
    guest.wait_exit(pid)


def _kill(lab: Lab, guest: Guest, before: remains.Settings) -> dict[str, Any]:
    moments = random.Random(SEED)  # noqa: S311 -- repeatable, not secret
    journal = _Journal()
    leftovers: list[str] = []
    with_settings = with_kdamonds = differing = 0
    for kill in range(KILLS):
        _configure(guest, damon=kill % 2 == 1)
        pid = guest.spawn(["thermocline", "agent"], stdout=_LOG, stderr=_LOG)
        delay = moments.uniform(0.0, _DELAY_SECONDS_MAX)
        guest.run(["sh", "-c", f"sleep {delay:.3f}; kill -9 {pid}"])
        guest.wait_exit(pid)
        found = remains.differing(before, remains.inspect(guest))
        with_settings += bool(found)
        with_kdamonds += any("nr_kdamonds" in setting for setting in found)
        journal.read_new(guest)
        restored = guest.run(["thermocline", "agent", "--restore"]).stdout
        left = remains.differing(before, remains.inspect(guest))
        if left:
            lab.say(f"kill {kill} after {delay:.3f} s left {'; '.join(left)}, but reported: {restored.strip()}")
        leftovers += [f"kill {kill}: {setting}" for setting in left]
        differing += guest.run(["thermocline", "replay"], check=False).status != 0
        if (kill + 1) % 10 == 0:
            lab.say(f"{kill + 1} kills: {with_settings} left settings to restore, {with_kdamonds} kdamonds")
    guest.keep(_JOURNAL)
    ahead, behind = history_against_journal(journal.lines)
    figures = {
        "kills": KILLS,
        "kills_amid_settings": with_settings,
        "kills_amid_kdamonds": with_kdamonds,
        "leftovers": len(leftovers),
        "torn_records_max": journal.torn_max,
        "journal_unreadable_records": journal.unreadable,
        "journal_lost_records": journal.missing + ahead,
        "history_lost_periods_max": behind,
        "replays_differing": differing,
        "journal_records": len(journal.lines),
    }
    _bounds(lab, figures, leftovers)
    return figures


def _bounds(lab: Lab, figures: dict[str, Any], leftovers: list[str]) -> None:
    lab.at_least("kills", figures["kills"], KILLS)
    # A kill while nothing is set would test nothing.
    lab.at_least("kills_amid_settings", figures["kills_amid_settings"], KILLS // 2)
    lab.at_least("kills_amid_kdamonds", figures["kills_amid_kdamonds"], KILLS // 10)
    lab.at_most("leftovers", figures["leftovers"], 0)
    lab.holds("leftovers", not leftovers, "; ".join(leftovers))
    lab.at_most("torn_records_max", figures["torn_records_max"], 1)
    for name in ("journal_unreadable_records", "journal_lost_records", "replays_differing"):
        lab.at_most(name, figures[name], 0)
    # The history file is replaced after the journal is written: a kill in between loses one period of the state.
    lab.at_most("history_lost_periods_max", figures["history_lost_periods_max"], 1)


def history_against_journal(lines: list[str]) -> tuple[int, int]:
    """Compares the state that a job's controller restarted with to the journal.

    Returns the total of periods that the state has and the journal lacks, and the largest number of periods that the
    journal has and the state lost at one restart. The state counts all periods after a job's first scan.
    """
    ahead, behind = 0, 0
    counted: dict[tuple[str, int], int] = {}
    for record in map(json.loads, lines):
        if record["record"] not in ("job", "period"):
            continue
        job = record["job"], record["id"]
        if record["record"] == "period":
            counted[job] = counted.get(job, 0) + (record["input"]["window_ms"] > 0)
            continue
        remembered = _periods(record["state"])
        ahead += max(0, remembered - counted.get(job, remembered))
        behind = max(behind, counted.get(job, 0) - remembered)
        counted[job] = remembered
    return ahead, behind


def _periods(state: Any) -> int:
    """Returns the control periods that a controller's state has counted, in each of its forms."""
    if isinstance(state, list):
        return sum(state)
    return _periods(state["state"]) if "state" in state else sum(state["bests"])


def _second_agent(lab: Lab, guest: Guest) -> None:
    """Starts a second agent while the first is stopped by SIGSTOP, so that every change would be the second one's."""
    pid = _acting(guest)
    guest.kill(pid, 19)
    before = remains.inspect(guest), _files(guest)
    second = guest.run(["thermocline", "agent"], check=False)
    after = remains.inspect(guest), _files(guest)
    guest.kill(pid, 18)
    refusal = second.stderr.strip()
    lab.holds("second_agent", second.status == 1, f"exited with status {second.status}: {refusal}")
    lab.holds("second_agent", str(pid) in refusal, f"does not mention process {pid}: {refusal}")
    lab.holds("second_agent", before == after, "changed settings or files of the first agent")
    guest.kill(pid)
    guest.wait_exit(pid)


def _files(guest: Guest) -> str:
    return guest.run(["sh", "-c", f"sha256sum {node.STATE}/* {node.RUNTIME}/*.json {node.RUNTIME}/*.pid"]).stdout


def _acting(guest: Guest) -> int:
    """Starts an agent and waits until it has changed settings; returns its pid."""
    _configure(guest, damon=False)
    guest.write(_ROUNDS, "")
    pid = guest.spawn(["thermocline", "agent", "--format", "json"], stdout=_ROUNDS, stderr=_LOG)
    # A view is written after each scan.
    guest.expect(_ROUNDS, '"scans":4,')
    return pid


def _restart(lab: Lab, guest: Guest, before: remains.Settings) -> None:
    """Checks that SIGTERM restores all settings, and that the next agent continues with the history."""
    pid = _acting(guest)
    guest.kill(pid)
    end = guest.wait_exit(pid)
    left = remains.differing(before, remains.inspect(guest))
    lab.holds("sigterm", end.status == 0, f"exited with status {end.status}, signal {end.signal}")
    lab.holds("sigterm", not left, "; ".join(left))
    lab.holds("sigterm", not guest.exists(_UNDO), f"{_UNDO} is still there")
    old = node.journal(guest)
    pid = _acting(guest)
    guest.kill(pid)
    guest.wait_exit(pid)
    new = node.journal(guest)[len(old) :]
    guest.keep(_LOG)
    for job in _PROGRAMS:
        started = next(record for record in new if record["record"] == "job" and record["job"] == job)
        first, last = node.periods(new, job)[0], node.periods(old, job)[-1]
        ages = first["input"]["job_age_ms"], last["input"]["job_age_ms"]
        lab.holds(f"restart {job}", _periods(started["state"]) > 0, "the controller starts without history")
        lab.holds(f"restart {job}", ages[0] > ages[1], f"its age is {ages[0]} ms after {ages[1]} ms")
        warming = [p for p in node.periods(new, job) if p["step"]["decision"].get("reason") == "warming_up"]
        lab.holds(f"restart {job}", not warming, f"is warming up again for {len(warming)} periods")
