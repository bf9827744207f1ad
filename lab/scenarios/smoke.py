"""The main path in a minute: Redis runs, its ages are seen, cold pages leave, and stopping puts everything back."""

from typing import Any

from thermolab import node, services
from thermolab.cold_age import Experiment, Plan
from thermolab.lab import Lab
from thermolab.qemu import MIB

_LEAVINGS = ("memory.low", "memory.swap.max", "memory.high", "memory.max")


def run(lab: Lab) -> dict[str, Any]:
    """A small server, a short load, one closed-loop run on each side."""
    plan = Plan(keys=40_000, rate=500, settle_seconds=30, judged_seconds=20, pairs=1, requests=5_000)
    with lab.guest() as guest:
        server = services.redis(guest)
        experiment = Experiment(guest, server, "redis", plan, lab.say)
        experiment.fill()
        found = {name: guest.read(f"{server.cgroup}/{name}") for name in _LEAVINGS}
        zswap = guest.read("/sys/module/zswap/parameters/enabled")
        node.configure(guest, [node.Job(experiment.job)], {"cold_age.warmup": "10s"})
        figures = experiment.run().figures
        left = {name: guest.read(f"{server.cgroup}/{name}") for name in _LEAVINGS}
        lab.holds("put back", left == found, f"cgroup files were {found} and are {left}")
        lab.holds("zswap", guest.read("/sys/module/zswap/parameters/enabled") == zswap, "zswap is not as it was")
        server.stop()
    lab.at_least("offloaded_bytes", figures["offloaded_bytes"], 10 * MIB)
    lab.at_least("saved_bytes", figures["saved_bytes"], 5 * MIB)
    lab.at_most("replay_differs", figures["replay_differs"], 0)
    lab.at_least("replayed_periods", figures["replayed_periods"], 10)
    lab.at_most("load_errors", figures["load_errors"], 0)
    return figures
