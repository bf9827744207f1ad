"""A job that reads files once: `saved_bytes` is at most what the kernel shows, and so is `plan`.

The job has cold anonymous memory, a file that it has read, and reads a stream of new files, some of which are deleted.
Before the agent starts, the page cache fills the machine: without the agent, `MemFree` would stay where it is. Then the
agent runs, policy `pressure`, with compressed time; later the large file is deleted. All the time, the net saving is
compared with two counters that the agent does not compute it from: by how much `MemFree` or `MemAvailable` increased.
"""

import json
from dataclasses import dataclass
from typing import Any

from thermolab import node, offload, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.meminfo import Memory
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload

KERNELS = ("6.12",)
MORE_IS_BETTER = ("streamed_bytes", "saved_bytes")

COLD_MIB, HOT_MIB, READ_MIB = 128, 16, 96
FILL_MIB = 1024
STREAM_MIB_PER_S = 8
ALONE_SECONDS = 10
AGENT_SECONDS = 200
DELETED_AFTER_SECONDS = 60
SAMPLE_SECONDS = 2
# Control periods are 2 s: 100 of them resolve a risk of 5 %.
RISK = 0.05

# Smaller savings are as large as what the rest of the guest allocates meanwhile.
COMPARED_MIN_BYTES = 16 * MIB
OVER_MAX_RATIO = 1.0
SAVED_MIN_BYTES = COLD_MIB * MIB // 4

_SETTINGS: node.Settings = {"pressure.ratio": "5%", "pressure.step_max": "5%"}

# A hole of a sparse file is read through the page cache, like data. Every fourth part of the stream is a file of its
# own, which is deleted when 20 newer ones were read.
_STREAM = """
mib=$1; number=0
truncate -s 1T /root/stream
while :; do
    if [ $((number % 4)) -eq 0 ]; then
        truncate -s ${mib}M /root/once.$number
        cat /root/once.$number >/dev/null
        rm -f /root/once.$((number - 80))
    else
        dd if=/root/stream of=/dev/null bs=1M count=$mib skip=$((number * mib)) 2>/dev/null
    fi
    number=$((number + 1))
    echo $number >/run/streamed
    sleep 1
done
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The agent's net saving, and what the kernel shows at the same time."""

    saved_bytes: int
    file_bytes: int
    free_bytes: int
    available_bytes: int
    gap_ratio: float | None

    def physical_bytes(self, before: "Memory") -> int:
        """Returns the upper bound of what can have been saved since `before`.

        `MemAvailable` shows freed anonymous memory, even if page cache occupies it now, and `MemFree` also freed page
        cache, which was available before. No more is saved than is available now.
        """
        free, available = self.free_bytes - before.free_bytes, self.available_bytes - before.available_bytes
        return min(max(free, available), self.available_bytes)


def run(lab: Lab) -> dict[str, Any]:
    """Streams without the agent, then with it, and asks for a plan."""
    with lab.guest() as guest:
        truth.tick(guest)
        regions = [Region("cold", COLD_MIB, {"never": True}), Region("hot", HOT_MIB, {"period_ms": 100})]
        workload = Workload(guest, regions, "reader")
        for name, mib in (("fill", FILL_MIB), ("read", READ_MIB)):
            script = f"truncate -s {mib}M /root/{name}; cat /root/{name} >/dev/null"
            guest.run(["sh", "-c", script], cgroup=workload.cgroup)
        stream = guest.spawn(["sh", "-c", _STREAM, "stream", str(STREAM_MIB_PER_S)], cgroup=workload.cgroup)
        guest.run(["sleep", str(ALONE_SECONDS)])
        # The programs' own files are in the page cache before the agent starts.
        guest.run(["thermocline", "--version"])
        before = Memory.now(guest)
        agent = offload.start(guest, [workload.job], "pressure", "zswap", _SETTINGS)
        samples = _watch(lab, guest, agent, before)
        guest.kill(stream)
        guest.wait_exit(stream)
        streamed = guest.number("/run/streamed") * STREAM_MIB_PER_S * MIB
        agent.stop()
        argv = ["thermocline", "plan", "--risk", f"{RISK:.0%}", "--format", "json"]
        plan = json.loads(guest.run(argv).stdout)
        workload.stop()
    return _judge(lab, samples, before, plan, streamed)


def _watch(lab: Lab, guest: Guest, agent: node.Agent, before: Memory) -> list[Sample]:
    """Samples the saving until the end; the large file is deleted meanwhile."""
    samples = []
    for number in range(AGENT_SECONDS // SAMPLE_SECONDS):
        guest.run(["sleep", str(SAMPLE_SECONDS)])
        if number == DELETED_AFTER_SECONDS // SAMPLE_SECONDS:
            guest.run(["rm", "/root/read"])
        # The view is from before the kernel's counters: what is saved in between makes them larger, not smaller.
        view = agent.status()
        now = Memory.now(guest)
        savings = view["savings"]
        sample = Sample(
            view["saved_bytes"],
            savings["file_bytes"],
            now.free_bytes,
            now.available_bytes,
            savings["request_gap_ratio"],
        )
        samples.append(sample)
        if number % 10 == 0:
            lab.say(
                f"{number * SAMPLE_SECONDS} s: saved {sample.saved_bytes / MIB:.1f} MiB, of it page cache "
                f"{sample.file_bytes / MIB:.1f}; physical {sample.physical_bytes(before) / MIB:.1f}; "
                f"free {sample.free_bytes / MIB:.1f}, available {sample.available_bytes / MIB:.1f}"
            )
    return samples


def _judge(lab: Lab, samples: list[Sample], before: Memory, plan: dict[str, Any], streamed: int) -> dict[str, Any]:
    over = [
        sample.saved_bytes / max(sample.physical_bytes(before), 1)
        for sample in samples
        if sample.saved_bytes >= COMPARED_MIN_BYTES
    ]
    # In all but the risk of the samples, at least this much was there.
    physical = sorted(sample.physical_bytes(before) for sample in samples)[int(RISK * len(samples))]
    promised = plan["machine"]["promise_bytes"]
    figures = {
        "saved_bytes": samples[-1].saved_bytes,
        "saved_file_bytes": samples[-1].file_bytes,
        "saved_file_max_bytes": max(sample.file_bytes for sample in samples),
        "streamed_bytes": streamed,
        "compared_samples": len(over),
        "saved_over_physical_max_ratio": max(over, default=0.0),
        "saved_over_available_max_ratio": max(sample.saved_bytes / sample.available_bytes for sample in samples),
        "plan_over_physical_ratio": promised / (before.total_bytes + max(physical, 0)),
        "promised_bytes": promised,
        "physical_bytes": physical,
        "available_gain_bytes": samples[-1].available_bytes - before.available_bytes,
        "request_gap_median_ratio": _median([one.gap_ratio for one in samples if one.gap_ratio is not None]),
    }
    lab.at_most("saved_over_physical_max_ratio", figures["saved_over_physical_max_ratio"], OVER_MAX_RATIO)
    lab.at_most("plan_over_physical_ratio", figures["plan_over_physical_ratio"], OVER_MAX_RATIO)
    lab.at_least("saved_bytes", figures["saved_bytes"], SAVED_MIN_BYTES)
    lab.at_least("compared_samples", len(over), len(samples) // 2)
    return figures


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
