"""Writes to the swap device stay within the endurance budget, which is a tenth of the writes without a budget.

The job's memory is incompressible, and the job reads all of it so often that pages are swapped out and in continuously.
A first agent runs practically without a budget and determines the demand; a second one has a tenth of that as its
budget, given in bytes per day and a burst. Written bytes are the block layer's count.
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
# Stall targets far above the actual stalls, so that only the budget limits writes.
_BUSY: node.Settings = {"pressure.stall_target": "50%", "pressure.io_stall_target": "50%", "swap.job_share": "100%"}

EXCESS_MIN_RATIO = 10.0


def run(lab: Lab) -> dict[str, Any]:
    """Runs without a budget, then with one."""
    with lab.guest() as guest:
        truth.tick(guest)
        workload = Workload(guest, [Region("model", JOB_MIB, requests(1, EXPONENT), kind="weights")], server=SERVER)
        settled(workload, 3)
        unlimited, _ = _run(guest, workload, {"swap.write_budget": "1PiB", "swap.burst": "1TiB"})
        swap.empty(guest)
        # A little below a tenth, because run times vary by about a second.
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
    """Returns the bytes written to the device while an agent ran, and the seconds for which it ran."""
    before, begin = swap.written_bytes(guest), workload.uptime()
    agent = offload.start(guest, [workload.job], "pressure", "swap", {**_BUSY, **settings})
    watch([workload], RUN_SECONDS)
    agent.stop()
    elapsed = workload.uptime() - begin
    return swap.written_bytes(guest) - before, elapsed
