"""A model's quantised weights: zswap saves nearly nothing, a swap device more than a tenth, and `auto` detects it.

The job reads its weights at a fixed rate, some often and most rarely. Three agents run in turn, each without history:
policy `pressure` with the tier zswap, then with the tier swap, then policy and tier `auto`.
"""

from typing import Any

from thermolab import offload, swap, truth
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Server, Workload, requests
from thermolab.windows import settled, watch

KERNELS = ("6.12",)
MORE_IS_BETTER = ("job_bytes",)

JOB_MIB = 160
SERVER = Server(rounds=20_000, rate=30)
EXPONENT = 1.2
RUNS = {"zswap": ("pressure", "zswap"), "swap": ("pressure", "swap"), "auto": ("auto", "auto")}
"""Policy and tier by name of the run."""
CONVERGE_SECONDS = {"pressure": 45, "auto": 120}
"""By policy. By age, a first threshold needs a history."""
JUDGED_SECONDS = 12

ZSWAP_SAVES_MAX_RATIO = 0.05
SWAP_SAVES_MIN_RATIO = 0.1
STALL_MAX_RATIO = 1.5 * offload.STALL_TARGET


def run(lab: Lab) -> dict[str, Any]:
    """Runs one agent after the other."""
    figures: dict[str, Any] = {}
    with lab.guest() as guest:
        truth.tick(guest)
        workload = Workload(guest, [Region("model", JOB_MIB, requests(1, EXPONENT), kind="weights")], server=SERVER)
        settled(workload, 5)
        (before,) = watch([workload], 5)
        job_bytes = guest.number(f"{workload.cgroup}/memory.current")
        for name, (policy, tier) in RUNS.items():
            agent = offload.start(guest, [workload.job], policy, tier)
            watch([workload], CONVERGE_SECONDS[policy])
            (window,) = watch([workload], JUDGED_SECONDS)
            job = offload.offloaded(agent, workload.job)
            agent.stop()
            swap.empty(guest)
            lab.say(
                f"{name}: {job.saved_bytes / MIB:.1f} MiB saved of {job_bytes / MIB:.0f}, in {job.tier} "
                f"({job.tier_reason}), stalled {window.stall_ratio:.2%}; {job.explanation}"
            )
            figures[name] = {
                "tier": job.tier,
                "saved_bytes": job.saved_bytes,
                "saved_ratio": job.saved_bytes / job_bytes,
                "offloaded_bytes": job.far_bytes,
                "stall_ratio": window.stall_ratio,
                "slowdown_ratio": window.slowdown_ratio(before),
            }
        workload.stop()
    lab.at_most("zswap.saved_ratio", figures["zswap"]["saved_ratio"], ZSWAP_SAVES_MAX_RATIO)
    for name in ("swap", "auto"):
        lab.at_least(f"{name}.saved_ratio", figures[name]["saved_ratio"], SWAP_SAVES_MIN_RATIO)
        lab.at_most(f"{name}.stall_ratio", figures[name]["stall_ratio"], STALL_MAX_RATIO)
    tier = figures["auto"]["tier"]
    lab.holds("auto.tier", tier == "vdb", f"the tier is {tier!r} and not 'vdb': see the sample in `thermocline status`")
    return {"job_bytes": job_bytes, **figures}
