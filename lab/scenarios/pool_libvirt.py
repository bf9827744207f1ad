"""A libvirt host: its guest sees pool memory as a NUMA node without CPUs, and releases it while it runs.

The pool is a NUMA node of the host, which is how CXL memory appears, and each slice a right to a part of it. If this
machine has only one node, that node is the pool as well: whether a guest's modules are allocated from the right node is
then visible only in their memory policy (`/proc/PID/numa_maps`), by which the host distinguishes pool from local
memory. Slice files contain nothing and serve as locks. `make test-libvirt` installs libvirt and runs this scenario,
with a private libvirtd that ends with it.
"""

import fcntl
from pathlib import Path
from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.libvirt import Libvirt, LibvirtGuest
from thermolab.pool import SLICE_MIB, Host, Pool, Watch
from thermolab.pool_guest import Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

SLICES = 2
LOCAL_MIB = 448
HELD_MIB = 100
"""Pool memory that a program in the guest holds."""
CELL_MIB = 4
"""Memory that libvirt gives the node before any slice."""


def run(lab: Lab) -> dict[str, Any]:
    """Starts a guest, observes it, restarts the daemon, releases the slices and stops the guest."""
    movable = "memhp_default_state=online_movable"
    with Pool(lab, SLICES) as pool:
        libvirt = Libvirt(pool)
        lab.say(f"{libvirt.version}")
        host = pool.host("host-a", Watch(attempts=0), hypervisor=libvirt.host())
        with LibvirtGuest(host, Vm("guest", LOCAL_MIB, SLICES * SLICE_MIB, cmdline=movable), libvirt) as guest:
            node = "/sys/devices/system/node/node1"
            cores, distance = guest.read(f"{node}/cpulist").strip(), guest.read(f"{node}/distance").split()
            before, boot = znuma.node_bytes(guest, 1), znuma.observe(host, guest, 1)
            marks = znuma.hold(guest, 1, HELD_MIB, node=1)
            seen = znuma.observe(host, guest, 3)
            locked, locks = _locked(pool), _locks(pool, guest.pid)
            host.kill()
            alone = _locked(pool)
            host.start()
            lab.say("the host's daemon was killed and restarted")
            znuma.balloon(guest)
            released = znuma.release(host, guest)
            free_seconds = pool.until_free(SLICES)
            record, xml = host.explain("guest"), libvirt.virsh("dumpxml", "guest")
            after, damaged = znuma.node_bytes(guest, 1), marks.damaged_bytes()
            killed = znuma.out_of_memory(guest)
            written = sum(file.stat().st_blocks for file in pool.files())
            _stop(host)
        left = libvirt.virsh("list", "--all", "--name").split()
    figures = {
        "libvirt": libvirt.version,
        "start_seconds": guest.start_seconds,
        "node_before_bytes": before,
        "node_after_bytes": after,
        "boot_pool_touched_bytes": boot.pool_touched_bytes,
        "pool_touched_bytes": seen.pool_touched_bytes,
        "pool_accessed_ratio": seen.pool_accessed_ratio,
        "release_seconds_per_gib": released / (SLICES * SLICE_MIB / 1024),
        "free_after_release_seconds": free_seconds,
        "damaged_bytes": damaged,
        "oom_kills": killed,
    }
    lab.say(f"{figures}")
    lab.holds("node", cores == "", f"the pool's node has cores {cores}")
    lab.holds("distance", distance == ["28", "10"], f"the pool's node is at {distance}")
    lab.at_least("node_before_bytes", before, SLICES * SLICE_MIB * MIB)
    lab.at_most("node_after_bytes", after, CELL_MIB * MIB)
    lab.at_least("pool_touched_bytes", seen.pool_touched_bytes, boot.pool_touched_bytes + HELD_MIB * MIB)
    lab.holds(
        "locks",
        (locks, locked, alone) == (SLICES, SLICES, SLICES),
        f"{locks} files open, {locked} locked, {alone} locked without the daemon",
    )
    lab.holds(
        "by", record["free_memory"]["by"] == "balloon", f"free memory was determined by {record['free_memory']['by']}"
    )
    lab.holds("modules", "ua-slice" not in xml, "libvirt still has modules that were released")
    lab.holds("files", written == 0, "slices' files were written to")
    lab.at_most("damaged_bytes", damaged, 0)
    lab.at_most("oom_kills", killed, 0)
    lab.holds("left", left == [], f"libvirt still knows {left}")
    return figures


def _locks(pool: Pool, pid: int) -> int:
    """Returns the number of slice files that a process has open."""
    files = {str(file) for file in pool.files()}
    return sum(str(link.readlink()) in files for link in Path(f"/proc/{pid}/fd").iterdir())


def _locked(pool: Pool) -> int:
    """Returns the number of slices whose lock is held."""
    count = 0
    for path in pool.files():
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                count += 1
    return count


def _stop(host: Host) -> None:
    """Stops the guest as a user does."""
    host.vm("stop", "guest", "--grace", "1s")
