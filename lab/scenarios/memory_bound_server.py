"""A server at its memory limit serves more requests with far memory, with the same data in zswap and on swap.

At its start it has loaded 96 MiB that it never uses again, as servers do. Every request opens a session that holds
128 KiB for a while; at the offered rate the live sessions need more memory than the server's limit leaves. The server
keeps no reserve: it accepts requests until a session no longer fits below its limit, and stays there. Without
offloading it refuses requests for ever. With the agent (policy `auto`) its throughput must rise (TMO section 4.2 and
figure 11).
"""

import json
from typing import Any

from thermolab import node, offload, programs, swap, truth
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12",)
_CASES = {"zswap": ("text", "zswap"), "swap": ("text", "swap"), "weights": ("weights", "auto")}
"""Data and tier: the same data in both tiers, and data that does not compress where the agent chooses."""

MORE_IS_BETTER = ("requests_ratio", *(f"{case}.{figure}" for case in _CASES for figure in ("ops_per_s", "saved_bytes")))

RATE = 80
SESSION_KIB = 128
KEEP_SECONDS = 20
LOADED_MIB = 96
LIMIT_MIB = 200
RESERVE_MIB = 0
RUN_SECONDS = {"without": 60, "with": 110}
"""Longer with far memory, by the time until memory is old enough."""
JUDGED_SECONDS = 40
"""Length of the judged end of a run: throttling oscillates with the lifetime of a session, and this is twice that."""

REQUESTS_MIN_RATIO = 1.13

_JOB = "/sessions"
# The server is close to its limit most of the time, which is the situation that far memory should improve.
_SETTINGS: node.Settings = {"pressure.ratio": "3%", "pressure.step_max": "4%"}


def run(lab: Lab) -> dict[str, Any]:
    """Runs without and with far memory, for each kind of data and tier."""
    figures: dict[str, Any] = {"offered_ops_per_s": RATE, "reserve_bytes": RESERVE_MIB * MIB}
    with lab.guest() as guest:
        truth.tick(guest)
        for case, (data, tier) in _CASES.items():
            figures[case] = row = _compare(guest, data, tier)
            lab.say(
                f"{data} in {row['tier']}: {row['ops_per_s_without']:.1f} requests/s of {RATE} without far memory, "
                f"{row['ops_per_s']:.1f} with {row['offloaded_bytes'] / MIB:.0f} MiB: {row['explanation']}"
            )
            lab.at_least(f"{case}.requests_ratio", row["requests_ratio"], REQUESTS_MIN_RATIO)
    figures["requests_ratio"] = min(figures[case]["requests_ratio"] for case in ("zswap", "swap"))
    return figures


def _compare(guest: Guest, data: str, tier: str) -> dict[str, Any]:
    """Runs the server without the agent, then with it."""
    loaded = _load(guest, data)
    without = _serve(guest, data, RUN_SECONDS["without"])
    agent = offload.start(guest, [_JOB], "auto", tier, _SETTINGS)
    with_far = _serve(guest, data, RUN_SECONDS["with"])
    job = offload.offloaded(agent, _JOB)
    agent.stop()
    guest.kill(loaded)
    guest.wait_exit(loaded)
    swap.empty(guest)
    return {
        "ops_per_s_without": without["ops_per_s"],
        "ops_per_s": with_far["ops_per_s"],
        "requests_ratio": with_far["ops_per_s"] / without["ops_per_s"],
        "latency_p99_ratio": with_far["p99_us"] / without["p99_us"],
        "swapped_without_bytes": int(without["swapped_bytes"]),
        "offloaded_bytes": job.far_bytes,
        "saved_bytes": job.saved_bytes,
        "tier": job.tier,
        "explanation": job.explanation,
    }


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
    # What the kernel swapped by itself, when the server reached its limit.
    swapped = guest.number(f"{cgroup}/memory.swap.current")
    return {"ops_per_s": served / len(judged), "p99_us": p99, "swapped_bytes": swapped}
