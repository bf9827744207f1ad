"""How long a slice takes to come and to go, per GiB, as a memory module and as a virtio-mem device.

Online is from the hypervisor's command (QMP) to the guest's kernel saying that all of it is online. Away is from the
host's request to the hypervisor having let go of the file, once with nothing in the slices and once with most of them
in use. Emulated, every second is too long; so each is also told as a multiple of what the same guest takes to copy as
much memory. 004 section 4.2 has 10 to 100 ms per GB for offlining, and online near zero.
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
    """Both ways, one after the other."""
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
    """All slices are there, and the guest says how much it uses."""
    znuma.balloon(guest)
    if way == "virtio-mem":
        virtio_mem.drive(guest)


def _empty(lab: Lab, host: Host, way: str) -> dict[str, Any]:
    """Takes slices that nobody uses, and brings others."""
    with PoolGuest(host, _vm("empty")) as guest:
        _ready(guest, way)
        copied = znuma.copy_seconds_per_gib(guest)
        empty = znuma.release(host, guest) / GIB
        left = znuma.node_bytes(guest, 1)
        host.pool.until_free(SLICES)
        online = _bring(host, guest, way) / GIB
    lab.at_most(f"{way} left empty", left, 0)
    return {
        "copy_seconds_per_gib": copied,
        "online_seconds_per_gib": online,
        "online_per_copy": online / copied,
        "release_empty_seconds_per_gib": empty,
        "release_empty_per_copy": empty / copied,
    }


def _used(lab: Lab, host: Host, way: str) -> dict[str, Any]:
    """Takes slices that a program uses, which keeps what it has."""
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


def _bring(host: Host, guest: PoolGuest, way: str) -> float:
    """Adds as many devices as there were, one after the other; seconds until the guest had them online, in all."""
    total = 0.0
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        for index in range(SLICES):
            wanted = (index + 1) * SLICE_MIB * MIB
            backend = {"qom-type": "memory-backend-memfd", "id": f"m{index}", "size": SLICE_MIB * MIB, "share": True}
            device = {"driver": "pc-dimm", "id": f"d{index}", "memdev": f"m{index}", "node": 1}
            if way == "virtio-mem":
                more = {"driver": "virtio-mem-pci", "bus": f"slices{index}", "requested-size": SLICE_MIB * MIB}
                device |= more
            begin = time.monotonic()
            qmp.ask("object-add", backend)
            qmp.ask("device_add", device)
            while znuma.node_bytes(guest, 1) < wanted:
                pass
            total += time.monotonic() - begin
    return total
