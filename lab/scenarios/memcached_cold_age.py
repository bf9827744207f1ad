"""Memcached under a hotspot load keeps its promotion rate under the objective while its cold items leave DRAM.

As redis_cold_age: the same load, the same objective, the same comparison. Memcached's LRU crawler, which reads every
item at growing intervals of a minute to an hour, is off: in time that runs 60 times faster it would never pause.
"""

from typing import Any

from scenarios import redis_cold_age
from thermolab import node, services
from thermolab.cold_age import Experiment, Plan
from thermolab.lab import Lab

KERNELS = redis_cold_age.KERNELS
MORE_IS_BETTER = redis_cold_age.MORE_IS_BETTER


def run(lab: Lab) -> dict[str, Any]:
    """Fill, offload, compare."""
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
