"""Redis under a hotspot load keeps its promotion rate below the objective while its cold values leave DRAM.

Values are realistic and compress about 3:1. One key in twelve is hot, and the load occasionally reads any of the
others; promotions are these reads, and hot keys that were idle for longer than the threshold. Time runs 60 times faster
than in production (a 2 s scan stands for 120 s), and so does the objective: 0.2 % per minute becomes 12 %. Throughput
is compared within one guest, in alternating runs with and without far memory.
"""

from typing import Any

from thermolab import node, services
from thermolab.cold_age import Experiment, Outcome, Plan
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("saved_bytes", "offloaded_bytes", "coverage_ratio", "throughput_ratio", "promotion_periods")


def run(lab: Lab) -> dict[str, Any]:
    """Fills the server, offloads and compares."""
    with lab.guest() as guest:
        server = services.redis(guest)
        experiment = Experiment(guest, server, "redis", Plan(), lab.say)
        lab.say("filling")
        experiment.fill()
        node.configure(guest, [node.Job(experiment.job)])
        outcome = experiment.run()
        server.stop()
    check(lab, outcome)
    return outcome.figures


def check(lab: Lab, outcome: Outcome) -> None:
    """Checks the bounds that apply to every server."""
    figures = outcome.figures
    lab.at_least("saved_bytes", figures["saved_bytes"], 50 * MIB)
    lab.at_most(
        "promotion_rate_p98_ratio_per_min", figures["promotion_rate_p98_ratio_per_min"], figures["slo_ratio_per_min"]
    )
    # 100 s of periods of 2 s, less delays on a loaded host.
    lab.at_least("promotion_periods", figures["promotion_periods"], 40)
    lab.at_most("reconcile_gap_ratio", figures["reconcile_gap_ratio"], 0.02)
    lab.at_most("replay_differs", figures["replay_differs"], 0)
    lab.at_least("replayed_periods", figures["replayed_periods"], 20)
    lab.at_most("load_errors", figures["load_errors"], 0)
