"""What each instrument of a pool host's monitor sees of a process's accesses (`thermocline pool accesses`).

A process has memory in use and memory at rest, and maps a file of which another process accesses a half through a
mapping of its own. That stands for the accesses of a KVM guest, which are made through page tables of their own as
well: accessed bits of the first process do not show them, and idle page tracking, which asks every page table and the
MMU notifiers, does. No KVM is available here. A vhost-user backend maps a guest's memory in the same way.

Two further regions are accessed by a process that maps nothing: `process_vm_readv` and `process_vm_writev`, or
`/proc/PID/mem` on a kernel without these. Such accesses set no accessed bit: the kernel pins the pages and copies
through its own mapping (`process_vm_rw_single_vec()` in mm/process_vm_access.c, `access_remote_vm()` in mm/memory.c).
`follow_page_pte()` in mm/gup.c calls `folio_mark_accessed()` in mm/swap.c for them (`FOLL_TOUCH`). With the
multi-generational LRU that only sets the page's referenced flag, which smaps counts (`smaps_account()` in
fs/proc/task_mmu.c). With the two lists it also clears the page's idle flag, for which idle page tracking and DAMON ask
(`page_idle_bitmap_read()` in mm/page_idle.c, `damon_young_pmd_entry()` in mm/damon/vaddr.c).
"""

import json
from typing import Any

from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, tick

KERNELS = ("6.12-idle", "6.12", "7.2")

REGION_MIB = 32
WINDOW_SECONDS = 5
HOT = {"period_ms": 200}
COLD = {"never": True}
REGIONS = (
    Region("own_hot", REGION_MIB, HOT, "memfd"),
    Region("own_cold", REGION_MIB, COLD, "memfd"),
    Region("other_hot", REGION_MIB, HOT, "shared"),
    Region("other_cold", REGION_MIB, COLD, "shared"),
    Region("remote_read", REGION_MIB, COLD, "memfd"),
    Region("remote_written", REGION_MIB, COLD, "memfd"),
)
_LRU_GEN = "/sys/kernel/mm/lru_gen/enabled"
"""The kernel's LRU lists: the multi-generational LRU is the default of all three kernels."""
REMOTE = {"remote_read": [], "remote_written": ["--write"]}
"""Regions that another process accesses without mapping them, with the program's options."""
SEEN_MIN, UNSEEN_MAX = 0.95, 0.02
UNSEEN = {
    "6.12-idle": {},
    "6.12": {"page_idle": "no_page_idle"},
    "7.2": {"page_idle": "no_page_idle", "damon": "damon_busy"},
}
"""Why an instrument sees nothing on a kernel: on 7.2 the module `damon_stat` uses DAMON from boot."""
NOT_VISIBLE = 3
"""Exit status where no instrument sees the accesses."""


def run(lab: Lab) -> dict[str, Any]:
    """Asks each instrument about both processes, and about the first one again with the kernel's other lists."""
    unseen = UNSEEN[lab.kernel.name]
    instruments = [name for name in ("accessed_bits", "damon", "page_idle") if name not in unseen]
    with lab.guest() as guest:
        tick(guest)
        job = Workload(guest, REGIONS)
        layout = json.loads(guest.read(job.layout))
        other = next(region["toucher_pid"] for region in layout["regions"] if region["name"] == "other_hot")
        remote = _start_remote(guest, layout)
        processes = {"own": job.pid, "other": other}
        figures: dict[str, Any] = {
            instrument: {whose: _shares(guest, layout, pid, instrument) for whose, pid in processes.items()}
            for instrument in instruments
        }
        guest.write(_LRU_GEN, "n")
        figures["two_lists"] = {
            instrument: {"own": _shares(guest, layout, job.pid, instrument)} for instrument in instruments
        }
        guest.write(_LRU_GEN, "y")
        reasons = {instrument: _asked(guest, job.pid, instrument) for instrument in unseen}
        automatic = _asked(guest, job.pid, "auto")["seen"]
        left = guest.number("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")
        for pid in remote:
            # One that had failed would be gone.
            guest.kill(pid)
    for instrument in instruments:
        seen = figures[instrument]
        lab.say(f"{instrument}: {seen}; with two lists {figures['two_lists'][instrument]}")
        _check(lab, instrument, seen)
        for name in REMOTE:
            # The referenced flag is not the idle flag.
            if instrument == "accessed_bits":
                lab.at_least(f"{instrument}.own.{name}", seen["own"][name], SEEN_MIN)
            else:
                lab.at_most(f"{instrument}.own.{name}", seen["own"][name], UNSEEN_MAX)
            again = figures["two_lists"][instrument]["own"][name]
            lab.at_least(f"two_lists.{instrument}.own.{name}", again, SEEN_MIN)
    for instrument, report in reasons.items():
        expected = {"not": unseen[instrument]}
        lab.holds(instrument, report["seen"] == expected, f"it is seen by {report['seen']}, not {expected}")
        accessed = [mapping["accessed_bytes"] for mapping in report["mappings"]]
        lab.holds(f"{instrument} unknown", set(accessed) == {None}, f"what is not seen is {accessed}")
    lab.holds("auto", automatic == {"by": "accessed_bits"}, f"a process without KVM is seen by {automatic}")
    lab.at_most("kdamonds left", left, 0)
    return figures


def _check(lab: Lab, instrument: str, seen: dict[str, dict[str, float]]) -> None:
    own, there = seen["own"], seen["other"]
    lab.at_least(f"{instrument}.own.own_hot", own["own_hot"], SEEN_MIN)
    lab.at_least(f"{instrument}.other.other_hot", there["other_hot"], SEEN_MIN)
    for name in ("own_cold", "other_cold"):
        lab.at_most(f"{instrument}.own.{name}", own[name], UNSEEN_MAX)
    if instrument == "accessed_bits":
        lab.at_most("accessed_bits.own.other_hot", own["other_hot"], UNSEEN_MAX)
    if instrument == "page_idle":
        lab.at_least("page_idle.own.other_hot", own["other_hot"], SEEN_MIN)


def _start_remote(guest: Guest, layout: dict[str, Any]) -> list[int]:
    """Starts the processes that access memory of the workload without mapping it; returns their pids."""
    pids = []
    for region in layout["regions"]:
        if (options := REMOTE.get(region["name"])) is not None:
            argv = ["labguest", "remote", str(layout["pid"]), str(region["start"]), str(region["end"]), *options]
            out = f"/run/{region['name']}.out"
            pids.append(guest.spawn(argv, stdout=out, stderr=out))
            guest.expect(out, "ready")
    return pids


def _asked(guest: Guest, pid: int, instrument: str) -> dict[str, Any]:
    argv = ["thermocline", "--format", "json", "pool", "accesses", str(pid), "--instrument", instrument]
    done = guest.run([*argv, "--for", f"{WINDOW_SECONDS}s"], timeout_s=120, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    seen = "by" in report["seen"]
    if done.status != (0 if seen else NOT_VISIBLE):
        raise AssertionError(f"status {done.status}: {done.stdout} {done.stderr}")
    return report


def _shares(guest: Guest, layout: dict[str, Any], pid: int, instrument: str) -> dict[str, float]:
    """The share of each region of which `instrument` sees an access; only of regions that the process maps."""
    mappings = {mapping["start"]: mapping for mapping in _asked(guest, pid, instrument)["mappings"]}
    found = {}
    for region in layout["regions"]:
        if (mapping := mappings.get(region["start"])) is not None:
            found[region["name"]] = mapping["accessed_bytes"] / (REGION_MIB * MIB)
    return found
