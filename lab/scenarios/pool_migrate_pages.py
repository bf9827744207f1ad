"""A guest of libvirt that touches its pool memory is repaired as it runs: its pages move to local memory under it.

The host is a guest of two nodes, whose second one has no cores and is the pool. In it run a pool's manager, a host's
daemon, a libvirtd and QEMU with a guest of its own, emulated within the emulation, which is a program without an
operating system. It fills part of its memory module, which lies on the host's pool node. While the host's local node
is full nothing is begun. Once there is room the pages are migrated; what is touched later comes from local memory;
the slices go back to the pool. Then the host's daemon is killed and takes the guest over again.
"""

from typing import Any

from thermolab import nested, numa, znuma
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.pool import SLICE_MIB, Watch
from thermolab.qemu import MIB

KERNELS = ("6.12",)

LOCAL_MIB, POOL_MIB = 1536, 512
INNER_LOCAL_MIB = 128
SLICES = 1
HELD_MIB, LATER_MIB = 48, 24
LEFT_MIB = 64
"""Of local memory, where there is too little for what a guest's module may need."""
LOOKS = 5
ATTEMPTS = 1000
"""A repair that is refused for want of room is tried again at each look."""


def run(lab: Lab) -> dict[str, Any]:
    """Boot the guest's guest, fill, be refused, be repaired, go on."""
    with nested.outer(lab, LOCAL_MIB, POOL_MIB) as guest:
        lab.say(f"up in {guest.boot_seconds:.1f} s")
        copied = znuma.copy_seconds_per_gib(guest)
        host = nested.Host(
            guest, SLICES, Watch(period="5s", touched="20%", attempts=ATTEMPTS), INNER_LOCAL_MIB + SLICES * SLICE_MIB
        )
        lab.say(f"libvirt and the pool are up; {host.virsh('version').splitlines()[-1]}")
        inner = nested.Inner(host, "wrong", INNER_LOCAL_MIB, SLICES * SLICE_MIB)
        lab.say(f"started in {inner.start_seconds:.1f} s")
        try:
            booted = inner.until_up()
            lab.say(f"its program was up after {booted:.1f} s")
            figures = _repair(lab, guest, host, inner)
        finally:
            host.keep_logs()
            guest.keep(inner.console)
    figures |= {"copy_seconds_per_gib": copied, "move_per_copy": figures["move_seconds_per_gib"] / copied}
    lab.say(f"{figures}")
    return figures


def _repair(lab: Lab, guest: Guest, host: nested.Host, inner: nested.Inner) -> dict[str, Any]:
    modules = {start for start, mapping in inner.modules().items() if mapping.policy == f"bind:{numa.SLOW}"}
    locks = inner.locks()
    hog = _fill(guest)
    inner.hold(HELD_MIB)
    refused = host.event(inner.name, "have room for", 120)
    lab.say(refused)
    full = _pages(inner, modules)
    guest.kill(hog)
    guest.wait_exit(hog)
    moved = host.event(inner.name, "moved to local memory: paused", 180)
    lab.say(moved)
    host.until_free(SLICES)
    repaired, looks = _pages(inner, modules), inner.looks()
    inner.until_looks(LOOKS)
    inner.hold(LATER_MIB)
    later = _pages(inner, modules)
    host.kill()
    host.start()
    inner.until_looks(LOOKS)
    record = host.explain(inner.name)
    seconds = float(host.said(" are local after ").split(" are local after ")[1].split()[0])
    left, damaged, went_on = inner.locks(), inner.damaged_bytes(), inner.looks() - looks
    host.vm("stop", inner.name, "--now")
    moved_bytes = int(moved.split(" in all, ")[1].split()[0])
    figures = {
        "pool_bytes_before": full[numa.SLOW],
        "moved_bytes": moved_bytes,
        "move_seconds": seconds,
        "move_seconds_per_gib": seconds / (moved_bytes / (1 << 30)),
        "pool_bytes_after": repaired[numa.SLOW],
        "later_bytes": later[numa.LOCAL] - repaired[numa.LOCAL],
        "later_pool_bytes": later[numa.SLOW],
        "damaged_bytes": damaged,
        "looks_after": went_on,
    }
    lab.holds("bound", len(modules) == SLICES and locks == SLICES, f"{len(modules)} modules in the pool, {locks} locks")
    lab.at_least("pool_bytes_before", full[numa.SLOW], HELD_MIB * MIB)
    lab.at_least("moved_bytes", moved_bytes, HELD_MIB * MIB)
    lab.at_most("pool_bytes_after", repaired[numa.SLOW], 0)
    lab.at_least("later_bytes", figures["later_bytes"], LATER_MIB * MIB)
    lab.at_most("later_pool_bytes", later[numa.SLOW], 0)
    lab.at_most("locks", left, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_least("looks_after", went_on, 2 * LOOKS)
    lab.holds("repaired", record["repaired"] and record["state"] == "running", f"after a restart: {record}")
    lab.holds("process", record["process"]["pid"] == inner.pid, "it is in another process")
    return figures


def _pages(inner: nested.Inner, modules: set[str]) -> dict[int, int]:
    """Bytes of the guest's modules by node."""
    found = [mapping for start, mapping in inner.modules().items() if start in modules]
    return {node: sum(mapping.bytes_on.get(node, 0) for mapping in found) for node in (numa.LOCAL, numa.SLOW)}


def _fill(guest: Guest) -> int:
    """Has a program take local memory until there is too little for a module; its pid."""
    guest.write("/proc/sys/vm/drop_caches", "3")
    lines = guest.read(f"/sys/devices/system/node/node{numa.LOCAL}/meminfo").splitlines()
    free_mib = next(int(line.split()[3]) >> 10 for line in lines if "MemFree" in line)
    argv = ["labguest", "marks", "hold", "--mark", "99", "--mib", str(free_mib - LEFT_MIB), "--node", str(numa.LOCAL)]
    pid = guest.spawn([*argv, "--every-ms", "600000"], stdout="/run/hog", stderr="/run/hog.err")
    guest.expect("/run/hog", "held_bytes", 120)
    return pid
