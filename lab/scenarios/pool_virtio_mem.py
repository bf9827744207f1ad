"""Slices as virtio-mem devices come and go as memory modules do, and guests that have them are mitigated.

A host with that setting starts a guest, which fills its far node with a mark, is refused a release while it has too
little free memory for that data, and releases its slices once it has enough. Before that the daemon is killed during a
release and restarted with the other setting: it cancels the request, and requests slices from the running guest in the
way in which the guest has them. The next guest searches all of its pool memory for the first guest's marks. Its CPUs
are stopped when its slices are requested, so that the request is cancelled after its time limit; when they continue,
the slices are requested again and released unused. A third guest exceeds its prediction and is moved to local memory,
slices included, while it runs.
"""

from typing import Any

from thermolab import virtio_mem, znuma
from thermolab.lab import Lab
from thermolab.owners import OwnersWatch
from thermolab.pool import SLICE_MIB, Host, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

POOL_MIB = 256
SLICES = POOL_MIB // SLICE_MIB
GIB = POOL_MIB / 1024
MOVABLE = "memhp_default_state=online_movable"
CALM_MIB, WRONG_MIB = 640, 448
"""Local memory of the guests whose slices are requested, and of the guest that is moved."""
LOCAL_HELD_MIB, POOL_HELD_MIB = 400, 205
"""Together with the guest's kernel and programs, more than local memory."""
SHORT_LIMIT = "500ms"
"""Time limit for the release of a slice by a guest whose CPUs are stopped."""
PERIOD_SECONDS = 3
SMALL_MIB, LARGE_MIB = 32, 420
"""Sizes within and beyond the prediction."""
PAUSE_MAX_SECONDS = 1.0


def run(lab: Lab) -> dict[str, Any]:
    """Runs the three guests one after the other."""
    with Pool(lab, SLICES, ("host-a", "host-b")) as pool:
        calm = virtio_mem.host(pool, "host-a", Watch(attempts=0), "virtio-mem", threads="single")
        strict = virtio_mem.host(pool, "host-b", Watch(period=f"{PERIOD_SECONDS}s"), "virtio-mem", threads="single")
        with OwnersWatch([calm, strict]) as owners:
            figures = _fill_and_give(lab, calm)
            virtio_mem.restart(calm, "virtio-mem")
            figures |= _give_unused(lab, calm)
            figures |= _mitigate(lab, strict)
    figures |= {"owners_max": owners.owners_max, "owner_looks": owners.samples}
    lab.at_most("owners_max", owners.owners_max, 1)
    lab.at_least("owner_looks", owners.samples, 100)
    lab.say(f"{figures}")
    return figures


def _fill_and_give(lab: Lab, host: Host) -> dict[str, Any]:
    with PoolGuest(host, Vm("first", CALM_MIB, POOL_MIB, cmdline=MOVABLE, cpus=1)) as guest:
        online = virtio_mem.drive(guest)
        before, cores = znuma.node_bytes(guest, 1), guest.read("/sys/devices/system/node/node1/cpulist").strip()
        distance = guest.read("/sys/devices/system/node/node1/distance").split()[0]
        znuma.balloon(guest)
        copied = znuma.copy_seconds_per_gib(guest)
        with virtio_mem.paused(host, guest):
            virtio_mem.leave_request(host, guest)
            left = virtio_mem.asked_bytes(host, guest)
            virtio_mem.restart(host, "dimm")
            cancelled = left - virtio_mem.asked_bytes(host, guest)
        local, pool = (
            znuma.hold(guest, node + 1, mib, node=node) for node, mib in enumerate((LOCAL_HELD_MIB, POOL_HELD_MIB))
        )
        own, _ = znuma.find(guest, [2], 1)
        reason = znuma.refused(host, "first")
        begun = host.pool.counts()["free"]
        alive, damaged = local.is_alive() and pool.is_alive(), local.damaged_bytes() + pool.damaged_bytes()
        local.drop()
        released = znuma.release(host, guest)
        free_seconds = host.pool.until_free(SLICES)
        after, damaged = znuma.node_bytes(guest, 1), damaged + pool.damaged_bytes()
        killed, alive = znuma.out_of_memory(guest), alive and pool.is_alive()
    lab.say(f"refused: {reason}")
    lab.at_least("taken_back_bytes", cancelled, SLICE_MIB * MIB)
    lab.at_least("node_bytes", before, POOL_MIB * MIB)
    lab.holds("node", (cores, distance) == ("", "28"), f"its cores are {cores!r}, its distance is {distance}")
    lab.at_least("own_marks_found_ratio", own[0] / pool.held_bytes, 1.0)
    lab.holds("reason", "must stay free" in reason, f"the refusal does not state the reason: {reason}")
    lab.holds("nothing released", begun == 0, f"{begun} slices were released although the release was refused")
    lab.holds("programs", alive, "a program in the guest exited")
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_most("oom_kills", killed, 0)
    lab.at_most("node_after_bytes", after, 0)
    return {
        "node_bytes": before,
        "taken_back_bytes": cancelled,
        "own_marks_found_ratio": own[0] / pool.held_bytes,
        "online_seconds_per_gib": online / GIB,
        "copy_seconds_per_gib": copied,
        "release_used_seconds_per_gib": released / GIB,
        "release_used_per_copy": released / GIB / copied,
        "free_after_release_seconds": free_seconds,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }


def _give_unused(lab: Lab, host: Host) -> dict[str, Any]:
    with PoolGuest(host, Vm("second", CALM_MIB, POOL_MIB, cmdline=MOVABLE, cpus=1)) as guest:
        virtio_mem.drive(guest)
        leaked, searched = znuma.find(guest, [1, 2], 1)
        znuma.balloon(guest)
        copied = znuma.copy_seconds_per_gib(guest)
        virtio_mem.restart(host, "virtio-mem", within=SHORT_LIMIT)
        with virtio_mem.paused(host, guest):
            kept = znuma.kept(host, "second")
            asked = virtio_mem.asked_bytes(host, guest)
            virtio_mem.restart(host, "virtio-mem")
        # The manager repeats its request.
        host.pool.until_free(SLICES)
        released = znuma.offline_seconds(host.explain("second"))
        after = znuma.node_bytes(guest, 1)
    lab.say(f"kept: {kept}")
    lab.holds("cancelled", "the request is withdrawn" in kept, f"the time limit is not reported as the reason: {kept}")
    lab.at_most("asked_bytes", asked, 0)
    dirty = sum(file.stat().st_blocks > 0 for file in host.pool.free_files())
    lab.at_most("leaked_bytes", sum(leaked), 0)
    lab.at_least("looked_bytes", searched, POOL_MIB * MIB)
    lab.at_most("node_after_empty_bytes", after, 0)
    lab.at_most("free_slices_with_data", dirty, 0)
    return {
        "leaked_bytes": sum(leaked),
        "looked_bytes": searched,
        "release_empty_seconds_per_gib": released / GIB,
        "release_empty_per_copy": released / GIB / copied,
        "free_slices_with_data": dirty,
    }


def _mitigate(lab: Lab, host: Host) -> dict[str, Any]:
    with PoolGuest(host, Vm("wrong", WRONG_MIB, POOL_MIB, cpus=1)) as guest:
        virtio_mem.drive(guest)
        small = znuma.hold(guest, 3, SMALL_MIB)
        virtio_mem.restart(host, "dimm")
        argv = ["labguest", "marks", "hold", "--mark", "4", "--mib", str(LARGE_MIB), "--every-ms", "100"]
        large = guest.spawn(argv, stdout="/run/marks.4")
        moved = host.event("wrong", "moved to local memory", 180)
        guest.follow()
        back = host.pool.until_free(SLICES)
        guest.expect("/run/marks.4", "damaged_bytes", 120)
        marks = znuma.Marks(guest, large, LARGE_MIB * MIB, "/run/marks.4")
        damaged = small.damaged_bytes() + marks.damaged_bytes()
        alive, killed = small.is_alive() and marks.is_alive(), znuma.out_of_memory(guest)
        record, node = host.explain("wrong"), znuma.node_bytes(guest, 1)
    pause = float(moved["what"].split("paused for ")[1].split()[0])
    lab.say(moved["what"])
    lab.holds("once", record["mitigated"] and not record["mapped"], f"it still has slices: {record['mapped']}")
    lab.holds("programs moved", alive, "a program in the moved guest exited")
    lab.at_most("moved_damaged_bytes", damaged, 0)
    lab.at_most("moved_oom_kills", killed, 0)
    lab.at_most("pause_seconds", pause, PAUSE_MAX_SECONDS)
    lab.at_least("moved_node_bytes", node, POOL_MIB * MIB)
    return {
        "pause_seconds": pause,
        "move_seconds": float(moved["what"].split(" s, ")[1].split()[0]),
        "slices_back_seconds": back,
        "moved_damaged_bytes": damaged,
        "moved_node_bytes": node,
    }
