"""Two hosts' guests take turns on the slices of one pool: nobody reads what another left, and nobody loses anything.

004 figure 9, with a guest for each of its virtual machines: at t0 both hosts have slices; at t1 and t2 guests give
theirs back, which are scrubbed while nobody waits; at t3 and t4 others start on them. Every guest fills its pool memory
with a mark of its own, and looks for all earlier marks in all of its pool memory as the hardware has it
(`/proc/kcore`), before any page of it is given to a program.
"""

from dataclasses import dataclass
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
"""Of a guest's pool memory; its kernel may put a page of its own there."""


@dataclass(slots=True)
class Turns:
    """What was seen over all turns."""

    marks: int = 0
    leaked_bytes: int = 0
    looked_bytes: int = 0
    damaged_bytes: int = 0
    control_ratio: float = 0.0
    """Of a mark that is there, what is found."""
    free_dirty: int = 0
    """Free slices that held data."""


def run(lab: Lab) -> dict[str, Any]:
    """Figure 9."""
    turns = Turns()
    movable = "memhp_default_state=online_movable"
    starts: list[float] = []

    def vm(name: str, slices: int) -> Vm:
        return Vm(name, LOCAL_MIB, slices * SLICE_MIB, cmdline=movable, cpus=1)

    with Pool(lab, SLICES, ("host-a", "host-b")) as pool:
        hosts = [pool.host(name, Watch(attempts=0)) for name in ("host-a", "host-b")]
        a, b = hosts
        with OwnersWatch(hosts) as owners:
            lab.say("t0: a has three slices, b one")
            with PoolGuest(b, vm("b1", 1)) as b1:
                b1_marks = _enter(turns, b1)
                with PoolGuest(a, vm("a1", 3)) as a1:
                    starts.append(a1.start_seconds)
                    a1_marks = _enter(turns, a1)
                    reason = _refused(b, "b2")
                    turns.damaged_bytes += a1_marks.damaged_bytes()
                lab.say("t1: a1 has ended; its slices go back")
                freed = [pool.until_free(3)]
                turns.free_dirty += _dirty(pool)
                lab.say("t2: a2 starts on what a1 had, and releases it while it runs")
                with PoolGuest(a, vm("a2", 2)) as a2:
                    starts.append(a2.start_seconds)
                    a2_marks = _enter(turns, a2)
                    znuma.balloon(a2)
                    released = znuma.release(a, a2)
                    freed.append(pool.until_free(3))
                    turns.free_dirty += _dirty(pool)
                    # Its marks are in local memory now, all of them.
                    turns.damaged_bytes += a2_marks.damaged_bytes()
                    left = len(a.explain("a2")["mapped"])
                turns.damaged_bytes += b1_marks.damaged_bytes()
            lab.say("t3: b1 has ended; a3 starts on all four")
            freed.append(pool.until_free(SLICES))
            turns.free_dirty += _dirty(pool)
            with PoolGuest(a, vm("a3", SLICES)) as a3:
                starts.append(a3.start_seconds)
                a3_marks = _enter(turns, a3)
                turns.damaged_bytes += a3_marks.damaged_bytes()
                lab.say("t4: a3 dies; b3 starts on what it had")
                a3.destroy()
            freed.append(pool.until_free(SLICES))
            with PoolGuest(b, vm("b3", SLICES)) as b3:
                starts.append(b3.start_seconds)
                _enter(turns, b3)
            pool.until_free(SLICES)
    figures = {
        "owners_max": owners.owners_max,
        "owner_looks": owners.samples,
        "leaked_bytes": turns.leaked_bytes,
        "looked_bytes": turns.looked_bytes,
        "own_marks_found_ratio": turns.control_ratio,
        "damaged_bytes": turns.damaged_bytes,
        "free_slices_with_data": turns.free_dirty,
        "handovers": turns.marks - 2,
        "start_seconds": max(starts),
        "release_running_seconds_per_gib": released / (2 * SLICE_MIB / 1024),
        "free_again_seconds": max(freed),
    }
    lab.say(f"refused in between: {reason}; {figures}")
    lab.at_most("owners_max", owners.owners_max, 1)
    lab.at_least("owner_looks", owners.samples, 100)
    lab.at_most("leaked_bytes", turns.leaked_bytes, 0)
    lab.at_least("looked_bytes", turns.looked_bytes, (1 + 3 + 2 + 4 + 4) * SLICE_MIB * MIB)
    lab.at_least("own_marks_found_ratio", turns.control_ratio, 1.0)
    lab.at_most("damaged_bytes", turns.damaged_bytes, 0)
    lab.at_most("free_slices_with_data", turns.free_dirty, 0)
    lab.at_most("slices left", left, 0)
    lab.holds("short", "slices wanted" in reason, f"a pool without free slices gave some, or said: {reason}")
    return figures


def _enter(turns: Turns, guest: PoolGuest) -> znuma.Marks:
    """Looks for the marks of all earlier guests, then leaves one."""
    found, looked = znuma.find(guest, list(range(1, turns.marks + 2)), 1)
    turns.leaked_bytes += sum(found)
    turns.looked_bytes += looked
    turns.marks += 1
    pool_mib = guest.vm.pool_mib or 0
    marks = znuma.hold(guest, turns.marks, round(pool_mib * MARKED_RATIO), node=1)
    if turns.marks == 1:
        # Who finds nothing must be one who would.
        own, _ = znuma.find(guest, [turns.marks], 1)
        turns.control_ratio = own[0] / marks.held_bytes
    return marks


def _refused(host: Host, name: str) -> str:
    """Why a guest does not start while another has the slices."""
    try:
        with PoolGuest(host, Vm(name, LOCAL_MIB, 2 * SLICE_MIB)):
            return "it started"
    except Refused as refused:
        return str(refused)


def _dirty(pool: Pool) -> int:
    """Slices that nobody has, and that hold data."""
    free = {(slice_["emc"], slice_["index"]) for slice_ in pool.slices_by_state() if slice_["state"] == "free"}
    return sum(
        file.stat().st_blocks > 0
        for file in pool.files()
        if (int(file.parent.name.split("-")[1]), int(file.name.split("-")[1].split(".")[0])) in free
    )
