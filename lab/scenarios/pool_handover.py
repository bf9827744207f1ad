"""Guests of two hosts use the same slices in turn: no guest reads another's data, and none loses its own.

The sequence is that of Pond's figure 9, with one guest for each of its virtual machines: at t0 both hosts have slices;
at t1 and t2 guests release theirs, which are scrubbed while no guest waits for them; at t3 and t4 other guests start on
them. Every guest fills its pool memory with its own mark. Before any page of it is allocated to a program, the guest
searches all of its physical pool memory (`/proc/kcore`) for all earlier marks.
"""

from dataclasses import dataclass, field
from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.owners import OwnersWatch
from thermolab.pool import SLICE_MIB, Host, Pool, Refused, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

SLICES = 4
LOCAL_MIB = 448
MARKED_RATIO = 0.8
"""Share of a guest's pool memory that is marked; its kernel may use some pages itself."""


@dataclass(slots=True)
class Turns:
    """Findings over all guests of the sequence."""

    marks: int = 0
    leaked_bytes: int = 0
    searched_bytes: int = 0
    damaged_bytes: int = 0
    control_ratio: float = 0.0
    """Share of an existing mark that the search finds."""
    free_dirty: int = 0
    """Free slices that contained data."""
    refusal: str = ""
    """Why a guest did not start while another had the slices."""
    left_mapped: int = 0
    """Slices that a guest still had after their release."""
    release_seconds: float = 0.0
    start_seconds: list[float] = field(default_factory=list)
    free_seconds: list[float] = field(default_factory=list)

    def until_free(self, pool: Pool, slices: int) -> None:
        """Waits until `slices` slices are free, and checks that free slices contain no data."""
        self.free_seconds.append(pool.until_free(slices))
        self.free_dirty += _dirty(pool)


def run(lab: Lab) -> dict[str, Any]:
    """Runs the sequence of figure 9."""
    turns = Turns()
    with Pool(lab, SLICES, ("host-a", "host-b")) as pool:
        hosts = [pool.host(name, Watch(attempts=0)) for name in ("host-a", "host-b")]
        with OwnersWatch(hosts) as owners:
            _first_half(lab, pool, turns, *hosts)
            _second_half(lab, pool, turns, *hosts)
    figures = {
        "owners_max": owners.owners_max,
        "owner_looks": owners.samples,
        "leaked_bytes": turns.leaked_bytes,
        "looked_bytes": turns.searched_bytes,
        "own_marks_found_ratio": turns.control_ratio,
        "damaged_bytes": turns.damaged_bytes,
        "free_slices_with_data": turns.free_dirty,
        "handovers": turns.marks - 2,
        "start_seconds": max(turns.start_seconds),
        "release_running_seconds_per_gib": turns.release_seconds / (2 * SLICE_MIB / 1024),
        "free_again_seconds": max(turns.free_seconds),
    }
    lab.say(f"refused in between: {turns.refusal}; {figures}")
    lab.at_most("owners_max", owners.owners_max, 1)
    lab.at_least("owner_looks", owners.samples, 100)
    lab.at_most("leaked_bytes", turns.leaked_bytes, 0)
    lab.at_least("looked_bytes", turns.searched_bytes, (1 + 3 + 2 + 4 + 4) * SLICE_MIB * MIB)
    lab.at_least("own_marks_found_ratio", turns.control_ratio, 1.0)
    lab.at_most("damaged_bytes", turns.damaged_bytes, 0)
    lab.at_most("free_slices_with_data", turns.free_dirty, 0)
    lab.at_most("slices left", turns.left_mapped, 0)
    lab.holds(
        "short", "slices requested" in turns.refusal, f"no free slices, but the start was not refused: {turns.refusal}"
    )
    return figures


def _vm(name: str, slices: int) -> Vm:
    return Vm(name, LOCAL_MIB, slices * SLICE_MIB, cmdline="memhp_default_state=online_movable", cpus=1)


def _first_half(lab: Lab, pool: Pool, turns: Turns, a: Host, b: Host) -> None:
    """Runs t0 to t2: slices return from a guest that ends, and from one that runs."""
    lab.say("t0: a has three slices, b one")
    with PoolGuest(b, _vm("b1", 1)) as b1:
        b1_marks = _enter(turns, b1)
        with PoolGuest(a, _vm("a1", 3)) as a1:
            turns.start_seconds.append(a1.start_seconds)
            a1_marks = _enter(turns, a1)
            turns.refusal = _refused(b, "b2")
            turns.damaged_bytes += a1_marks.damaged_bytes()
        lab.say("t1: a1 has stopped; its slices return to the pool")
        turns.until_free(pool, 3)
        lab.say("t2: a2 starts on a1's slices, and releases them while it runs")
        with PoolGuest(a, _vm("a2", 2)) as a2:
            turns.start_seconds.append(a2.start_seconds)
            a2_marks = _enter(turns, a2)
            znuma.balloon(a2)
            turns.release_seconds = znuma.release(a, a2)
            turns.until_free(pool, 3)
            # All of its marks are in local memory now.
            turns.damaged_bytes += a2_marks.damaged_bytes()
            turns.left_mapped = len(a.explain("a2")["mapped"])
        turns.damaged_bytes += b1_marks.damaged_bytes()


def _second_half(lab: Lab, pool: Pool, turns: Turns, a: Host, b: Host) -> None:
    """Runs t3 and t4: guests on all slices, one of which is killed."""
    lab.say("t3: b1 has stopped; a3 starts on all four slices")
    turns.until_free(pool, SLICES)
    with PoolGuest(a, _vm("a3", SLICES)) as a3:
        turns.start_seconds.append(a3.start_seconds)
        a3_marks = _enter(turns, a3)
        turns.damaged_bytes += a3_marks.damaged_bytes()
        lab.say("t4: a3 is killed; b3 starts on its slices")
        a3.destroy()
    turns.free_seconds.append(pool.until_free(SLICES))
    with PoolGuest(b, _vm("b3", SLICES)) as b3:
        turns.start_seconds.append(b3.start_seconds)
        _enter(turns, b3)
    pool.until_free(SLICES)


def _enter(turns: Turns, guest: PoolGuest) -> znuma.Marks:
    """Searches for the marks of all earlier guests, then fills pool memory with a new mark."""
    found, searched = znuma.find(guest, list(range(1, turns.marks + 2)), 1)
    turns.leaked_bytes += sum(found)
    turns.searched_bytes += searched
    turns.marks += 1
    pool_mib = guest.vm.pool_mib or 0
    marks = znuma.hold(guest, turns.marks, round(pool_mib * MARKED_RATIO), node=1)
    if turns.marks == 1:
        # Control: the search must find a mark that exists.
        own, _ = znuma.find(guest, [turns.marks], 1)
        turns.control_ratio = own[0] / marks.held_bytes
    return marks


def _refused(host: Host, name: str) -> str:
    """Returns why a guest does not start while another one has the slices."""
    try:
        with PoolGuest(host, Vm(name, LOCAL_MIB, 2 * SLICE_MIB)):
            return "it started"
    except Refused as refused:
        return str(refused)


def _dirty(pool: Pool) -> int:
    """Returns the number of free slices that contain data."""
    free = {(slice_["emc"], slice_["index"]) for slice_ in pool.slices_by_state() if slice_["state"] == "free"}
    return sum(
        file.stat().st_blocks > 0
        for file in pool.files()
        if (int(file.parent.name.split("-")[1]), int(file.name.split("-")[1].split(".")[0])) in free
    )
