"""A guest of libvirt that touches its pool memory is repaired as it runs: its pages move to local memory under it.

The host is a guest of two nodes, whose second one has no cores and is the pool. In it run a pool's manager, a host's
daemon, a libvirtd and QEMU with a guest of its own, emulated within the emulation, which is a program without an
operating system. It fills part of its memory module, which lies on the host's pool node. While the host's local node
is full nothing is begun. Once there is room the pages are migrated; what is touched later comes from local memory;
the slices go back to the pool. Then the host's daemon is killed and takes the guest over again; and another guest's
host is killed in the midst of a repair, which its next start brings to an end.
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
"""Of local memory, where there is too little for what a guest's module may need."""
LOOKS = 2 * (HELD_MIB + LATER_MIB) // 4
"""All marks are looked at twice."""
# A repair that is refused for want of room is tried again at each look; and of two guests both are repaired.
WATCH = Watch(period="5s", touched="20%", budget="100%", attempts=1000)
PREFERRED, BOUND = "prefer (many)=static:0", "bind=static:0"
"""Policies of memory that was moved: where nothing was said about local nodes, and where it was."""


def run(lab: Lab) -> dict[str, Any]:
    """One guest is refused, repaired and goes on; another's host dies in the midst of its repair."""
    with nested.outer(lab, LOCAL_MIB, POOL_MIB) as guest:
        lab.say(f"up in {guest.boot_seconds:.1f} s")
        copied = znuma.copy_seconds_per_gib(guest)
        host = nested.Host(guest, SLICES, WATCH, INNER_LOCAL_MIB + SLICES * SLICE_MIB)
        lab.say(f"libvirt and the pool are up; {host.virsh('version').splitlines()[-1]}")
        try:
            figures = _repaired(lab, guest, host)
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
    """A guest that is up, and the address of its module."""
    inner = nested.Inner(host, name, INNER_LOCAL_MIB, SLICES * SLICE_MIB)
    booted = inner.until_up()
    lab.say(f"guest {name} was started in {inner.start_seconds:.1f} s, its program up after {booted:.1f} s more")
    modules = [start for start, mapping in inner.modules().items() if mapping.policy == f"bind:{numa.SLOW}"]
    lab.holds("bound", len(modules) == SLICES, f"{name}: {inner.modules()}")
    locks = inner.locks()
    lab.holds("locked", locks == SLICES, f"{name}: {locks} locks are held")
    return inner, modules[0]


def _repaired(lab: Lab, guest: Guest, host: nested.Host) -> dict[str, Any]:
    inner, module = _start(lab, host, "wrong")
    hog = _fill(guest)
    inner.hold(HELD_MIB)
    refused = host.event(inner.name, "have room for", 120)
    lab.say(refused)
    full = inner.modules()[module]
    begin = host.uptime()
    inner.until_checks(LOOKS)
    begun = host.uptime()
    guest.kill(hog)
    guest.wait_exit(hog)
    moved = host.event(inner.name, "moved to local memory: paused", 180)
    ended = host.uptime()
    lab.say(moved)
    host.until_free(SLICES)
    gap, usual = inner.gap_seconds(begun, ended), inner.gap_seconds(begin, begun)
    repaired = inner.modules()[module]
    _goes_on(lab, host, inner, module, PREFERRED)
    seconds = float(host.log_line(" are local after ").split(" are local after ")[1].split()[0])
    host.vm("stop", inner.name, "--now")
    moved_bytes = int(moved.split(" in all, ")[1].split()[0])
    lab.holds("policy", full.policy == f"bind:{numa.SLOW}", f"after a refusal: {full}")
    lab.at_least("refused_pool_bytes", full.on(numa.SLOW), HELD_MIB * MIB)
    lab.at_least("moved_bytes", moved_bytes, HELD_MIB * MIB)
    lab.at_most("pool_bytes_after", repaired.on(numa.SLOW), 0)
    return {
        "refused_pool_bytes": full.on(numa.SLOW),
        "moved_bytes": moved_bytes,
        "move_seconds": seconds,
        "move_seconds_per_gib": seconds / (moved_bytes / (1 << 30)),
        "look_gap_seconds": usual,
        "move_gap_seconds": gap,
        "pool_bytes_after": repaired.on(numa.SLOW),
    }


def _goes_on(lab: Lab, host: nested.Host, inner: nested.Inner, module: str, policy: str) -> None:
    """A guest that was moved: what it touches is local, nothing of it is harmed, and a new daemon knows it as it is."""
    before = inner.modules()[module]
    inner.until_checks(LOOKS)
    inner.hold(LATER_MIB)
    host.kill()
    host.start()
    inner.until_checks(LOOKS)
    now, damaged, locks = inner.modules()[module], inner.damaged_bytes(), inner.locks()
    record = host.explain(inner.name)
    lab.holds("moved policy", now.policy == policy, f"{inner.name}: {now}")
    lab.at_least("later_bytes", now.on(numa.LOCAL) - before.on(numa.LOCAL), LATER_MIB * MIB)
    lab.at_most("later_pool_bytes", now.on(numa.SLOW), 0)
    lab.at_most("locks", locks, 0)
    lab.at_most("damaged_bytes", damaged, 0)
    known = record["repaired"] and record["state"] == "running" and record["process"]["pid"] == inner.pid
    lab.holds("known", known, f"a new daemon says {record}")


def _interrupted(lab: Lab, host: nested.Host) -> dict[str, Any]:
    inner, module = _start(lab, host, "strict")
    inner.hold(HELD_MIB)
    deadline = time.monotonic() + 120
    while "static" not in (found := inner.modules()[module]).policy:
        if time.monotonic() > deadline:
            raise GuestTimeout(f"nobody repairs guest {inner.name}: {found}")
    host.kill()
    left = inner.modules()[module]
    locks = inner.locks()
    lab.say(f"killed in the midst of a move: {found}, and then {left}, {locks} locks")
    host.start()
    while not host.explain(inner.name)["repaired"]:
        if time.monotonic() > deadline + 120:
            raise GuestTimeout(f"guest {inner.name} is not repaired after its host's restart")
        time.sleep(0.5)
    host.until_free(SLICES)
    lab.at_most("interrupted_pool_bytes", inner.modules()[module].on(numa.SLOW), 0)
    _goes_on(lab, host, inner, module, BOUND)
    host.vm("stop", inner.name, "--now")
    return {"interrupted_left_bytes": left.on(numa.SLOW), "interrupted_locks": locks}


def _fill(guest: Guest) -> int:
    """Has a program take local memory until there is too little for a module; its pid."""
    guest.write("/proc/sys/vm/drop_caches", "3")
    lines = guest.read(f"/sys/devices/system/node/node{numa.LOCAL}/meminfo").splitlines()
    free_mib = next(int(line.split()[3]) >> 10 for line in lines if "MemFree" in line)
    argv = ["labguest", "marks", "hold", "--mark", "99", "--mib", str(free_mib - LEFT_MIB), "--node", str(numa.LOCAL)]
    pid = guest.spawn([*argv, "--every-ms", "600000"], stdout="/run/hog", stderr="/run/hog.err")
    guest.expect("/run/hog", "held_bytes", 120)
    return pid
