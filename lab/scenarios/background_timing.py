"""Compacting background applications frees memory for the next launch; doing so while memory is short is too late.

Three applications, of which two fit into memory, take turns in the foreground, in the orders ABCABC and ABCBA (LPC
talk). The kernel does not swap by itself (swappiness 0): as on a phone, it kills background applications when memory
runs out. Each order runs four times. Without: no compaction. All pages (the talk's first experiment): what leaves the
foreground is reclaimed as a whole, through `memory.reclaim`, page cache too; no agent. Well timed (its second
experiment): the agent gets a background hint as soon as an application leaves the foreground, reclaims anonymous pages
and deactivates those of files, and pauses while memory is short (its defaults, except for a settling time of 1 s).
Badly timed: the agent gets the hint when the next launch has already made memory short, and may not pause. Kills are
`oom_kill` of the applications' `memory.events`, refaults are counted in their `memory.stat`.

Well timed, nothing is killed. Badly timed, the LPC talk counts more kills than without compaction. Here there are few
or none, because the kernel kills only when nothing is left to reclaim, which gives late compaction time to finish. Its
cost appears elsewhere: tasks stall on memory, and file pages are evicted and read again, about as much as without
compaction. The bound is on the refaults of file pages.
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
"""Size of an application as a share of the available memory: two fit, three do not."""
FILE_RATIO = 0.15
"""Share of an application's memory that is pages of its files."""
HOME_SECONDS, STAY_SECONDS = 3, 1
"""Time between two applications, and in one application once it is up."""
SHORT_RATIO = 0.05
"""Memory is short if less than this share of it is available; the agent's default."""
LAUNCH_SECONDS = 90
"""Time limit for a launch."""

FILE_STAYS_MIN_RATIO = 0.95

_BACKGROUND_ADJ, _FOREGROUND_ADJ = 900, 0
_LAB: node.Settings = {"agent.control_period": "1s", "zswap.max_pool": "50%"}
WITHOUT, ALL_PAGES, WELL_TIMED = "without", "all_pages", "well_timed"
TIMED: dict[str, node.Settings] = {
    WELL_TIMED: {**_LAB, "background.settle": "1s"},
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
    """Durations of the launches, in seconds."""
    warm_launches: int = 0
    stalled_us: int = 0
    """Time in which some task of the machine stalled on memory."""
    file_stays_ratio: float | None = None

    def job(self, app: str) -> str:
        """Returns the cgroup of an application."""
        return job(self.variant, self.order, app)

    def cycle(self) -> None:
        """Brings the applications to the foreground in order."""
        stalled_us = some_us(self.guest.read("/proc/pressure/memory"))
        front: str | None = None
        for app in self.order:
            early = self.variant in (ALL_PAGES, WELL_TIMED)
            if front is not None and self.alive(front):
                self.adjust(front, _BACKGROUND_ADJ)
                self.apps[front].next_phase()
                if self.variant == ALL_PAGES:
                    self.reclaim(front)
                elif early:
                    self.hint(front, "background")
            # There is no event to wait for: the home screen is shown for a while.
            self.guest.run(["sleep", str(HOME_SECONDS)])
            self.launch(app, None if early else front)
            self.guest.run(["sleep", str(STAY_SECONDS)])
            if early and self.agent and front is not None and self.file_stays_ratio is None:
                self.guest.expect(self.agent.log, "compacted:")
                where = self.apps[front].residency()[f"{self.name(front)}-files"]
                total = sum(where[f"{place}_bytes"] for place in ("present", "swapped", "absent"))
                self.file_stays_ratio = where["present_bytes"] / total
            front = app
        self.stalled_us = some_us(self.guest.read("/proc/pressure/memory")) - stalled_us

    def launch(self, app: str, hint_late: str | None) -> None:
        """Brings an application to the foreground.

        `hint_late` is an application in the background. Its hint is sent when memory is short, at the latest when the
        launch is over.
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
        """Starts an application that is not running; returns before it is up."""
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
        """Returns whether all of an application's memory was filled, or accessed since a time, so that it is up."""
        workload = self.apps[app]
        if not warm:
            return "ready" in self.guest.read(workload.out)
        report = workload.compare(truth.Verdict(round(since * 1e9), []), idle_ms=1000)
        return all(region["last_sweep_end_ns"] > since * 1e9 for region in report.values())

    def hint(self, app: str, state: str) -> None:
        """Sends a hint about a running application to the agent, if there is one."""
        if self.agent is not None and self.alive(app):
            done = self.guest.run(["thermocline", "hint", self.job(app), state], check=False)
            # The kernel may kill it at any moment, and the agent then reports that there is no such job.
            self.lab.holds("hint", done.status == 0 or not self.alive(app), f"{state} refused: {done.stderr.strip()}")

    def reclaim(self, app: str) -> None:
        """Reclaims all of an application's memory, of both kinds whatever the kernel's own swappiness."""
        cgroup = self.apps[app].cgroup
        size = self.guest.number(f"{cgroup}/memory.current")
        # The kernel refuses the rest of a request that it cannot fulfil.
        self.guest.run(["sh", "-c", f"echo {size} swappiness=100 > {cgroup}/memory.reclaim"], check=False)

    def adjust(self, app: str, value: int) -> None:
        """Sets the application's OOM score adjustment, as phones do."""
        self.guest.write(f"/proc/{self.apps[app].pid}/oom_score_adj", str(value))

    def alive(self, app: str) -> bool:
        """Returns whether the application runs."""
        return app in self.apps and self.guest.exists(f"/proc/{self.apps[app].pid}")

    def uptime(self) -> float:
        """Returns the seconds since boot."""
        return float(self.guest.read("/proc/uptime").split()[0])

    def available_ratio(self) -> float:
        """Returns the share of the machine's memory that is available."""
        memory = self.guest.flat_keyed("/proc/meminfo")
        return memory["MemAvailable"] / memory["MemTotal"]

    def name(self, app: str) -> str:
        """Returns the name of an application's cgroup."""
        return self.job(app)[1:]

    def kills(self) -> int:
        """Returns the number of applications that the kernel killed so far."""
        return self.sum("memory.events", "oom_kill")

    def sum(self, file: str, key: str) -> int:
        """Returns the sum of a counter over all applications."""
        return sum(self.guest.flat_keyed(f"{app.cgroup}/{file}")[key] for app in self.apps.values())

    def row(self) -> dict[str, Any]:
        """Returns the figures of the order."""
        return {
            "kills": self.kills(),
            "refaults_anon": self.sum("memory.stat", "workingset_refault_anon"),
            "refaults_file": self.sum("memory.stat", "workingset_refault_file"),
            "warm_launches": self.warm_launches,
            "stall_seconds": self.stalled_us / 1e6,
            "launch_seconds": sum(self.launches) / max(len(self.launches), 1),
        }

    def end(self) -> None:
        """Ends all applications."""
        for app, workload in self.apps.items():
            if self.alive(app):
                workload.stop()


def job(variant: str, order: str, app: str) -> str:
    """Returns the cgroup of an application in one run of an order."""
    return f"/{variant}-{order}-{app}"


def run(lab: Lab) -> dict[str, Any]:
    """Runs all variants, each with both orders."""
    rows: dict[str, Any] = {}
    stays: list[float] = []
    with lab.guest(Machine(memory_bytes=384 * MIB, swap=SwapDisk(GIB))) as guest:
        guest.write("/proc/sys/vm/swappiness", "0")
        available = guest.flat_keyed("/proc/meminfo")["MemAvailable"] * 1024
        app_bytes = int(available * APP_RATIO) // MIB * MIB
        lab.say(f"{available / MIB:.0f} MiB available, {app_bytes / MIB:.0f} an application")
        for variant in (WITHOUT, ALL_PAGES, *TIMED):
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
                waits = sum("compaction delayed" in what or "compaction waits" in what for what in events)
                swap.empty(guest)
            rows[variant] = {name: sum(row[name] for row in found.values()) for name in found[ORDERS[0]]}
            rows[variant]["launch_seconds"] /= len(ORDERS)
            rows[variant]["waits"] = waits
            lab.say(f"{variant}: {json.dumps(rows[variant])}")
            rows[variant].update(found)
    well = rows[WELL_TIMED]["kills"]
    lab.at_least("without.kills", rows[WITHOUT]["kills"], 1)
    lab.at_most("well_timed.kills", well, min(rows[WITHOUT]["kills"] - 1, rows["badly_timed"]["kills"]))
    refaults = {variant: row["refaults_file"] for variant, row in rows.items()}
    lab.at_most("well_timed.refaults_file", refaults[WELL_TIMED], refaults["badly_timed"] / 2)
    lab.at_least("file_stays_ratio", min(stays, default=0.0), FILE_STAYS_MIN_RATIO)
    return {"app_bytes": app_bytes, "file_stays_ratio": min(stays, default=0.0), **rows}


def _agent(guest: Guest, variant: str) -> node.Agent | None:
    """Starts the agent of a variant without history; returns `None` for the variant without an agent."""
    if variant not in TIMED:
        return None
    names = [job(variant, order, app) for order in ORDERS for app in sorted(set(order))]
    for name in names:
        guest.cgroup(name[1:])
    guest.run(["rm", "-rf", node.STATE])
    node.configure(guest, [node.Job(name, policy="background") for name in names], TIMED[variant])
    return node.start(guest)
