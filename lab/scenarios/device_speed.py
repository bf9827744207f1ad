"""Pressure-driven offloading adapts to the swap device: it offloads more to a fast device than to a slow one.

The same job runs in two guests that differ only in their swap device: QEMU's at full speed, and one with 15 ms more per
request. The job's data is incompressible, its pages differ in popularity, and requests arrive at a fixed rate. Policy
`pressure` must offload clearly more to the fast device and keep the job's stall at its target on both. Policy
`cold_age` runs afterwards with the same objective on both devices: a promotion rate does not depend on the device's
speed (TMO section 4.3 and figure 12).
"""

from dataclasses import asdict
from typing import Any

from thermolab import node, offload, swap, truth
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Server, Workload, requests
from thermolab.windows import settled, watch

KERNELS = ("6.12",)
MORE_IS_BETTER = ("offloaded_bytes_fast", "offloaded_bytes_slow")

DELAY_MS = 15
JOB_MIB = 160
SERVER = Server(rounds=20_000, rate=30)
EXPONENT = 1.0
CONVERGE_SECONDS = {"pressure": 160, "cold_age": 30}
JUDGED_SECONDS = 30
# Time of requests is not compressed, and a read from the slow device takes longer than the stall target of a second.
# In periods of one second, most of which have no read at all, too much would be reclaimed and then faulted in.
#
# Every scan opens a generation, and the kernel keeps four: with scans a few seconds apart, it cannot distinguish pages
# that are read every ten seconds from pages that are never read. `cold_age` needs such scans nevertheless.
_SETTINGS: dict[str, node.Settings] = {
    "pressure": {"pressure.period": "3s", "pressure.ratio": "0.5%", "agent.scan_period": "30s"},
    "cold_age": {},
}

FASTER_IS_MORE_MIN_RATIO = 1.5
STALL_MAX_RATIO = 1.5 * offload.STALL_TARGET
"""Bound on the mean over the judged seconds; the controller approaches the target from below."""


def run(lab: Lab) -> dict[str, Any]:
    """Runs both guests, and both policies in each."""
    found = {speed: _device(lab, speed) for speed in ("fast", "slow")}
    for policy in CONVERGE_SECONDS:
        lab.say(f"{policy}:")
        for speed in found:
            row = found[speed][policy]
            lab.say(
                f"  {speed}, {row['swap_read_seconds'] * 1000:4.1f} ms a read: "
                f"{row['offloaded_bytes'] / MIB:5.1f} MiB far, "
                f"stalled {row['stall_ratio']:.2%}, 99 % within {row['latency_p99_us'] / 1000:.1f} ms"
            )
    figures: dict[str, Any] = {"delay_seconds": DELAY_MS / 1000, "stall_target_ratio": offload.STALL_TARGET}
    for speed in found:
        pressure = found[speed]["pressure"]
        figures[f"offloaded_bytes_{speed}"] = pressure["offloaded_bytes"]
        figures[f"stall_ratio_{speed}"] = pressure["stall_ratio"]
        lab.at_most(f"stall_ratio_{speed}", pressure["stall_ratio"], STALL_MAX_RATIO)
    lab.at_least(
        "offloaded_bytes_fast",
        figures["offloaded_bytes_fast"],
        FASTER_IS_MORE_MIN_RATIO * figures["offloaded_bytes_slow"],
    )
    lab.at_least("offloaded_bytes_slow", figures["offloaded_bytes_slow"], 1)
    return {**figures, "pressure": _by_speed(found, "pressure"), "cold_age": _by_speed(found, "cold_age")}


def _by_speed(found: dict[str, dict[str, Any]], policy: str) -> dict[str, Any]:
    return {speed: rows[policy] for speed, rows in found.items()}


def _device(lab: Lab, speed: str) -> dict[str, Any]:
    rows = {}
    with lab.guest() as guest:
        device = swap.delay(guest, DELAY_MS) if speed == "slow" else swap.DEVICE
        truth.tick(guest)
        workload = Workload(guest, [Region("model", JOB_MIB, requests(1, EXPONENT), kind="weights")], server=SERVER)
        settled(workload, 5)
        (before,) = watch([workload], 5)
        lab.say(f"{speed} device, no policy: stalled {before.stall_ratio:.2%}, {before.ops_per_s:.0f} requests/s")
        for policy, seconds in CONVERGE_SECONDS.items():
            # `pressure` runs first because it offloads little; emptying the slow device takes long.
            swap.empty(guest, device)
            agent = offload.start(guest, [workload.job], policy, "swap", _SETTINGS[policy])
            watch([workload], seconds)
            (window,) = watch([workload], JUDGED_SECONDS)
            far = offload.offloaded(agent, workload.job)
            read_seconds = offload.swap_read_seconds(agent)
            lab.say(f"{speed} device, {policy}: {far.far_bytes / MIB:.0f} MiB far, {far.explanation}")
            agent.stop()
            rows[policy] = {
                "offloaded_bytes": far.far_bytes,
                "saved_bytes": far.saved_bytes,
                "stall_ratio": window.stall_ratio,
                "slowdown_ratio": window.slowdown_ratio(before),
                "latency_p99_us": window.p99_us,
                "ops_per_s": window.ops_per_s,
                "swap_read_seconds": read_seconds,
            }
        rows["without"] = asdict(before)
    return rows
