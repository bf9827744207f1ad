"""How long a job waits for its own system calls while it is offloaded on a machine without an idle CPU.

The kernel compresses pages in the agent's system call, and with `process_madvise` it holds the job's `mmap_lock` all
the time: the job's own `mmap` and `fork` wait. An agent that compresses when nothing else wants to run holds that lock
for as long as other programs keep the CPUs. The job times its calls, without an agent and under each policy, beside two
programs per CPU that never pause.
"""

import json
from typing import Any

from thermolab import node, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine

KERNELS = ("6.12-idle", "6.12")

JOB = "job"
IDLE_MIB = 96
SECONDS = 75
BUSY = 4
"""Programs that never pause: two for each CPU of the guest."""
POLICIES = ("cold_age", "pressure")
KINDS = ("mmap", "fault", "fork")

LATER_MAX_US = 10_000
"""How much later a call may return than without an agent: p99.9, in emulated time, which is many times slower."""

_SETTINGS: node.Settings = {
    "cold_age.warmup": "6s",
    "pressure.period": "1s",
    "pressure.ratio": "1.5%",
    "pressure.step_max": "2%",
    "pressure.stall_target": "5%",
    "pressure.warmup": "2s",
    "zswap.manage": False,
}


def run(lab: Lab) -> dict[str, Any]:
    """Measures without an agent and under each policy."""
    with lab.guest(Machine(memory_bytes=2 * GIB)) as guest:
        truth.tick(guest)
        guest.write("/sys/module/zswap/parameters/enabled", "Y")
        for _ in range(BUSY):
            guest.spawn(["busybox", "sh", "-c", "while :; do :; done"], cgroup=guest.cgroup("busy"))
        figures: dict[str, Any] = {"none": _measure(guest, None)}
        for policy in POLICIES:
            figures[policy] = _measure(guest, policy)
    worst = 0
    for policy in POLICIES:
        row = figures[policy]
        later = {kind: row[kind]["p999_us"] - figures["none"][kind]["p999_us"] for kind in KINDS}
        row["later_us"] = later
        worst = max(worst, *later.values())
        lab.say(f"{policy}: {row['far_bytes'] / MIB:.0f} MiB offloaded; later by (us): {later}")
        lab.at_least(f"{policy}.far_bytes", row["far_bytes"], IDLE_MIB * MIB // 4)
    figures["later_max_us"] = worst
    lab.at_most("later_max_us", worst, LATER_MAX_US)
    return figures


def _measure(guest: Guest, policy: str | None) -> dict[str, Any]:
    """Runs the job once; returns its latencies and what was offloaded of it."""
    log = f"/run/waits-{policy}.log"
    size = ["--idle-mib", str(IDLE_MIB), "--seconds", str(SECONDS)]
    guest.spawn(["labguest", "waits", *size], cgroup=guest.cgroup(JOB), stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=300)
    far = 0
    if policy is None:
        guest.expect(log, "mmap", timeout_s=4 * SECONDS)
    else:
        guest.run(["rm", "-rf", node.STATE])
        node.configure(guest, [node.Job(f"/{JOB}")], {**_SETTINGS, "agent.policy": policy})
        agent = node.start(guest)
        guest.run(["sleep", str(SECONDS * 3 // 4)], timeout_s=4 * SECONDS)
        far = agent.job(f"/{JOB}")["far_bytes"]
        guest.expect(log, "mmap", timeout_s=4 * SECONDS)
        agent.stop()
    latencies: dict[str, Any] = json.loads(guest.read(log).splitlines()[-1])
    return {**latencies, "far_bytes": far}
