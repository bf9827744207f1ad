"""Page cache and anonymous memory are both offloaded, balanced by the cost of their return; slowdown stays below 1 %.

Three jobs run at once: one reads mostly files, one only anonymous memory, one half of each; in all of them some pages
are popular and most are rarely accessed. After the agent (policy `pressure`) the kernel's own balance is measured: each
job is held at the size that the agent left it at, by `memory.reclaim` without a swappiness argument. The slowdown is
the additional time that a job spends reading its memory, as a share of all time.
"""

from typing import Any

from thermolab import node, offload, swap, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine
from thermolab.truth import Region, Server, Workload, requests
from thermolab.windows import Window, settled, watch

KERNELS = ("6.12",)
MORE_IS_BETTER = tuple(f"{job}.saved_bytes" for job in ("files", "anon", "mixed"))

SERVER = Server(rounds=20_000, rate=40)
EXPONENT = 1.3
CONVERGE_SECONDS = 120
HOLD_SECONDS = 20
JUDGED_SECONDS = 20

SLOWDOWN_MAX_RATIO = 0.01
SAVED_MIN_RATIO = 0.05

# As in production. In an emulated guest most of the cost of a page's return is CPU time, which is no stall.
_SETTINGS: node.Settings = {"pressure.stall_target": "0.1%", "pressure.io_stall_target": "0.1%"}

_ZSWAP = "/sys/module/zswap/parameters/enabled"
# Arguments: seconds, then pairs of a cgroup and its target size. Steps are bounded, because memory.reclaim tries hard
# to reclaim the requested amount. It fails if it reclaims less; the next request follows a second later.
_HOLD = """
seconds=$1; shift
for second in $(seq $seconds); do
    for pair in "$@"; do
        excess=$(($(cat ${pair%:*}/memory.current) - ${pair#*:}))
        [ $excess -le 4194304 ] || excess=4194304
        [ $excess -lt 65536 ] || echo $excess 2>/dev/null >${pair%:*}/memory.reclaim || :
    done
    sleep 1
done
"""


def _regions() -> dict[str, list[Region]]:
    pattern = requests(1, EXPONENT)
    return {
        "files": [Region("docs", 144, pattern, kind="file"), Region("index", 16, pattern)],
        "anon": [Region("heap", 128, pattern)],
        "mixed": [Region("pages", 80, pattern, kind="file"), Region("objects", 80, pattern)],
    }


def run(lab: Lab) -> dict[str, Any]:
    """Measures the agent's balance, then the kernel's."""
    figures: dict[str, Any] = {}
    with lab.guest(Machine(memory_bytes=GIB, cpus=2)) as guest:
        truth.tick(guest)
        jobs = [Workload(guest, regions, name, SERVER) for name, regions in _regions().items()]
        for job in jobs:
            settled(job, 5)
        before = watch(jobs, 15)
        sizes = [guest.number(f"{job.cgroup}/memory.current") for job in jobs]
        agent = offload.start(guest, [job.job for job in jobs], "pressure", "zswap", _SETTINGS)
        watch(jobs, CONVERGE_SECONDS)
        windows = watch(jobs, JUDGED_SECONDS)
        views = [offload.offloaded(agent, job.job) for job in jobs]
        agent.stop()
        _restore_memory(guest, jobs)
        held = _hold(guest, jobs, [view.memory_bytes for view in views])
        for job, size, view, *measured in zip(jobs, sizes, views, before, windows, held, strict=True):
            name = job.job[1:]
            figures[name] = row = _row(size, view, *measured)
            lab.say(
                f"{name}: {view.saved_bytes / MIB:.1f} MiB saved of {size / MIB:.0f}, offloaded: "
                f"{view.far_bytes / MIB:.1f} MiB anonymous and {view.file_out_bytes / MIB:.1f} MiB of files; "
                f"slowdown {row['slowdown_ratio']:.2%}, with the kernel's balance {row['kernel']['slowdown_ratio']:.2%}"
            )
            lab.at_most(f"{name}.slowdown_ratio", row["slowdown_ratio"], SLOWDOWN_MAX_RATIO)
            lab.at_least(f"{name}.saved_ratio", row["saved_ratio"], SAVED_MIN_RATIO)
    return figures


def _row(size: int, view: offload.Offloaded, before: Window, window: Window, held: Window) -> dict[str, Any]:
    return {
        "job_bytes": size,
        "saved_bytes": view.saved_bytes,
        "saved_ratio": view.saved_bytes / size,
        "offloaded_anon_bytes": view.far_bytes,
        "offloaded_file_bytes": view.file_out_bytes,
        "slowdown_ratio": window.slowdown_ratio(before),
        "throughput_ratio": window.ops_per_s / before.ops_per_s,
        "stall_ratio": window.stall_ratio,
        "kernel": {"slowdown_ratio": held.slowdown_ratio(before), "stall_ratio": held.stall_ratio},
    }


def _restore_memory(guest: Guest, jobs: list[Workload]) -> None:
    """Swaps in all memory and reads all files, as before the agent's start."""
    swap.empty(guest)
    for job in jobs:
        for region in job.regions.values():
            if region.kind == "file":
                path = region.to_json()["path"]
                guest.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], cgroup=job.cgroup, timeout_s=120)


def _hold(guest: Guest, jobs: list[Workload], sizes: list[int]) -> list[Window]:
    """Holds the jobs at these sizes in bytes with the kernel's own choice of pages; returns their windows."""
    # The agent has restored zswap's setting.
    guest.write(_ZSWAP, "1")
    pairs = [f"{job.cgroup}:{size}" for job, size in zip(jobs, sizes, strict=True)]
    pid = guest.spawn(["sh", "-c", _HOLD, "hold", str(3 * (HOLD_SECONDS + JUDGED_SECONDS)), *pairs])
    watch(jobs, HOLD_SECONDS)
    windows = watch(jobs, JUDGED_SECONDS)
    guest.kill(pid)
    guest.wait_exit(pid)
    return windows
