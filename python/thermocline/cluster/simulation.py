"""The command `thermocline pool simulate` as parts that can run anywhere.

A part is one memory policy at one latency with some of the pool sizes. Its result does not depend on other parts. The
combined result is bit-identical to that of a single run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .kernel import Refused, run

Result = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """The configurations of one task."""

    pool_sizes: tuple[int, ...]
    memory: tuple[str, ...]
    latency: tuple[str, ...]


@dataclass(frozen=True)
class Simulation:
    """Many configurations on one trace.

    `program` and `trace` are paths on every machine of the cluster. `question` are the arguments of `thermocline pool
    simulate` that all configurations share: `--seed`, `--models`, `--confirm` and so on.
    """

    trace: str
    pool_sizes: tuple[int, ...]
    memory: tuple[str, ...]
    latency: tuple[str, ...]
    program: str = "thermocline"
    question: tuple[str, ...] = ()

    def all(self) -> Part:
        """Returns all configurations as one part."""
        return Part(self.pool_sizes, self.memory, self.latency)

    def plan(self, tasks: int) -> list[Part]:
        """Returns parts: one for each policy at each latency, or more for more tasks, at most one per configuration.

        Pool sizes of a policy stay together if possible, because each task first reads the trace and places its VMs without pools.
        """
        pairs = [(memory, latency) for latency in self.latency for memory in self.memory]
        groups = min(len(self.pool_sizes), max(1, -(-tasks // max(1, len(pairs)))))
        size = -(-len(self.pool_sizes) // groups)
        sizes = [self.pool_sizes[first : first + size] for first in range(0, len(self.pool_sizes), size)]
        return [Part(some, (memory,), (latency,)) for memory, latency in pairs for some in sizes]

    def arguments(self, part: Part) -> list[str]:
        """Returns the arguments of the program that simulate a part."""
        sizes = ",".join(map(str, part.pool_sizes))
        configurations = ["--pool-sizes", sizes, "--memory", ",".join(part.memory), "--latency", ",".join(part.latency)]
        return ["pool", "simulate", "--trace", self.trace, *configurations, *self.question, "--format", "json"]

    def run(self, part: Part, threads: int | None = None) -> Result:
        """Runs one part, on all cores by default."""
        limit = ["--threads", str(threads)] if threads else []
        result: Result = json.loads(run(self.program, *self.arguments(part), *limit))
        return result

    def whole(self, results: Sequence[Result]) -> Result:
        """Combines the results of all parts, in the order of the plan.

        Raises:
            Refused: the results are not of the same trace, program and question.
        """
        first, *others = results
        without = first["events_without_pools"]
        for other in others:
            different = [name for name in first if name not in ("results", "events") and first[name] != other.get(name)]
            if different:
                raise Refused(f"results differ in {', '.join(different)}: the machines have different programs or a different {self.trace}")
        return first | {
            "results": [row for one in results for row in one["results"]],
            # Every part includes the run without pools; it counts once.
            "events": without + sum(one["events"] - without for one in results),
        }


Each = Callable[[Simulation, list[Part]], list[Result]]
"""Runs parts and returns their results in order."""


def here(simulation: Simulation, parts: list[Part]) -> list[Result]:
    """Runs parts one after the other, each on all cores of this machine."""
    return [simulation.run(part) for part in parts]


def sweep(simulation: Simulation, tasks: int = 1, each: Each = here) -> Result:
    """Returns the result of `thermocline pool simulate` for all configurations, run by `each`."""
    parts = [simulation.all()] if tasks <= 1 else simulation.plan(tasks)
    return simulation.whole(each(simulation, parts))
