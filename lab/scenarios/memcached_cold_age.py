"""Memcached under a hotspot load keeps its promotion rate below the objective while its cold items leave DRAM.

The same load, objective and comparison as redis_cold_age. Memcached's LRU crawler, which reads every item at intervals
that grow from a minute to an hour, is disabled: with time compressed 60 times it would never pause.
"""

from typing import Any

from scenarios import redis_cold_age
from thermolab import node, services
from thermolab.cold_age import Experiment, Plan
from thermolab.lab import Lab

KERNELS = redis_cold_age.KERNELS
MORE_IS_BETTER = redis_cold_age.MORE_IS_BETTER


def run(lab: Lab) -> dict[str, Any]:
    """Fills the server, offloads and compares."""
    with lab.guest() as guest:
        server = services.memcached(guest, memory_mib=400, options=["-o", "no_lru_crawler"])
        experiment = Experiment(guest, server, "memcached", Plan(), lab.say)
        lab.say("filling")
        experiment.fill()
        node.configure(guest, [node.Job(experiment.job)])
        outcome = experiment.run()
        server.stop()
    redis_cold_age.check(lab, outcome)
    return outcome.figures
