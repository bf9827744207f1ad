"""A full guest keeps its pool memory: its release is refused before it starts, and no program in the guest is killed.

If a guest is requested to release memory that it cannot spare, it neither refuses nor complies: its kernel kills
programs. The host therefore checks first, from the memory statistics of the balloon driver, or without one from the
memory ever touched. Once the guest has free memory, the same release succeeds.
"""

from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

SLICES = 3
LOCAL_MIB = 640
LOCAL_HELD_MIB, POOL_HELD_MIB = 360, 320
"""Together with the guest's kernel and programs, more than local memory. Each part is bound to its node: a program that
spills into memory that its kernel may not use itself is killed for lack of page tables, with or without a release."""


def run(lab: Lab) -> dict[str, Any]:
    """Fills the guest, requests the release, frees memory, and requests it again."""
    movable = "memhp_default_state=online_movable"
    with Pool(lab, SLICES) as pool:
        host = pool.host("host-a", Watch(attempts=0))
        with PoolGuest(host, Vm("full", LOCAL_MIB, SLICES * SLICE_MIB, cmdline=movable)) as guest:
            balloon = znuma.balloon(guest)
            held_mib = (LOCAL_HELD_MIB, POOL_HELD_MIB)
            marks = [znuma.hold(guest, node, mib, node=node) for node, mib in enumerate(held_mib)]
            driver = "a balloon driver" if balloon else "no balloon driver"
            lab.say(f"the guest holds {LOCAL_HELD_MIB + POOL_HELD_MIB} MiB, and has {driver}")
            reason, asked = znuma.refused(host, "full"), host.explain("full")
            damaged, killed = sum(held.damaged_bytes() for held in marks), znuma.out_of_memory(guest)
            alive, before = all(held.is_alive() for held in marks), znuma.node_bytes(guest, 1)
            marks[0].drop()
            begin = pool.counts()["free"]
            released = znuma.release(host, guest)
            free_seconds = pool.until_free(SLICES)
            after, damaged = znuma.node_bytes(guest, 1), damaged + marks[1].damaged_bytes()
            killed, alive = znuma.out_of_memory(guest), alive and marks[1].is_alive()
    lab.say(f"refused: {reason}")
    figures = {
        "refused_by": asked["free_memory"]["by"],
        "used_bytes": asked["free_memory"]["used_bytes"],
        "left_bytes": asked["free_memory"]["left_bytes"],
        "oom_kills": killed,
        "damaged_bytes": damaged,
        "node_before_bytes": before,
        "node_after_bytes": after,
        "release_seconds_per_gib": released / (SLICES * SLICE_MIB / 1024),
        "free_after_release_seconds": free_seconds,
    }
    lab.holds("reason", "must stay free" in reason, f"the refusal does not state the reason: {reason}")
    lab.holds("nothing released", begin == 0, f"{begin} slices were released although the release was refused")
    lab.holds("program", alive, "a program that fills the guest exited")
    lab.at_most("oom_kills", killed, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_least("node_before_bytes", before, SLICES * SLICE_MIB * MIB)
    lab.at_most("node_after_bytes", after, 0)
    return figures
