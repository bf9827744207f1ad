"""How long a slice takes to come and to go, per GiB: online, and back again when empty and when in use.

Online is from the hypervisor's command (QMP) to the guest's kernel saying that all of it is online. Away is from the
command to the hypervisor having let go of the file, once with nothing in the slices and once with most of them in use.
Emulated, every second is too long; so each is also told as a multiple of what the same guest takes to copy as much
memory. 004 section 4.2 has 10 to 100 ms per GB for offlining, and online near zero.
"""

import time
from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Host, Pool, PoolGuest, Vm, Watch
from thermolab.qemu import MIB
from thermolab.qmp import Qmp

KERNELS = ("6.12",)

SLICES = 4
LOCAL_MIB = 896
USED_RATIO = 0.8
COPIED_MIB = 128


def run(lab: Lab) -> dict[str, Any]:
    """Take empty slices, bring them back, use them, take them again."""
    gib = SLICES * SLICE_MIB / 1024
    movable = "memhp_default_state=online_movable"
    with Pool(lab, SLICES) as pool:
        host = pool.host("host-a", Watch(attempts=0))
        with PoolGuest(host, Vm("guest", LOCAL_MIB, SLICES * SLICE_MIB, cmdline=movable)) as guest:
            znuma.balloon(guest)
            copied = _copy(guest)
            empty = znuma.release(host, guest)
            onlined = _bring(host, guest)
            marks = znuma.hold(guest, 1, round(SLICES * SLICE_MIB * USED_RATIO), node=1)
            used = _take(host, guest)
            damaged, killed = marks.damaged_bytes(), znuma.out_of_memory(guest)
            left = znuma.node_bytes(guest, 1)
    figures = {
        "copy_seconds_per_gib": copied,
        "online_seconds_per_gib": onlined / gib,
        "release_empty_seconds_per_gib": empty / gib,
        "release_used_seconds_per_gib": used / gib,
        "online_per_copy": onlined / gib / copied,
        "release_empty_per_copy": empty / gib / copied,
        "release_used_per_copy": used / gib / copied,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }
    lab.say(f"{figures}")
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_most("oom_kills", killed, 0)
    lab.at_most("left", left, 0)
    return figures


def _copy(guest: PoolGuest) -> float:
    """Seconds that the guest takes to copy a GiB of its memory."""
    there = "/dev/shm/from"
    guest.run(["dd", "if=/dev/zero", f"of={there}", "bs=1M", f"count={COPIED_MIB}"], timeout_s=120)
    # Over itself, so that no page has to be made first.
    again = ["dd", f"if={there}", f"of={there}.copy", "bs=1M", "conv=notrunc"]
    guest.run(again, timeout_s=120)
    begin = time.monotonic()
    guest.run(again, timeout_s=120)
    took = time.monotonic() - begin
    guest.run(["rm", there, f"{there}.copy"])
    return took / (COPIED_MIB / 1024)


def _bring(host: Host, guest: PoolGuest) -> float:
    """Adds as many modules as there were, one after the other; seconds until the guest had them online, in all."""
    total = 0.0
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        for index in range(SLICES):
            wanted = (index + 1) * SLICE_MIB * MIB
            backend = {"qom-type": "memory-backend-memfd", "id": f"m{index}", "size": SLICE_MIB * MIB, "share": True}
            begin = time.monotonic()
            qmp.ask("object-add", backend)
            qmp.ask("device_add", {"driver": "pc-dimm", "id": f"d{index}", "memdev": f"m{index}", "node": 1})
            while znuma.node_bytes(guest, 1) < wanted:
                pass
            total += time.monotonic() - begin
    return total


def _take(host: Host, guest: PoolGuest) -> float:
    """Takes them away again; seconds until the hypervisor had let go, in all."""
    total = 0.0
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        for index in range(SLICES):
            begin = time.monotonic()
            qmp.ask("device_del", {"id": f"d{index}"})
            qmp.event("DEVICE_DELETED", device=f"d{index}")
            qmp.ask("object-del", {"id": f"m{index}"})
            total += time.monotonic() - begin
    return total
