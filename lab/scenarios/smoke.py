"""The main path in two minutes: the agent tracks Redis's ages, offloads cold pages, and restores settings on exit."""

import json
from typing import Any

from thermolab import node, services
from thermolab.cold_age import Experiment, Plan
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

_STORE = "/run/traces"
_SETTINGS = ("memory.low", "memory.swap.max", "memory.high", "memory.max")


def _run_command(lab: Lab, guest: Guest) -> None:
    """Checks that `thermocline run` uses a cgroup of its own, returns the command's status and removes the cgroup."""
    command = [
        "thermocline",
        "run",
        "--format",
        "json",
        "--",
        "sh",
        "-c",
        "cat /proc/self/cgroup >/run/mine; sleep 3; exit 7",
    ]
    done = guest.run(command, check=False)
    lab.holds(
        "run",
        done.status == 7,
        f"`thermocline run` exited with {done.status} instead of the command's 7: {done.stderr}",
    )
    mine = guest.read("/run/mine").strip()
    lab.holds("run", mine.startswith("0::/thermocline.run-"), f"the command ran in {mine}")
    jobs = json.loads(done.stdout)["jobs"] if done.stdout else []
    lab.holds("run", [job["job"] for job in jobs] == [mine[3:]], f"it observed {jobs}")
    lab.holds("run", not guest.exists(f"/sys/fs/cgroup{mine[3:]}"), f"the cgroup {mine} is still there")


def _check_traces(lab: Lab, guest: Guest, cgroup: str) -> None:
    """Checks that the trace has the sums of the journal's periods, in fewer entries, each period once."""
    checked = guest.run(["thermocline", "trace", "validate", _STORE], check=False)
    lab.holds("trace", checked.status == 0, f"the trace is not valid: {checked.stdout}{checked.stderr}")
    exported = guest.run(["thermocline", "trace", "export", _STORE, "--format", "json"]).stdout
    entries = [json.loads(line) for line in exported.splitlines()]
    periods = [record for record in node.journal(guest) if record["record"] == "period"]
    stalls = sum(entry["memory_stall_us"] + entry["io_stall_us"] for entry in entries)
    for name, counted, journaled in (
        ("periods", "periods", len(periods)),
        ("time", "duration_ms", sum(period["outcome"]["elapsed_ms"] for period in periods)),
        ("promotions", "promoted_pages", sum(period["outcome"]["promoted"] for period in periods)),
        ("offloaded", "offloaded_pages", sum(period["outcome"]["offloaded"] for period in periods)),
    ):
        traced = sum(entry[counted] for entry in entries)
        lab.holds("trace", traced == journaled, f"{name}: {traced} in the trace, {journaled} in the journal")
    lab.holds("trace", 0 < len(entries) < len(periods), f"{len(periods)} periods became {len(entries)} entries")
    # The kernel's totals go on after the trace, and began before it.
    totals = [int(guest.read(f"{cgroup}/{name}.pressure").split("total=")[1].split()[0]) for name in ("memory", "io")]
    lab.holds("trace", stalls <= sum(totals), f"{stalls} us of stalls in the trace, the kernel counted {totals}")
    far = max((entry["zswap_stored_bytes"] for entry in entries), default=0)
    lab.holds("trace", far > MIB, f"the trace has only {far} bytes stored in zswap")


def run(lab: Lab) -> dict[str, Any]:
    """Runs a small server with a short load, and one closed-loop run with and one without far memory."""
    plan = Plan(keys=40_000, rate=500, settle_seconds=90, judged_seconds=20, pairs=1, requests=5_000)
    with lab.guest() as guest:
        server = services.redis(guest)
        experiment = Experiment(guest, server, "redis", plan, lab.say)
        experiment.fill()
        found = {name: guest.read(f"{server.cgroup}/{name}") for name in _SETTINGS}
        zswap = guest.read("/sys/module/zswap/parameters/enabled")
        settings: node.Settings = {
            "cold_age.warmup": "10s",
            "trace.store": _STORE,
            "trace.entry_period": "8s",
            "trace.file_period": "30s",
        }
        node.configure(guest, [node.Job(experiment.job)], settings)
        figures = experiment.run().figures
        left = {name: guest.read(f"{server.cgroup}/{name}") for name in _SETTINGS}
        lab.holds("restored", left == found, f"cgroup files were {found} and are {left}")
        _check_traces(lab, guest, server.cgroup)
        _run_command(lab, guest)
        lab.holds("zswap", guest.read("/sys/module/zswap/parameters/enabled") == zswap, "zswap was not restored")
        server.stop()
    lab.at_least("offloaded_bytes", figures["offloaded_bytes"], 10 * MIB)
    lab.at_least("saved_bytes", figures["saved_bytes"], 5 * MIB)
    lab.at_most("replay_differs", figures["replay_differs"], 0)
    lab.at_least("replayed_periods", figures["replayed_periods"], 10)
    lab.at_most("load_errors", figures["load_errors"], 0)
    return figures
