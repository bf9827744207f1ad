"""A libvirt guest that touches its pool memory is mitigated while it runs: its pages migrate to local memory.

The host is a guest with two nodes, of which the second has no CPUs and is the pool. It runs a pool manager, a host
daemon, a libvirtd and QEMU with a nested guest, emulated within the emulation, which is a program without an operating
system. It fills part of its memory module, which is on the host's pool node. While the host's local node is full, no
mitigation starts. Once there is free memory, the pages are migrated, further allocations come from local memory, and
the slices return to the pool. Then the host daemon is killed and adopts the guest after its restart; and the daemon is
killed during the mitigation of another guest, which its next start completes.
"""

import time
from typing import Any

from thermolab import nested, numa, znuma
from thermolab.errors import GuestTimeout
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
"""Local memory left free, less than a guest's module may need."""
CHECKS = 2 * (HELD_MIB + LATER_MIB) // 4
"""Number of checks in which all marks are checked twice."""
# A mitigation refused for lack of memory is retried at each sample; both guests are mitigated.
WATCH = Watch(period="5s", touched="20%", budget="100%", attempts=1000)
PREFERRED, BOUND = "prefer (many)=static:0", "bind=static:0"
"""Memory policies after migration: without configured local nodes, and with them."""


def run(lab: Lab) -> dict[str, Any]:
    """Mitigates one guest after a refusal; kills the daemon during the mitigation of another."""
    with nested.outer(lab, LOCAL_MIB, POOL_MIB) as guest:
        lab.say(f"up in {guest.boot_seconds:.1f} s")
        copied = znuma.copy_seconds_per_gib(guest)
        host = nested.Host(guest, SLICES, WATCH, INNER_LOCAL_MIB + SLICES * SLICE_MIB)
        lab.say(f"libvirt and the pool are up; {host.virsh('version').splitlines()[-1]}")
        try:
            figures = _mitigated(lab, guest, host)
            host.kill()
            host.configure(local_nodes=str(numa.LOCAL))
            host.start()
            figures |= _interrupted(lab, host)
        finally:
            host.keep_logs()
    figures |= {"copy_seconds_per_gib": copied, "move_per_copy": figures["move_seconds_per_gib"] / copied}
    lab.say(f"{figures}")
    return figures


def _start(lab: Lab, host: nested.Host, name: str) -> tuple[nested.Inner, str]:
    """Starts a guest; returns it once it is up, with the address of its module."""
    inner = nested.Inner(host, name, INNER_LOCAL_MIB, SLICES * SLICE_MIB)
    booted = inner.until_up()
    lab.say(f"guest {name} was started in {inner.start_seconds:.1f} s, its program up after {booted:.1f} s more")
    modules = [start for start, mapping in inner.modules().items() if mapping.policy == f"bind:{numa.SLOW}"]
    lab.holds("bound", len(modules) == SLICES, f"{name}: {inner.modules()}")
    locks = inner.locks()
    lab.holds("locked", locks == SLICES, f"{name}: {locks} locks are held")
    return inner, modules[0]


def _mitigated(lab: Lab, guest: Guest, host: nested.Host) -> dict[str, Any]:
    inner, module = _start(lab, host, "wrong")
    hog = _fill(guest)
    inner.hold(HELD_MIB)
    refused = host.event(inner.name, "bytes available", 120)
    lab.say(refused)
    full = inner.modules()[module]
    begin = host.uptime()
    inner.until_checks(CHECKS)
    begun = host.uptime()
    guest.kill(hog)
    guest.wait_exit(hog)
    moved = host.event(inner.name, "moved to local memory: paused", 180)
    ended = host.uptime()
    lab.say(moved)
    host.until_free(SLICES)
    gap, usual = inner.gap_seconds(begun, ended), inner.gap_seconds(begin, begun)
    mitigated = inner.modules()[module]
    _check_after_move(lab, host, inner, module, PREFERRED)
    seconds = float(host.log_line(" bytes from node ").split(" in ")[-1].split()[0])
    host.vm("stop", inner.name, "--now")
    moved_bytes = int(moved.split(" in all, ")[1].split()[0])
    lab.holds("policy", full.policy == f"bind:{numa.SLOW}", f"after a refusal: {full}")
    lab.at_least("refused_pool_bytes", full.on(numa.SLOW), HELD_MIB * MIB)
    lab.at_least("moved_bytes", moved_bytes, HELD_MIB * MIB)
    lab.at_most("pool_bytes_after", mitigated.on(numa.SLOW), 0)
    return {
        "refused_pool_bytes": full.on(numa.SLOW),
        "moved_bytes": moved_bytes,
        "move_seconds": seconds,
        "move_seconds_per_gib": seconds / (moved_bytes / (1 << 30)),
        "look_gap_seconds": usual,
        "move_gap_seconds": gap,
        "pool_bytes_after": mitigated.on(numa.SLOW),
    }


def _check_after_move(lab: Lab, host: nested.Host, inner: nested.Inner, module: str, policy: str) -> None:
    """Checks that new allocations are local, that no data is damaged, and that a restarted daemon adopts the guest."""
    before = inner.modules()[module]
    inner.until_checks(CHECKS)
    inner.hold(LATER_MIB)
    host.kill()
    host.start()
    inner.until_checks(CHECKS)
    now, damaged, locks = inner.modules()[module], inner.damaged_bytes(), inner.locks()
    record = host.explain(inner.name)
    lab.holds("moved policy", now.policy == policy, f"{inner.name}: {now}")
    lab.at_least("later_bytes", now.on(numa.LOCAL) - before.on(numa.LOCAL), LATER_MIB * MIB)
    lab.at_most("later_pool_bytes", now.on(numa.SLOW), 0)
    lab.at_most("locks", locks, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    known = record["mitigated"] and record["state"] == "running" and record["process"]["pid"] == inner.pid
    lab.holds("known", known, f"the restarted daemon reports {record}")


def _interrupted(lab: Lab, host: nested.Host) -> dict[str, Any]:
    inner, module = _start(lab, host, "strict")
    inner.hold(HELD_MIB)
    deadline = time.monotonic() + 120
    while "static" not in (found := inner.modules()[module]).policy:
        if time.monotonic() > deadline:
            raise GuestTimeout(f"the mitigation of guest {inner.name} does not start: {found}")
    host.kill()
    left = inner.modules()[module]
    locks = inner.locks()
    lab.say(f"killed during a migration: {found}, afterwards {left}, {locks} locks")
    host.start()
    while not host.explain(inner.name)["mitigated"]:
        if time.monotonic() > deadline + 120:
            raise GuestTimeout(f"guest {inner.name} is not mitigated after its host's restart")
        time.sleep(0.5)
    host.until_free(SLICES)
    lab.at_most("interrupted_pool_bytes", inner.modules()[module].on(numa.SLOW), 0)
    _check_after_move(lab, host, inner, module, BOUND)
    host.vm("stop", inner.name, "--now")
    return {"interrupted_left_bytes": left.on(numa.SLOW), "interrupted_locks": locks}


def _fill(guest: Guest) -> int:
    """Starts a program that takes local memory until too little is free for a module; returns its pid."""
    guest.write("/proc/sys/vm/drop_caches", "3")
    lines = guest.read(f"/sys/devices/system/node/node{numa.LOCAL}/meminfo").splitlines()
    free_mib = next(int(line.split()[3]) >> 10 for line in lines if "MemFree" in line)
    argv = ["labguest", "marks", "hold", "--mark", "99", "--mib", str(free_mib - LEFT_MIB), "--node", str(numa.LOCAL)]
    pid = guest.spawn([*argv, "--every-ms", "600000"], stdout="/run/hog", stderr="/run/hog.err")
    guest.expect("/run/hog", "held_bytes", 120)
    return pid
