"""Compacting what is in the background makes room for the next application; while memory is short it comes too late.

Three applications of which two fit take turns in the foreground, in the orders of 003's experiments, ABCABC and ABCBA.
The kernel does not swap by itself (swappiness 0): as on a phone, it kills what is in the background when memory runs
out. Three runs of each order: without compaction; well timed, with the agent told as soon as an application leaves the
foreground, and waiting while memory is short (its defaults, but for a settling time of 1 s); and badly timed, with the
agent told while the next application's launch has made memory short, and forbidden to wait. Kills are `oom_kill` of the
applications' `memory.events`, refaults those of their `memory.stat`.

Well timed, nothing is killed. Badly timed, 003 counts more kills than without; here few or none are, because the kernel
kills only when nothing is left to reclaim, and so gives late compaction its chance. What that costs shows elsewhere:
tasks wait for memory, and file pages are lost and read again, about as much as without compaction. The file pages are
held to a bound.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from thermolab import node, swap, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine, SwapDisk
from thermolab.truth import Region, Workload
from thermolab.windows import some_us

KERNELS = ("6.12",)
MORE_IS_BETTER = ("app_bytes", "warm_launches")

ORDERS = ("ABCABC", "ABCBA")
APP_RATIO = 0.45
"""Size of an application, as a share of what is available: two fit, and three do not."""
FILE_RATIO = 0.15
"""How much of an application are pages of its files."""
HOME_SECONDS, STAY_SECONDS = 3, 1
"""Between two applications, and in one of them once it is up."""
SHORT_RATIO = 0.05
"""Memory is short when less than this share of it is available: what the agent calls short by default."""
LAUNCH_SECONDS = 90
"""Patience with a launch."""

FILE_STAYS_MIN_RATIO = 0.95

_BACKGROUND_ADJ, _FOREGROUND_ADJ = 900, 0
_LAB: node.Settings = {"agent.control_period": "1s", "zswap.max_pool": "50%"}
TIMED: dict[str, node.Settings] = {
    "well_timed": {**_LAB, "background.settle": "1s"},
    "badly_timed": {
        **_LAB,
        "background.settle": "0s",
        "background.pressure_max": "100%",
        "background.available_min": "0%",
    },
}


@dataclass(slots=True)
class Phone:
    """Applications that take turns in the foreground."""

    lab: Lab
    guest: Guest
    variant: str
    order: str
    app_bytes: int
    agent: node.Agent | None
    apps: dict[str, Workload] = field(default_factory=dict)
    launches: list[float] = field(default_factory=list)
    """How long launches took, in seconds."""
    warm_launches: int = 0
    stalled_us: int = 0
    """Time for which some task of the machine waited for memory."""
    file_stays_ratio: float | None = None

    def job(self, app: str) -> str:
        """The cgroup of an application."""
        return job(self.variant, self.order, app)

    def cycle(self) -> None:
        """Go through the order."""
        stalled_us = some_us(self.guest.read("/proc/pressure/memory"))
        front: str | None = None
        for app in self.order:
            told = self.variant == "well_timed"
            if front is not None and self.alive(front):
                self.adjust(front, _BACKGROUND_ADJ)
                self.apps[front].next_phase()
                if told:
                    self.hint(front, "background")
            # Nothing happens that could be waited for: somebody looks at the home screen.
            self.guest.run(["sleep", str(HOME_SECONDS)])
            self.launch(app, None if told else front)
            self.guest.run(["sleep", str(STAY_SECONDS)])
            if told and self.agent and front is not None and self.file_stays_ratio is None:
                self.guest.expect(self.agent.log, "compacted:")
                where = self.apps[front].residency()[f"{self.name(front)}-files"]
                total = sum(where[f"{place}_bytes"] for place in ("present", "swapped", "absent"))
                self.file_stays_ratio = where["present_bytes"] / total
            front = app
        self.stalled_us = some_us(self.guest.read("/proc/pressure/memory")) - stalled_us

    def launch(self, app: str, hint_late: str | None) -> None:
        """Bring an application to the foreground.

        `hint_late` is in the background, which the agent is told when memory is short, or else when the launch is over.
        """
        warm = self.alive(app)
        if warm:
            self.hint(app, "foreground")
            self.adjust(app, _FOREGROUND_ADJ)
            begin = self.uptime()
            self.apps[app].next_phase()
        else:
            begin = self.uptime()
            self.apps[app] = self.start(app)
        while self.alive(app) and not self.is_up(app, begin, warm) and self.uptime() < begin + LAUNCH_SECONDS:
            if hint_late is not None and self.available_ratio() < SHORT_RATIO:
                self.hint(hint_late, "background")
                hint_late = None
            self.guest.run(["sleep", "0.1"])
        took = self.uptime() - begin
        if hint_late is not None:
            self.hint(hint_late, "background")
        alive = "".join(name for name in sorted(self.apps) if self.alive(name))
        how = "warm" if warm else "cold"
        self.lab.say(
            f"{self.variant} {self.order}: {app} {how} {took:.1f} s, alive {alive}, "
            f"{self.available_ratio():.1%} available, {self.kills()} kills"
        )
        if self.alive(app):
            self.launches.append(took)
            self.warm_launches += warm

    def start(self, app: str) -> Workload:
        """Start an application from nothing; it is not up yet."""
        name = self.name(app)
        files = int(self.app_bytes * FILE_RATIO) // MIB
        turns = {"phases": [{"for_s": 80_000, "period_ms": 1000}, {"for_s": 80_000, "never": True}]}
        regions = [
            Region(f"{name}-files", files, turns, kind="file"),
            Region(f"{name}-heap", self.app_bytes // MIB - files, turns, writes=True),
        ]
        self.guest.write(f"/run/{name}.out", "")
        return Workload(self.guest, regions, name=name, wait=False)

    def is_up(self, app: str, since: float, warm: bool) -> bool:
        """Whether all of an application's memory is there, and was accessed since."""
        workload = self.apps[app]
        if not warm:
            return "ready" in self.guest.read(workload.out)
        told = workload.compare(truth.Verdict(round(since * 1e9), []), idle_ms=1000)
        return all(region["last_sweep_end_ns"] > since * 1e9 for region in told.values())

    def hint(self, app: str, word: str) -> None:
        """Tell the agent, if there is one, of an application that lives."""
        if self.agent is not None and self.alive(app):
            done = self.guest.run(["thermocline", "hint", self.job(app), word], check=False)
            # It may be killed at any moment, and the agent then says that there is no such job.
            self.lab.holds("hint", done.status == 0 or not self.alive(app), f"{word} refused: {done.stderr.strip()}")

    def adjust(self, app: str, value: int) -> None:
        """Say how gladly the kernel kills it, as phones do."""
        self.guest.write(f"/proc/{self.apps[app].pid}/oom_score_adj", str(value))

    def alive(self, app: str) -> bool:
        """Whether the application runs."""
        return app in self.apps and self.guest.exists(f"/proc/{self.apps[app].pid}")

    def uptime(self) -> float:
        """Seconds since boot."""
        return float(self.guest.read("/proc/uptime").split()[0])

    def available_ratio(self) -> float:
        """How much of the machine's memory is available."""
        memory = self.guest.flat_keyed("/proc/meminfo")
        return memory["MemAvailable"] / memory["MemTotal"]

    def name(self, app: str) -> str:
        """The name of its cgroup."""
        return self.job(app)[1:]

    def kills(self) -> int:
        """Applications that the kernel killed so far."""
        return self.sum("memory.events", "oom_kill")

    def sum(self, file: str, key: str) -> int:
        """A counter over all applications."""
        return sum(self.guest.flat_keyed(f"{app.cgroup}/{file}")[key] for app in self.apps.values())

    def row(self) -> dict[str, Any]:
        """What the order came to."""
        return {
            "kills": self.kills(),
            "refaults_anon": self.sum("memory.stat", "workingset_refault_anon"),
            "refaults_file": self.sum("memory.stat", "workingset_refault_file"),
            "warm_launches": self.warm_launches,
            "stall_seconds": self.stalled_us / 1e6,
            "launch_seconds": sum(self.launches) / max(len(self.launches), 1),
        }

    def end(self) -> None:
        """End all applications."""
        for app, workload in self.apps.items():
            if self.alive(app):
                workload.stop()


def job(variant: str, order: str, app: str) -> str:
    """The cgroup of an application in one cycle."""
    return f"/{variant}-{order}-{app}"


def run(lab: Lab) -> dict[str, Any]:
    """One way after the other, each through both orders."""
    rows: dict[str, Any] = {}
    stays: list[float] = []
    with lab.guest(Machine(memory_bytes=384 * MIB, swap=SwapDisk(GIB))) as guest:
        guest.write("/proc/sys/vm/swappiness", "0")
        available = guest.flat_keyed("/proc/meminfo")["MemAvailable"] * 1024
        app_bytes = int(available * APP_RATIO) // MIB * MIB
        lab.say(f"{available / MIB:.0f} MiB available, {app_bytes / MIB:.0f} an application")
        for variant in ("without", *TIMED):
            agent = _agent(guest, variant)
            found = {}
            for order in ORDERS:
                phone = Phone(lab, guest, variant, order, app_bytes, agent)
                phone.cycle()
                found[order] = phone.row()
                if phone.file_stays_ratio is not None:
                    stays.append(phone.file_stays_ratio)
                phone.end()
            waits = 0
            if agent is not None:
                agent.stop()
                guest.keep(f"{node.STATE}/journal")
                events = [event["what"] for event in node.journal(guest) if event["record"] == "event"]
                waits = sum("put off" in what or "compaction waits" in what for what in events)
                swap.empty(guest)
            rows[variant] = {name: sum(row[name] for row in found.values()) for name in found[ORDERS[0]]}
            rows[variant]["launch_seconds"] /= len(ORDERS)
            rows[variant]["waits"] = waits
            lab.say(f"{variant}: {json.dumps(rows[variant])}")
            rows[variant].update(found)
    well = rows["well_timed"]["kills"]
    lab.at_least("without.kills", rows["without"]["kills"], 1)
    lab.at_most("well_timed.kills", well, min(rows["without"]["kills"] - 1, rows["badly_timed"]["kills"]))
    refaults = {variant: row["refaults_file"] for variant, row in rows.items()}
    lab.at_most("well_timed.refaults_file", refaults["well_timed"], refaults["badly_timed"] / 2)
    lab.at_least("file_stays_ratio", min(stays, default=0.0), FILE_STAYS_MIN_RATIO)
    return {"app_bytes": app_bytes, "file_stays_ratio": min(stays, default=0.0), **rows}


def _agent(guest: Guest, variant: str) -> node.Agent | None:
    """The agent of a run, which knows nothing yet; `None` for the run without."""
    if variant not in TIMED:
        return None
    names = [job(variant, order, app) for order in ORDERS for app in sorted(set(order))]
    for name in names:
        guest.cgroup(name[1:])
    guest.run(["rm", "-rf", node.STATE])
    node.configure(guest, [node.Job(name, policy="background") for name in names], TIMED[variant])
    return node.start(guest)
