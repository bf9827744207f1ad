"""A virtual machine's process is a job like others: memory that its guest never touches leaves DRAM, hot memory stays.

The process maps memory files, as QEMU (`memory-backend-memfd`) and Firecracker do for their guests. Pages that are in
none of its page tables were reclaimed, because only reclaim unmaps a file's pages; the figure is compared with the
cgroup's swap usage. Policy `cold_age`: with page_idle the agent selects the pages; with lru_gen the kernel does, and
may select a hot one too.

Time runs 60 times faster than in production: a scan of 2 s stands for 120 s.
"""

from typing import Any

from thermolab import node, truth
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload

KERNELS = ("6.12-idle", "6.12")
MORE_IS_BETTER = ("saved_bytes", "swapped_bytes")

HOT_MIB, UNTOUCHED_MIB = 16, 80
OFFLOAD_SECONDS = 90
"""Time limit until all but a twentieth of the untouched memory is offloaded."""
WATCH_SECONDS = 10

OFFLOADED_MIN_RATIO = 0.95
HOT_OFFLOADED_MAX_RATIO = {"page_idle": 0.001, "sampled": 0.01, "lru_gen": 0.01}


def run(lab: Lab) -> dict[str, Any]:
    """Offloads, and checks where the guest's memory is."""
    with lab.guest() as guest:
        truth.tick(guest)
        hot = Region("hot", HOT_MIB, {"period_ms": 100}, kind="memfd", writes=True)
        untouched = Region("untouched", UNTOUCHED_MIB, {"never": True}, kind="memfd")
        vm = Workload(guest, [hot, untouched], name="vm")
        before = guest.number(f"{vm.cgroup}/memory.current")
        node.configure(guest, [node.Job(vm.job, policy="cold_age")], {"cold_age.warmup": "10s"})
        agent = node.start(guest)
        end = vm.uptime() + OFFLOAD_SECONDS
        hot_offloaded = _gone(vm, "hot")
        while _gone(vm, "untouched") < OFFLOADED_MIN_RATIO and vm.uptime() < end:
            # There is no event to wait for.
            guest.run(["sleep", "1"])
            hot_offloaded = max(hot_offloaded, _gone(vm, "hot"))
        end = vm.uptime() + WATCH_SECONDS
        while vm.uptime() < end:
            guest.run(["sleep", "1"])
            hot_offloaded = max(hot_offloaded, _gone(vm, "hot"))
        offloaded = _gone(vm, "untouched")
        swapped = guest.number(f"{vm.cgroup}/memory.swap.current")
        job = agent.job(vm.job)
        agent.stop()
        vm.stop()
    tracker = job["tracker"]
    figures = {
        "tracker": tracker,
        "memory_before_bytes": before,
        "memory_after_bytes": job["memory_bytes"],
        "offloaded_ratio": offloaded,
        "hot_offloaded_ratio": hot_offloaded,
        "offloaded_bytes": job["far_bytes"],
        "swapped_bytes": swapped,
        "saved_bytes": job["saved_bytes"],
    }
    lab.say(
        f"{tracker}: {offloaded:.1%} of {UNTOUCHED_MIB} MiB offloaded, {hot_offloaded:.2%} of hot memory; {figures}"
    )
    lab.at_least("offloaded_ratio", offloaded, OFFLOADED_MIN_RATIO)
    lab.at_least("swapped_bytes", swapped, OFFLOADED_MIN_RATIO * UNTOUCHED_MIB * MIB)
    lab.at_most("hot_offloaded_ratio", hot_offloaded, HOT_OFFLOADED_MAX_RATIO[tracker])
    lab.at_least("saved_bytes", job["saved_bytes"], UNTOUCHED_MIB * MIB // 2)
    return figures


def _gone(vm: Workload, region: str) -> float:
    """Returns the share of a region that is in none of the process's page tables."""
    where = vm.residency()[region]
    return 1 - where["present_bytes"] / vm.bytes_of([region])
