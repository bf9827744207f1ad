"""Writes to the swap device stay within the budget of its endurance, byte for byte, where ten times as much would come.

The job's memory does not compress, and it reads all of it so often that pages go out and come back all the time. A
first agent has no budget to speak of, and shows what would be written; a second one gets a tenth of that, as bytes per
day and a burst. What was written is the block layer's count.
"""

from typing import Any

from thermolab import node, offload, swap, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Server, Workload, requests
from thermolab.windows import settled, watch

KERNELS = ("6.12",)
MORE_IS_BETTER = ("unlimited_bytes", "excess_ratio")

JOB_MIB = 192
SERVER = Server(rounds=5_000, rate=300)
EXPONENT = 0.5
RUN_SECONDS = 60
BURST_BYTES = 2 * MIB
DAY_SECONDS = 86_400
# Far above what stalls would allow: the budget shall be what holds writes back.
_BUSY: node.Settings = {"pressure.stall_target": "50%", "pressure.io_stall_target": "50%", "swap.job_share": "100%"}

EXCESS_MIN_RATIO = 10.0


def run(lab: Lab) -> dict[str, Any]:
    """Without a budget, then with one."""
    with lab.guest() as guest:
        truth.tick(guest)
        workload = Workload(guest, [Region("model", JOB_MIB, requests(1, EXPONENT), kind="weights")], server=SERVER)
        settled(workload, 3)
        unlimited, _ = _run(guest, workload, {"swap.write_budget": "1PiB", "swap.burst": "1TiB"})
        swap.empty(guest)
        # A little below a tenth: both runs take a second more or less.
        budget = max(unlimited // 11 - BURST_BYTES, MIB)
        per_day = budget * DAY_SECONDS // RUN_SECONDS
        settings = {"swap.write_budget": f"{per_day // MIB}MiB", "swap.burst": f"{BURST_BYTES // MIB}MiB"}
        written, elapsed = _run(guest, workload, settings)
        allowed = BURST_BYTES + per_day // MIB * MIB * elapsed / DAY_SECONDS
        workload.stop()
    figures = {
        "unlimited_bytes": unlimited,
        "budget_bytes": int(allowed),
        "written_bytes": written,
        "excess_ratio": unlimited / allowed,
        "run_seconds": elapsed,
    }
    lab.say(f"{written / MIB:.1f} MiB written of {allowed / MIB:.1f}; without a budget {unlimited / MIB:.1f} MiB")
    lab.at_most("written_bytes", written, int(allowed))
    lab.at_least("written_bytes", written, 1)
    lab.at_least("excess_ratio", figures["excess_ratio"], EXCESS_MIN_RATIO)
    return figures


def _run(guest: Guest, workload: Workload, settings: node.Settings) -> tuple[int, float]:
    """Bytes written to the device while an agent acted, and for how many seconds it did."""
    before, begin = swap.written_bytes(guest), workload.uptime()
    agent = offload.start(guest, [workload.job], "pressure", "swap", {**_BUSY, **settings})
    watch([workload], RUN_SECONDS)
    agent.stop()
    elapsed = workload.uptime() - begin
    return swap.written_bytes(guest) - before, elapsed
