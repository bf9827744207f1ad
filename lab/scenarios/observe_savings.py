"""What `observe` says could be saved, compared with what the agent then saves of the same jobs.

Three jobs: one has anonymous memory that is never accessed again, one has shared memory and memory that is accessed now
and then, one serves requests with popular pages. `observe` runs first, while nothing is offloaded; then the agent,
policy `cold_age`, with the same configuration; then `observe` beside that agent. `observe` for a second, which is too
short to know anything, must not print zeros.
"""

import json
from typing import Any

from thermolab import node, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Server, Workload, requests

KERNELS = ("6.12", "6.12-idle")
MORE_IS_BETTER = ("batch.saved_bytes", "shared.saved_bytes", "server.saved_bytes")

SERVER = Server(rounds=20_000, rate=5)
"""At 20 requests/s, rarely requested pages exceed the objective in a tenth of the periods at any age."""
OBSERVE_SECONDS = 120
TEXT_SECONDS = 24
AGENT_SECONDS = 300
ERROR_MAX_RATIO = 0.15

_SETTINGS: node.Settings = {"agent.policy": "cold_age"}
_HOT = Region("hot", 8, {"period_ms": 100})


def _regions() -> dict[str, list[Region]]:
    return {
        "batch": [Region("results", 96, {"never": True}), _HOT],
        "shared": [
            Region("segments", 64, {"never": True}, kind="shared"),
            Region("warm", 24, {"period_ms": 1_000}),
            _HOT,
        ],
        "server": [Region("objects", 96, requests(1, 1.4)), _HOT],
    }


def run(lab: Lab) -> dict[str, Any]:
    """Observes, offloads, and compares."""
    with lab.guest() as guest:
        truth.tick(guest)
        jobs = {
            name: Workload(guest, regions, name, SERVER if name == "server" else None)
            for name, regions in _regions().items()
        }
        node.configure(guest, [node.Job(job.job) for job in jobs.values()], _SETTINGS)
        names = [job.job for job in jobs.values()]
        early = guest.run(["thermocline", "observe", *names, "--for", "1s"], timeout_s=60).stdout
        lab.holds("early", "known after two scans" in early and " 0 B" not in early, f"it printed: {early}")
        view = _observe(guest, names, OBSERVE_SECONDS)
        argv = ["thermocline", "observe", *names, "--for", f"{TEXT_SECONDS}s"]
        table = guest.run(argv, timeout_s=TEXT_SECONDS + 60).stdout
        lab.say("the table of `observe`:\n" + table)
        lab.holds("table", "could save, net of" in table, f"it printed: {table}")
        agent = node.start(guest)
        guest.run(["sleep", str(AGENT_SECONDS)], timeout_s=AGENT_SECONDS + 60)
        status = agent.status()
        beside = _observe(guest, names, 1)
        agent.stop()
        for job in jobs.values():
            job.stop()
    figures = {name: _compare(lab, name, view, status, beside) for name in jobs}
    worst = max(row["could_save_error_ratio"] for row in figures.values())
    lab.at_most("worst_error_ratio", worst, ERROR_MAX_RATIO)
    return {**figures, "worst_error_ratio": worst, "could_save_bytes": view["could_save_bytes"]}


def _observe(guest: Guest, names: list[str], seconds: int) -> dict[str, Any]:
    """Returns the last view that `observe` printed."""
    argv = ["thermocline", "observe", *names, "--for", f"{seconds}s", "--format", "json"]
    text = guest.run(argv, timeout_s=seconds + 60).stdout.strip()
    decoder = json.JSONDecoder()
    view: dict[str, Any] = {}
    at = 0
    while at < len(text):
        view, end = decoder.raw_decode(text, at)
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return view


def _compare(
    lab: Lab, name: str, view: dict[str, Any], status: dict[str, Any], beside: dict[str, Any]
) -> dict[str, Any]:
    before, after, later = (
        next(job for job in one["jobs"] if job["job"] == f"/{name}") for one in (view, status, beside)
    )
    could, saved = before["could_save_bytes"] or 0, after["saved_bytes"]
    row = {
        "could_save_bytes": could,
        "saved_bytes": saved,
        "could_save_error_ratio": abs(could - saved) / max(saved, 1),
        "could_save_beside_agent_bytes": later["could_save_bytes"],
        "would_occupy_ratio": before["would_occupy_ratio"],
        "occupied_ratio": after["pool_bytes"] / max(after["far_bytes"], 1),
        "threshold_seconds": before["threshold_seconds"],
        "agent_threshold_seconds": after["threshold_seconds"],
    }
    lab.say(
        f"{name}: could save {could / MIB:.1f} MiB (to {row['would_occupy_ratio']}, older than "
        f"{row['threshold_seconds']} s); saved {saved / MIB:.1f} MiB (to {row['occupied_ratio']:.3f}, older than "
        f"{row['agent_threshold_seconds']} s)"
    )
    lab.at_least(f"{name}.saved_bytes", saved, MIB)
    lab.at_least(f"{name}.could_save_beside_agent_bytes", row["could_save_beside_agent_bytes"] or 0, 1)
    return row
