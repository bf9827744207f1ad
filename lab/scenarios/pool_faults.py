"""Under faults of a pool's parts while guests start and stop, no slice has two owners and none is lost. As root.

One guest runs all the time, with a mark in its pool memory that it checks continuously, while others are started and
stopped. First the disk of the ledger is full. Then, over several rounds, the manager, the host daemon or the other
guest's process is killed at a random moment; the steady guest's host, in a network namespace, is disconnected from its
manager for longer than its lease; and slice files are removed or truncated as by an operator's mistake. The steady
guest must be unaffected, and once the others are gone all slices except its own are free and clean. A test of the
manager's crate kills the manager more often and under more load.
"""

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from thermolab import znuma
from thermolab.errors import LabError
from thermolab.lab import Lab
from thermolab.outages import Wire, need_root
from thermolab.owners import OwnersWatch
from thermolab.pool import LEASE_SECONDS, SLICE_MIB, Host, Pool, Refused, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

SLICES = 4
STEADY_SLICES = 2
OTHERS = SLICES - STEADY_SLICES
ROUNDS = 12
SEED = 4
MOMENTS_SECONDS = 1.2
"""Approximate duration of a guest's start on a busy machine, so that a fault falls before, into or after it."""
BACK_SECONDS = 40.0
"""Time limit for the others' slices to become free: the lease, plus delays on a busy machine."""
DISK_MIB = 4
FULL_TRIES = 60
"""Upper bound on guests started and stopped until the ledger has used up the free space within its file."""
PARTITION_SECONDS = 3 * LEASE_SECONDS


@dataclass(slots=True)
class Site:
    """A pool, the steady guest's host, which is behind the wire, and a host on the manager's side."""

    lab: Lab
    pool: Pool
    steady: Host
    near: Host
    marks: znuma.Marks
    figures: dict[str, Any] = field(default_factory=dict)
    lost: int = 0

    def others_back(self, what: str) -> float:
        """Stops all guests except the steady one; returns the seconds until their slices are free."""
        begin = time.monotonic()
        for host in (self.steady, self.near):
            _stop_others(host)
        try:
            self.pool.until_free(OTHERS, BACK_SECONDS)
        except LabError as error:
            self.lab.say(f"{what}: {error}")
            self.lost = max(self.lost, OTHERS - self.pool.counts()["free"])
        self.lab.holds(what, self.marks.is_alive(), "the steady guest's program exited")
        return time.monotonic() - begin


def run(lab: Lab) -> dict[str, Any]:
    """Injects each kind of fault in turn."""
    need_root()
    hosts = ("host-a", "host-b")
    with Wire() as wire, Pool(lab, SLICES, hosts, wire=wire, disk_mib=DISK_MIB) as pool:
        steady = pool.host("host-a", Watch(attempts=0), remote=True)
        near = pool.host("host-b", Watch(attempts=0))
        vm = Vm("steady", 448, STEADY_SLICES * SLICE_MIB, cmdline="memhp_default_state=online_movable", cpus=1)
        with PoolGuest(steady, vm) as guest, OwnersWatch([steady, near]) as owners:
            marks = znuma.hold(guest, 1, STEADY_SLICES * SLICE_MIB // 2, node=1)
            site = Site(lab, pool, steady, near, marks)
            # First, because a ledger that was used for a while has free space within its file.
            _full_disk(site)
            _kills(site)
            _partition(site, wire)
            _lost_files(site)
            held = {slice_["path"] for slice_ in steady.explain("steady")["mapped"]}
            dirty = sum(file.stat().st_blocks > 0 for file in pool.files() if str(file) not in held)
            damaged, alive = marks.damaged_bytes(), marks.is_alive()
    figures = {
        **site.figures,
        "double_owned": max(0, owners.owners_max - 1),
        "owners_max": owners.owners_max,
        "owner_looks": owners.samples,
        "lost_slices": site.lost,
        "free_slices_with_data": dirty,
        "damaged_bytes": damaged,
    }
    lab.say(str(figures))
    lab.at_least("kills", figures["kills"], ROUNDS * 2 // 3)
    lab.at_least("owners_max", owners.owners_max, 1)
    lab.at_most("double_owned", figures["double_owned"], 0)
    lab.at_most("lost_slices", site.lost, 0)
    lab.at_most("free_slices_with_data", dirty, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    lab.holds("steady", alive, "the steady guest's program exited")
    return figures


def _kills(site: Site) -> None:
    """Kills a part of the pool in each round, while a guest starts."""
    chance = random.Random(SEED)  # noqa: S311 -- reproducible
    kills = {"manager": 0, "host": 0, "guest": 0}
    back: list[float] = []
    for number in range(ROUNDS):
        victim = ("manager", "host", "guest")[number % 3]
        site.lab.say(f"round {number}: the {victim} is killed")
        comes = threading.Thread(target=_start_guest, args=(site.steady, f"other-{number}"), daemon=True)
        comes.start()
        time.sleep(chance.uniform(0, MOMENTS_SECONDS))
        kills[victim] += _kill(site, victim, f"other-{number}")
        comes.join()
        back.append(site.others_back(f"round {number}"))
    site.figures |= {
        "kills": sum(kills.values()),
        **{f"kills_of_{victim}": count for victim, count in kills.items()},
        "back_max_seconds": max(back),
    }


def _full_disk(site: Site) -> None:
    """Starts are refused with a reason, running guests continue, and the pool recovers once there is space."""
    lab, pool = site.lab, site.pool
    lab.say("the disk under the ledger is full")
    pool.disk.fill()
    refused = ""
    with contextlib.suppress(Refused):
        for number in range(FULL_TRIES):
            name = f"full-{number}"
            try:
                site.near.start_bare(name, 256, SLICE_MIB)
            except Refused as error:
                refused = str(error)
                break
            site.near.vm("stop", name, "--now")
    lab.holds("full_disk", "full" in refused, f"no start was refused because of the full disk: {refused!r}")
    pool.disk.make_room()
    begin = time.monotonic()
    pool.until("the manager writes again", lambda: pool.status()["ledger_error"] is None, BACK_SECONDS)
    site.figures["full_disk_again_seconds"] = time.monotonic() - begin
    site.figures["full_disk_refused"] = int(bool(refused))
    site.others_back("full disk")
    site.near.start_bare("after", 256, SLICE_MIB * OTHERS)
    site.others_back("after the full disk")


def _partition(site: Site, wire: Wire) -> None:
    """A dead guest's slices pass to another host during the partition, and stay with that host after it."""
    lab, pool = site.lab, site.pool
    site.steady.start_bare("cut-off", 256, SLICE_MIB * OTHERS)
    lab.say(f"the steady guest's host is disconnected for {PARTITION_SECONDS} s; a guest there is killed")
    begin = time.monotonic()
    wire.cut()
    site.steady.kill_guest("cut-off")
    back = 0.0
    try:
        back = pool.until_free(OTHERS, LEASE_SECONDS + BACK_SECONDS)
        site.near.start_bare("taker", 256, SLICE_MIB * OTHERS)
    except LabError as error:
        lab.say(str(error))
        site.lost = max(site.lost, OTHERS - pool.counts()["free"])
    try:
        site.near.start_bare("beyond", 256, SLICE_MIB)
        lab.holds("partition", False, "slices of the disconnected host were assigned to another")
    except Refused as error:
        lab.holds("partition.refused", "slices" in str(error), f"the start was refused for another reason: {error}")
    time.sleep(max(0.0, begin + PARTITION_SECONDS - time.monotonic()))
    wire.heal()
    healed = time.monotonic()
    site.steady.until_up(BACK_SECONDS)
    site.figures |= {
        "partition_seconds": healed - begin,
        "partition_back_seconds": back,
        "partition_lease_again_seconds": time.monotonic() - healed,
    }
    hosts = {host["host"]: host["slices"] for host in pool.status()["hosts"]}
    expected = {"host-a": STEADY_SLICES, "host-b": OTHERS}
    lab.holds("partition.owners", hosts == expected, f"slices by host are {hosts}, expected {expected}")
    lab.at_most("partition_back_seconds", back, LEASE_SECONDS * 2)
    site.others_back("partition")


def _lost_files(site: Site) -> None:
    """Removes or truncates slice files: free ones, assigned ones, and finally one of the steady guest."""
    lab, pool, host = site.lab, site.pool, site.near
    refused = 0
    for number, (harm, assigned) in enumerate((harm, held) for held in (False, True) for harm in ("removed", "cut")):
        what = f"a file of {'an assigned' if assigned else 'a free'} slice is {harm}"
        lab.say(what)
        victim = pool.free_files()[0]
        if assigned:
            host.start_bare(f"owner-{number}", 256, SLICE_MIB * OTHERS)
        if harm == "removed":
            victim.unlink()
        else:
            with victim.open("r+b") as file:
                file.truncate(0)
        site.others_back(what)
        refused += _until_all_start(site, what)
    own = next(slice_["path"] for slice_ in site.steady.explain("steady")["mapped"])
    lab.say("a file of the steady guest is removed")
    next(file for file in pool.files() if str(file) == own).unlink()
    _until_all_start(site, "a file of the steady guest is removed")
    site.figures |= {"files_harmed": 5, "files_refused": refused}


def _until_all_start(site: Site, what: str) -> int:
    """Starts and stops a guest on all slices except the steady guest's; returns how many starts were refused before."""
    refused = 0
    deadline = time.monotonic() + BACK_SECONDS
    while True:
        try:
            site.near.start_bare(f"again-{refused}", 256, SLICE_MIB * OTHERS)
            break
        except Refused as error:
            refused += 1
            if time.monotonic() > deadline:
                site.lab.holds(what, False, f"no guest starts after that: {error}")
                break
            time.sleep(0.5)
    site.others_back(what)
    whole = SLICE_MIB * MIB
    sizes = {file.stat().st_size for file in site.pool.free_files()}
    site.lab.holds(f"{what}: size", sizes == {whole}, f"free slices have files of {sizes} bytes, expected {whole}")
    return refused


def _start_guest(host: Host, name: str) -> None:
    """Starts a guest; a fault may prevent that."""
    with contextlib.suppress(Refused):
        host.start_bare(name, 256, SLICE_MIB * OTHERS)


def _kill(site: Site, victim: str, name: str) -> int:
    """Kills a part and restarts it if necessary; returns the number of killed processes."""
    if victim == "manager":
        site.pool.kill_manager()
        time.sleep(0.2)
        site.pool.start_manager()
        return 1
    if victim == "host":
        site.steady.kill()
        site.steady.start()
        return 1
    return int(site.steady.kill_guest(name))


def _stop_others(host: Host) -> None:
    """Stops all guests except the steady one, repeatedly until they are gone."""
    deadline = time.monotonic() + BACK_SECONDS
    while time.monotonic() < deadline:
        others = [name for name in host.names() if name != "steady"]
        if not others:
            return
        for name in others:
            with contextlib.suppress(Refused):
                host.vm("stop", name, "--now")
        time.sleep(0.1)
