"""Shares as tasks of a Ray cluster.

These are plain tasks, because `ray.data` would move rows. Ray reruns a task whose worker or machine fails. The results of
other tasks are kept, and recomputed only if the machine that held them has failed too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Must be set before Ray is imported: disables usage reports.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from .kernel import Killed, Model, Share
from .simulation import Part, Result, Simulation
from .tree import add_up

Progress = Callable[[int, int], None]
"""Called with the number of finished tasks and the number of all tasks."""

RETRIES = 5
"""Retries of a task whose worker fails."""


@contextmanager
def connected(address: str | None) -> Iterator[int]:
    """Connects to the cluster at `address`, or starts one on this machine. Yields the number of cores."""
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
    """Returns the tally of all shares, computed on the Ray cluster that this process is connected to.

    `threads` is the number of cores per share. `progress` is called when a share is finished. A failure of the command is
    raised as `Refused` and not retried.
    """
    again = {"max_retries": RETRIES, "retry_exceptions": [Killed]}
    # Only the size is returned to this process; tallies are passed between workers.
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
    """Waits for tasks. If one fails, cancels the others and raises its error."""
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


def _simulate(simulation: Simulation, part: Part, threads: int) -> Result:
    return simulation.run(part, threads)


def simulate(simulation: Simulation, parts: list[Part], threads: int = 1, progress: Progress | None = None) -> list[Result]:
    """Returns the results of the parts of a simulation, in order. The `Each` of `simulation.sweep` for a cluster.

    Each part is a task of the Ray cluster that this process is connected to, on `threads` cores.
    """
    run: Any = ray.remote(num_cpus=threads, max_retries=RETRIES, retry_exceptions=[Killed])(_simulate)
    tasks = [run.remote(simulation, part, threads) for part in parts]
    _wait(tasks, progress)
    results: list[Result] = ray.get(tasks)
    return results
