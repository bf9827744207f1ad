"""The command `thermocline pool simulate` as parts that can be run anywhere and put together again.

A part is one memory policy at one latency, with some of the pool sizes: what it tells does not depend on the other parts. Put
together in their order they are what one run of all of them tells, to the bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .kernel import Refused, run

Told = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What one task simulates."""

    pool_sizes: tuple[int, ...]
    memory: tuple[str, ...]
    latency: tuple[str, ...]


@dataclass(frozen=True)
class Simulation:
    """Many configurations on one trace.

    `program` and `trace` are names that are right on every machine of the cluster. `question` are the arguments of `thermocline
    pool simulate` that all configurations share: `--seed`, `--models`, `--confirm` and so on.
    """

    trace: str
    pool_sizes: tuple[int, ...]
    memory: tuple[str, ...]
    latency: tuple[str, ...]
    program: str = "thermocline"
    question: tuple[str, ...] = ()

    def all(self) -> Part:
        """All of it as one part."""
        return Part(self.pool_sizes, self.memory, self.latency)

    def plan(self, tasks: int) -> list[Part]:
        """Some parts: one for each policy at each latency, and more where more tasks are wanted; never more than configurations.

        Pool sizes of a policy stay together if they can, because each task reads the trace and places its VMs without pools first.
        """
        pairs = [(memory, latency) for latency in self.latency for memory in self.memory]
        groups = min(len(self.pool_sizes), max(1, -(-tasks // max(1, len(pairs)))))
        size = -(-len(self.pool_sizes) // groups)
        sizes = [self.pool_sizes[first : first + size] for first in range(0, len(self.pool_sizes), size)]
        return [Part(some, (memory,), (latency,)) for memory, latency in pairs for some in sizes]

    def arguments(self, part: Part) -> list[str]:
        """The command that simulates a part, without the program."""
        sizes = ",".join(map(str, part.pool_sizes))
        asked = ["--pool-sizes", sizes, "--memory", ",".join(part.memory), "--latency", ",".join(part.latency)]
        return ["pool", "simulate", "--trace", self.trace, *asked, *self.question, "--format", "json"]

    def run(self, part: Part, threads: int | None = None) -> Told:
        """What one part tells; all cores work on it if nothing else is said."""
        counted = ["--threads", str(threads)] if threads else []
        told: Told = json.loads(run(self.program, *self.arguments(part), *counted))
        return told

    def whole(self, told: Sequence[Told]) -> Told:
        """What one run of all parts would have told, from what each of them did, in the order of the plan.

        Raises:
            Refused: the parts are not of the same trace, program and question.
        """
        first, *others = told
        without = first["events_without_pools"]
        for other in others:
            odd = [name for name in first if name not in ("results", "events") and first[name] != other.get(name)]
            if odd:
                raise Refused(f"parts differ in {', '.join(odd)}: the machines have another program or another {self.trace}")
        return first | {
            "results": [row for one in told for row in one["results"]],
            # Every part has run without pools first; one run of all does so once.
            "events": without + sum(one["events"] - without for one in told),
        }


Each = Callable[[Simulation, list[Part]], list[Told]]
"""Runs parts, wherever, and gives back what they told, in their order."""


def here(simulation: Simulation, parts: list[Part]) -> list[Told]:
    """Parts one after the other, each on all cores of this machine."""
    return [simulation.run(part) for part in parts]


def sweep(simulation: Simulation, tasks: int = 1, each: Each = here) -> Told:
    """What `thermocline pool simulate` tells of all configurations, by `each`: on this machine, or on a cluster."""
    parts = [simulation.all()] if tasks <= 1 else simulation.plan(tasks)
    return simulation.whole(each(simulation, parts))
