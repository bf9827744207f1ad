"""Shares as tasks of a Ray cluster.

Plain tasks: `ray.data` would move rows. A task whose worker or machine dies is run again by Ray; what other tasks have counted
is kept, and counted again only if the machine that held it has died, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Before Ray is imported: nothing is told to anybody.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from .kernel import Killed, Model, Share
from .simulation import Part, Simulation, Told
from .tree import add_up

Progress = Callable[[int, int], None]
"""Hears how many of how many tasks are done."""

RETRIES = 5
"""How often a task is run again whose worker dies."""


@contextmanager
def connected(address: str | None) -> Iterator[int]:
    """A connection to the cluster at `address`, or to one of this machine that lives as long; yields how many cores it has."""
    ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False, logging_level="warning")
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def _count(model: Model, share: Share, threads: int) -> tuple[int, bytes]:
    tally = model.count(share, threads)
    return len(tally), tally


def _add(model: Model, *tallies: bytes) -> bytes:
    return model.add(*tallies)


def replay(model: Model, shares: list[Share], threads: int = 1, progress: Progress | None = None) -> bytes:
    """The tally of all shares, counted on the Ray cluster that this process is connected to.

    `threads` is how many cores a share takes. `progress` hears how many of the shares are done. What the command refuses is raised
    as `Refused`, and not tried again.
    """
    again = {"max_retries": RETRIES, "retry_exceptions": [Killed]}
    # The size alone comes back to this process; tallies go from worker to worker.
    count: Any = ray.remote(num_cpus=threads, num_returns=2, **again)(_count)
    add: Any = ray.remote(num_cpus=1, **again)(_add)
    tasks = [count.remote(model, share, threads) for share in shares]
    whole = add_up([tally for _, tally in tasks], lambda group: add.remote(model, *group))
    _wait([size for size, _ in tasks], progress)
    try:
        tally: bytes = ray.get(whole)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return tally


def _wait(tasks: list[Any], progress: Progress | None) -> None:
    """Waits for tasks; where one is refused, ends the others and raises what it said."""
    waiting = tasks
    try:
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done)
            if progress is not None:
                progress(len(tasks) - len(waiting), len(tasks))
    except ray.exceptions.RayTaskError as error:
        for task in waiting:
            ray.cancel(task, force=True)
        raise error.cause from None


def _simulate(simulation: Simulation, part: Part, threads: int) -> Told:
    return simulation.run(part, threads)


def simulate(simulation: Simulation, parts: list[Part], threads: int = 1, progress: Progress | None = None) -> list[Told]:
    """What parts of a simulation tell, in their order: the `Each` of `simulation.sweep` for a cluster.

    Each part is a task of the Ray cluster that this process is connected to, on so many cores.
    """
    run: Any = ray.remote(num_cpus=threads, max_retries=RETRIES, retry_exceptions=[Killed])(_simulate)
    tasks = [run.remote(simulation, part, threads) for part in parts]
    _wait(tasks, progress)
    told: list[Told] = ray.get(tasks)
    return told
