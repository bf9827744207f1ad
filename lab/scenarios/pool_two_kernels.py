"""Two machines, each with a kernel of its own, use slices of one device in turn: no slice ever has two owners.

Both guests have the same file behind their CXL expander, as two machines have a device with two ports. The pool manager
assigns its slices, and the daemon of each machine brings their memory blocks online and takes them offline. No lock is
shared between the kernels. Programs fill pool memory with marks and check them all the time; before a program of the
new owner uses a slice, the kernel's whole pool memory is searched for the marks of earlier owners.

A machine that loses its daemon, or stands still for several leases, keeps its slices, and its data is intact
afterwards. The slices of a machine that is gone are assigned to another one only after an operator has said so.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from thermolab import cxl
from thermolab.errors import CommandFailed
from thermolab.lab import Lab
from thermolab.members import Member
from thermolab.pool import LEASE_SECONDS, SLICE_MIB, Pool, Refused

KERNELS = (cxl.KERNEL,)

SLICES = 8
LOCAL_MIB = 1280
HALF = SLICES // 2
MARKED_RATIO = 0.7
"""Share of the pool memory that a program fills; page tables and the kernel's reserves need some of its node."""


@dataclass(slots=True)
class Seen:
    """Findings at all steps."""

    members: tuple[Member, ...] = ()
    """The machines that run."""
    owners_max: int = 0
    owner_checks: int = 0
    control_owners: int = 0
    """Owners of a slice that is online in both kernels."""
    leaked_bytes: int = 0
    searched_bytes: int = 0
    damaged_bytes: int = 0
    mark_checks: int = 0
    control_bytes: int = 0

    def owners(self) -> None:
        """Counts how many kernels have each slice online."""
        self.owners_max = max(self.owners_max, self.most_owners())
        self.owner_checks += 1

    def most_owners(self) -> int:
        """Returns the most kernels that have the same slice online."""
        owned = [member.owned() for member in self.members]
        return max(sum(at in of for of in owned) for at in range(SLICES))

    def control(self) -> None:
        """Brings a slice online in both kernels by hand, which the count must show, and offline again."""
        for member in self.members:
            member.set_block(0, "online_movable")
        self.control_owners = self.most_owners()
        for member in self.members:
            member.set_block(0, "offline")

    def enters(self, member: Member, *earlier: int) -> None:
        """Searches a machine's pool memory for the marks of earlier owners."""
        found = member.find(*earlier)
        self.leaked_bytes += sum(found["found_bytes"])
        self.searched_bytes += found["searched_bytes"]

    def intact(self, member: Member, mark: int) -> None:
        """Waits for two more checks of a mark, and counts what was found damaged until then."""
        before = len(member.checks(mark))

        def checked() -> bool:
            self.owners()
            return len(member.checks(mark)) >= before + 2

        member.until(f"mark {mark} is checked", checked)
        checks = member.checks(mark)
        self.damaged_bytes += sum(checks)
        self.mark_checks += len(checks)


def run(lab: Lab) -> dict[str, Any]:
    """Runs both machines."""
    seen = Seen()
    figures: dict[str, Any] = {}
    with (
        Pool(lab, SLICES, ("host-a", "host-b"), shared=True) as pool,
        Member(pool, "host-a", LOCAL_MIB) as a,
        Member(pool, "host-b", LOCAL_MIB) as b,
    ):
        seen.members = (a, b)
        seen.control()
        seen.owners()
        lab.holds("nothing", not a.owned() | b.owned(), f"before anything was assigned: {a.owned()}, {b.owned()}")
        figures |= _in_turn(lab, pool, seen, a, b)
        figures |= _stands_still(lab, pool, seen, a, b)
        figures |= _is_gone(lab, pool, seen, a, b)
    lab.at_most("owners_max", seen.owners_max, 1)
    lab.at_least("owner_checks", seen.owner_checks, 20)
    lab.at_least("control_owners", seen.control_owners, 2)
    lab.at_most("leaked_bytes", seen.leaked_bytes, 0)
    lab.at_least("searched_bytes", seen.searched_bytes, 3 * HALF * SLICE_MIB << 20)
    lab.at_least("control_bytes", seen.control_bytes, 1 << 20)
    lab.at_most("damaged_bytes", seen.damaged_bytes, 0)
    lab.at_least("mark_checks", seen.mark_checks, 10)
    return {
        "owners_max": seen.owners_max,
        "owner_checks": seen.owner_checks,
        "control_owners": seen.control_owners,
        "leaked_bytes": seen.leaked_bytes,
        "searched_bytes": seen.searched_bytes,
        "control_bytes": seen.control_bytes,
        "damaged_bytes": seen.damaged_bytes,
        "mark_checks": seen.mark_checks,
        **figures,
    }


def _in_turn(lab: Lab, pool: Pool, seen: Seen, a: Member, b: Member) -> dict[str, Any]:
    """Half of the slices for each machine; then those of `a` go to `b`, while a program uses them."""
    for member, mark in ((a, 1), (b, 2)):
        began = time.monotonic()
        member.memory("add", "first", f"{HALF * SLICE_MIB}MiB")
        lab.say(f"{member.name} has {sorted(member.owned())} after {time.monotonic() - began:.1f} s")
        seen.enters(member, 1, 2)
        member.hold(mark, int(HALF * SLICE_MIB * MARKED_RATIO))
        seen.owners()
    seen.control_bytes += a.find(1)["found_bytes"][0]
    refused = _refused(b, "more", SLICE_MIB)
    lab.holds("short", "slices" in refused, f"no slice was free, and more was assigned: {refused}")
    for member, mark in ((a, 1), (b, 2)):
        seen.intact(member, mark)
    lab.say("a returns its slices while a program has its data in them")
    began = time.monotonic()
    a.memory("remove", "first")
    returned = time.monotonic() - began
    seen.owners()
    lab.holds("offline", not a.owned(), f"a returned everything and has {a.owned()} online")
    seen.intact(a, 1)
    pool.until_free(HALF)
    b.memory("add", "second", f"{HALF * SLICE_MIB}MiB")
    seen.owners()
    lab.holds("handover", b.owned() == set(range(SLICES)), f"b has {b.owned()}")
    seen.enters(b, 1)
    seen.intact(b, 2)
    return {"return_seconds_per_gib": returned / (HALF * SLICE_MIB / 1024)}


def _stands_still(lab: Lab, pool: Pool, seen: Seen, a: Member, b: Member) -> dict[str, Any]:
    """`b`, which has all slices, loses its daemon and stands still for some leases. It keeps its slices."""
    lab.say("the daemon of b is killed, and b stands still")
    b.kill_daemon()
    own = b.owned()
    os.kill(b.guest.pid, signal.SIGSTOP)
    try:
        time.sleep(3 * LEASE_SECONDS)
        refused = _refused(a, "more", SLICE_MIB)
    finally:
        os.kill(b.guest.pid, signal.SIGCONT)
    lab.holds("held", "slices" in refused, f"a slice of a machine that stands still was assigned: {refused}")
    b.start()
    seen.owners()
    lab.holds("kept", b.owned() == own, f"b had {own}, and has {b.owned()}")
    seen.intact(b, 2)
    names = [memory["name"] for memory in b.memory("list")["memory"]]
    lab.holds("named", names == ["first", "second"], f"after a restart b has {names}")
    # A machine that answers is not gone, whatever an operator says.
    fenced = _fenced(pool, "host-b")
    lab.holds("alive", "has a lease" in fenced, f"a machine with a lease was fenced: {fenced}")
    seen.owners()
    return {"stood_still_leases": 3}


def _is_gone(lab: Lab, pool: Pool, seen: Seen, a: Member, b: Member) -> dict[str, Any]:
    """`b` loses its power. Its slices wait for the operator, and are zeroed before `a` has them."""
    lab.say("b is gone")
    os.kill(b.guest.pid, signal.SIGKILL)
    seen.members = (a,)
    time.sleep(2 * LEASE_SECONDS)
    refused = _refused(a, "more", SLICE_MIB)
    lab.holds("waits", "slices" in refused, f"the slices were assigned before anybody said that b is off: {refused}")
    said = _fenced(pool, "host-b")
    lab.holds("fenced", said == "", f"b is gone and cannot be fenced: {said}")
    began = time.monotonic()
    pool.until_free(SLICES)
    scrubbed = time.monotonic() - began
    a.memory("add", "all", f"{SLICES * SLICE_MIB}MiB")
    seen.owners()
    lab.holds("all", a.owned() == set(range(SLICES)), f"a has {a.owned()}")
    seen.enters(a, 2)
    a.hold(3, int(SLICES * SLICE_MIB * MARKED_RATIO))
    seen.intact(a, 3)
    return {"scrub_seconds_per_gib": scrubbed / (SLICES * SLICE_MIB / 1024)}


def _refused(member: Member, name: str, mib: int) -> str:
    """Returns why memory was not added."""
    try:
        member.memory("add", name, f"{mib}MiB")
    except CommandFailed as failed:
        return str(failed)
    return "it was added"


def _fenced(pool: Pool, host: str) -> str:
    """Says to the manager that a machine is off; returns why it does not believe that."""
    reach = ("--manager", f"https://127.0.0.1:{pool.port}", "--identity", str(pool.directory / "tls" / "operator"))
    try:
        pool.command("pool", "fenced", host, *reach)
    except Refused as refused:
        return str(refused)
    return ""
