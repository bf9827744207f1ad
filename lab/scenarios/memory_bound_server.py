"""A server that throttles itself when its memory fills serves more requests with far memory, whatever its data.

At its start it has loaded 96 MiB that it never uses again, as servers do. Every request opens a session that holds
128 KiB for a while; at the offered rate the live sessions need more memory than the server's limit leaves. Without
offloading it throttles itself permanently. With the agent (policy and tier `auto`) its throughput must rise: data that
compresses is stored in zswap, other data on the swap device (TMO section 4.2 and figure 11).
"""

import json
from typing import Any

from thermolab import node, offload, programs, swap, truth
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12",)
MORE_IS_BETTER = tuple(f"{data}.{figure}" for data in ("text", "weights") for figure in ("ops_per_s", "saved_bytes"))

RATE = 80
SESSION_KIB = 128
KEEP_SECONDS = 20
LOADED_MIB = 96
LIMIT_MIB = 200
RESERVE_MIB = 24
RUN_SECONDS = {"without": 60, "with": 110}
"""Longer with far memory, by the time until memory is old enough."""
JUDGED_SECONDS = 40
"""Length of the judged end of a run: throttling oscillates with the lifetime of a session, and this is twice that."""

THROUGHPUT_MIN_RATIO = 1.15

_JOB = "/sessions"
# The server is close to its limit most of the time, which is the situation that far memory should improve.
_SETTINGS: node.Settings = {"pressure.ratio": "3%", "pressure.step_max": "4%"}


def run(lab: Lab) -> dict[str, Any]:
    """Runs without and with far memory, with either kind of data."""
    figures: dict[str, Any] = {"offered_ops_per_s": RATE}
    with lab.guest() as guest:
        truth.tick(guest)
        for data in ("text", "weights"):
            loaded = _load(guest, data)
            without = _serve(guest, data, RUN_SECONDS["without"])
            agent = offload.start(guest, [_JOB], "auto", "auto", _SETTINGS)
            with_far = _serve(guest, data, RUN_SECONDS["with"])
            job = offload.offloaded(agent, _JOB)
            agent.stop()
            guest.kill(loaded)
            guest.wait_exit(loaded)
            swap.empty(guest)
            ratio = with_far["ops_per_s"] / without["ops_per_s"]
            lab.say(
                f"{data}: {without['ops_per_s']:.1f} requests/s of {RATE} without far memory, "
                f"{with_far['ops_per_s']:.1f} with {job.far_bytes / MIB:.0f} MiB in {job.tier}: {job.explanation}"
            )
            figures[data] = {
                "ops_per_s_without": without["ops_per_s"],
                "ops_per_s": with_far["ops_per_s"],
                "throughput_ratio": ratio,
                "latency_p99_ratio": with_far["p99_us"] / without["p99_us"],
                "offloaded_bytes": job.far_bytes,
                "saved_bytes": job.saved_bytes,
                "tier": job.tier,
            }
            lab.at_least(f"{data}.throughput_ratio", ratio, THROUGHPUT_MIN_RATIO)
    return figures


def _load(guest: Guest, data: str) -> int:
    """Starts a process that holds the memory loaded and never used; returns its pid."""
    kind = {"text": "anon", "weights": "weights"}[data]
    region = {"name": "loaded", "bytes": LOADED_MIB * MIB, "kind": kind, "pattern": {"never": True}}
    return programs.workload(guest, _JOB, [region])


def _serve(guest: Guest, data: str, seconds: int) -> dict[str, float]:
    """Runs the server once; returns its throughput and 99th percentile at the end of the run."""
    cgroup, out = guest.cgroup(_JOB[1:]), "/run/sessions.jsonl"
    guest.write(f"{cgroup}/memory.max", str(LIMIT_MIB * MIB))
    guest.write(out, "")
    argv = ["labguest", "sessions", "--rate", str(RATE), "--kib", str(SESSION_KIB), "--keep", str(KEEP_SECONDS)]
    argv += ["--reserve-mib", str(RESERVE_MIB), "--content", data, "--seconds", str(seconds)]
    pid = guest.spawn(argv, cgroup=cgroup, stdout=out, stderr="/run/sessions.err")
    guest.wait_exit(pid, timeout_s=seconds + 120)
    guest.keep(out)
    lines = [json.loads(line) for line in guest.read(out).splitlines()]
    judged = [line for line in lines if "t" in line][-JUDGED_SECONDS:]
    served = sum(line["ops"] for line in judged)
    if not served:
        raise LabError(f"the server served nothing in its last {JUDGED_SECONDS} s: the host is too busy to judge it")
    # Weighted by requests: a second with few requests is a small sample.
    p99 = sum(line["p99_us"] * line["ops"] for line in judged if line["ops"]) / served
    return {"ops_per_s": served / len(judged), "p99_us": p99}
