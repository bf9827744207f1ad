"""A page that zswap refused is not tried again until it was accessed.

A quarter of a job's cold memory does not compress: too little for the job to be left alone. Its pages are refused when
they are offloaded, and stay in the swap cache. Each further attempt would compress them in vain. With
`incompressible.each_page` the agent compresses them itself, and the kernel is not asked for them at all. Attempts are
the kernel's counts of refused pages.
"""

from itertools import pairwise
from typing import Any

from thermolab import node, offload, programs, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12-idle", "6.12")

COMPRESSIBLE_MIB, REFUSED_MIB, HOT_MIB = 72, 24, 16
OFFLOAD_SECONDS, JUDGED_SECONDS = 60, 90

ATTEMPTS_MAX_PER_PAGE = 0.5
"""Within the judged seconds: 45 control periods."""
OFFLOADED_MIN_RATIO = 0.9
_REJECTED = [f"/sys/kernel/debug/zswap/reject_compress_{why}" for why in ("poor", "fail")]
"""Which of them counts a page that does not compress depends on the compressor."""

RUNS: dict[str, node.Settings] = {"by_zswap": {}, "by_agent": {"incompressible.each_page": True}}


def run(lab: Lab) -> dict[str, Any]:
    """Runs one guest for each way; the agent's needs a tracker that knows all pages."""
    ways = RUNS if lab.kernel.name.endswith("idle") else {"by_zswap": RUNS["by_zswap"]}
    figures = {name: _offload(lab, settings) for name, settings in ways.items()}
    for name, row in figures.items():
        lab.say(f"{name}: {row}")
        lab.at_least(f"{name}.far_bytes", row["far_bytes"], OFFLOADED_MIN_RATIO * COMPRESSIBLE_MIB * MIB)
        lab.at_most(f"{name}.attempts_per_page", row["attempts_per_page"], ATTEMPTS_MAX_PER_PAGE)
    lab.at_least("by_zswap.first_attempts_per_page", figures["by_zswap"]["first_attempts_per_page"], 0.5)
    if "by_agent" in figures:
        first = figures["by_agent"]["first_attempts_per_page"]
        lab.at_most("by_agent.first_attempts_per_page", first, ATTEMPTS_MAX_PER_PAGE)
    return figures


def _offload(lab: Lab, settings: node.Settings) -> dict[str, Any]:
    """Offloads the job, then counts attempts while nothing of it changes."""
    with lab.guest() as guest:
        truth.tick(guest)
        refused: programs.Region = {**programs.idle("refused", REFUSED_MIB * MIB), "kind": "incompressible"}
        cold = programs.idle("cold", COMPRESSIBLE_MIB * MIB)
        programs.workload(guest, "/mixed", [cold, refused, programs.hot("hot", HOT_MIB * MIB)])
        agent = offload.start(guest, ["/mixed"], "cold_age", "zswap", settings)
        counts = [_rejected(guest)]
        for seconds in (OFFLOAD_SECONDS, JUDGED_SECONDS):
            guest.run(["sleep", str(seconds)], timeout_s=2 * seconds)
            counts.append(_rejected(guest))
        cached = guest.flat_keyed("/sys/fs/cgroup/mixed/memory.stat")["swapcached"]
        job = offload.offloaded(agent, "/mixed")
        agent.stop()
    pages = REFUSED_MIB * MIB // 4096
    first, again = ((after - before) / pages for before, after in pairwise(counts))
    return {
        "first_attempts_per_page": first,
        "attempts_per_page": again,
        "far_bytes": job.far_bytes,
        "saved_bytes": job.saved_bytes,
        "swap_cache_bytes": cached,
        "explanation": job.explanation,
    }


def _rejected(guest: Guest) -> int:
    return sum(guest.number(path) for path in _REJECTED)
