"""Measures the time per GiB until a slice is online or released, as memory module and as virtio-mem device.

Online time is from the hypervisor's command (QMP) until the guest's kernel has onlined all of it. Release time is from
the host's request until the hypervisor has closed the file, once with empty slices and once with most of them in use.
Because emulation slows everything down, each time is also given as a multiple of the time in which the same guest
copies as much memory. Pond section 4.2 reports 10 to 100 ms per GB for offlining, and nearly zero for onlining.
"""

import time
from typing import Any

from thermolab import virtio_mem, znuma
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Host, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB
from thermolab.qmp import Qmp

KERNELS = ("6.12",)

SLICES = 4
GIB = SLICES * SLICE_MIB / 1024
LOCAL_MIB = 896
USED_RATIO = 0.8


def run(lab: Lab) -> dict[str, Any]:
    """Measures both ways, one after the other."""
    figures: dict[str, Any] = {}
    with Pool(lab, SLICES, [f"host-{way}" for way in virtio_mem.WAYS]) as pool:
        for way in virtio_mem.WAYS:
            host = virtio_mem.host(pool, f"host-{way}", Watch(attempts=0), way)
            name = way.replace("-", "_")
            found = _empty(lab, host, way) | _used(lab, host, way)
            lab.say(f"{way}: {found}")
            figures |= {f"{name}_{key}": value for key, value in found.items()}
    return figures


def _vm(name: str) -> Vm:
    return Vm(name, LOCAL_MIB, SLICES * SLICE_MIB, cmdline="memhp_default_state=online_movable")


def _ready(guest: PoolGuest, way: str) -> None:
    """Waits until all slices are online and the guest reports its memory use."""
    znuma.balloon(guest)
    if way == "virtio-mem":
        virtio_mem.drive(guest)


def _empty(lab: Lab, host: Host, way: str) -> dict[str, Any]:
    """Measures the release of empty slices, and the addition of others."""
    with PoolGuest(host, _vm("empty")) as guest:
        _ready(guest, way)
        copied = znuma.copy_seconds_per_gib(guest)
        empty = znuma.release(host, guest) / GIB
        left = znuma.node_bytes(guest, 1)
        host.pool.until_free(SLICES)
        online = _add(host, guest, way) / GIB
    lab.at_most(f"{way} left empty", left, 0)
    return {
        "copy_seconds_per_gib": copied,
        "online_seconds_per_gib": online,
        "online_per_copy": online / copied,
        "release_empty_seconds_per_gib": empty,
        "release_empty_per_copy": empty / copied,
    }


def _used(lab: Lab, host: Host, way: str) -> dict[str, Any]:
    """Measures the release of slices that a program uses; the program keeps its data."""
    with PoolGuest(host, _vm("used")) as guest:
        _ready(guest, way)
        copied = znuma.copy_seconds_per_gib(guest)
        marks = znuma.hold(guest, 1, round(SLICES * SLICE_MIB * USED_RATIO), node=1)
        used = znuma.release(host, guest) / GIB
        left = znuma.node_bytes(guest, 1)
        damaged, killed = marks.damaged_bytes(), znuma.out_of_memory(guest)
        host.pool.until_free(SLICES)
    lab.at_most(f"{way} damaged_bytes", damaged, 0)
    lab.at_most(f"{way} oom_kills", killed, 0)
    lab.at_most(f"{way} left used", left, 0)
    return {
        "release_used_seconds_per_gib": used,
        "release_used_per_copy": used / copied,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }


def _add(host: Host, guest: PoolGuest, way: str) -> float:
    """Adds as many devices as there were; returns the total of seconds until the guest had each of them online."""
    total = 0.0
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        for index in range(SLICES):
            expected = (index + 1) * SLICE_MIB * MIB
            backend = {"qom-type": "memory-backend-memfd", "id": f"m{index}", "size": SLICE_MIB * MIB, "share": True}
            device = {"driver": "pc-dimm", "id": f"d{index}", "memdev": f"m{index}", "node": 1}
            if way == "virtio-mem":
                more = {"driver": "virtio-mem-pci", "bus": f"slices{index}", "requested-size": SLICE_MIB * MIB}
                device |= more
            begin = time.monotonic()
            qmp.ask("object-add", backend)
            qmp.ask("device_add", device)
            while znuma.node_bytes(guest, 1) < expected:
                pass
            total += time.monotonic() - begin
    return total
