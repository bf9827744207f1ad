"""Both models for one promise: how many VMs stay within the performance margin (Pond Eq. 1), solved, trained and verified.

The settings are solved on the days before those that verify them. The share of false positives is solved on all workloads, as a few
hundred are too few to keep some for later; each is verified by a forest, with its threshold, of the other three quarters. What is
verified is what will run: thresholds and quantiles are chosen again each night for the solved shares of errors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import curves, features, insensitive, untouched
from .curves import NOTHING, Point, Solution
from .untouched import Night, Progress
from .vms import DAY
from .workloads import Workloads

HELD_OUT_FOLDS = 4
"""Each workload is verified by a forest that was trained on the other three quarters."""

ERRORS_BEYOND = 2.0
"""A promise is broken if the errors exceed it by more than so many standard errors."""


_WEEK = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Promise:
    """What is promised: a share `tp` of VMs is slowed by at most `pdm` on memory of this latency."""

    tp: float
    pdm: float
    latency: float


@dataclasses.dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors and gains on VMs and workloads that neither trained the models nor chose their settings."""

    untouched: Point
    insensitive: Point
    vms: int
    workloads: int

    @property
    def wrong(self) -> float:
        """FP + OP."""
        return self.untouched.wrong + self.insensitive.wrong

    @property
    def standard_error(self) -> float:
        """Of `wrong`, if VMs and workloads are independent. VMs of a day are not quite: it is a lower bound."""
        parts = ((self.untouched.wrong, self.vms), (self.insensitive.wrong, self.workloads))
        return math.sqrt(sum(wrong * (1 - wrong) / max(count, 1) for wrong, count in parts))

    def holds(self, tp: float) -> bool:
        """Returns whether the errors are within the promise, as far as so many VMs and workloads can show."""
        return self.wrong <= 1 - tp + ERRORS_BEYOND * self.standard_error


def days(of: features.Known, solved: int, held_out: int) -> tuple[range, range]:
    """Returns the days to solve on and the days to verify on, which end the trace.

    Raises:
        ValueError: the trace is too short.
    """
    last, first = int(of.vms.arrival.max() + 1) // DAY, int(of.vms.arrival.min()) // DAY
    cut = last - held_out
    # A model answers for no weekday that its training lacks.
    if cut - solved < first + _WEEK:
        needed = solved + held_out + _WEEK
        raise ValueError(f"the trace has {last - first} days; {solved} to solve on and {held_out} to verify on require {needed}")
    return range(cut - solved, cut), range(cut, last)


def solve(nights: Sequence[Night], of: Workloads, promise: Promise, *, seed: int, folds: int, progress: Progress) -> Solution:
    """Solves Eq. (1) on these nights and workloads. VMs that had not ended after the last night are left out."""
    until = (nights[-1].day + 1) * DAY
    ended = [_where(night, night.vms.departure <= until) for night in nights]
    compared = insensitive.validate(of, promise.latency, seed=seed, progress=progress, pdm=promise.pdm, folds=folds)
    return curves.solve(insensitive.curve(compared["RandomForest"]), untouched.curve(ended), 1 - promise.tp)


def verify(
    nights: Sequence[Night],
    held_out: range,
    of: Workloads,
    promise: Promise,
    solution: Solution,
    *,
    seed: int,
    folds: int,
    progress: Progress,
) -> HeldOut:
    """Evaluates the solved shares of errors on the nights of `held_out`, and on each workload by a forest of the others."""
    predicted, ratio, memory = [], [], []
    for at, night in enumerate(nights):
        if night.day in held_out:
            chosen = untouched.choose(nights[:at], solution.untouched.wrong, night.day * DAY)
            predicted.append(night.predicted[chosen])
            ratio.append(night.vms.untouched_ratio)
            memory.append(night.vms.memory_bytes)
    found = NOTHING
    if solution.untouched != NOTHING:
        found = untouched.point(np.concatenate(predicted), np.concatenate(ratio), np.concatenate(memory), 0.0)
    marked, truth = _held_out_workloads(of, promise, solution, seed=seed, folds=folds, progress=progress)
    forest = Point(float(np.mean(marked & ~truth)), float(np.mean(marked)))
    return HeldOut(found, forest, sum(map(len, ratio)), len(truth))


def _held_out_workloads(
    of: Workloads, promise: Promise, solution: Solution, *, seed: int, folds: int, progress: Progress
) -> tuple[Any, Any]:
    """Returns which workloads a forest that does not know them marks as insensitive, and which are."""
    truth = insensitive.labels(of, promise.latency, promise.pdm)
    marked: Any = np.zeros(len(of), dtype=bool)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(of)), HELD_OUT_FOLDS)
    for number, part in enumerate(parts):
        progress(f"verification: part {number + 1} of {HELD_OUT_FOLDS} of the workloads")
        others = np.setdiff1d(np.arange(len(of)), part)
        known = Workloads([of.names[at] for at in others], of.counters, of.values[others], of.slowdowns[others])
        trained = insensitive.train(
            known, promise.latency, solution.insensitive.wrong, seed=seed, progress=_silent, pdm=promise.pdm, folds=folds
        )
        able = untouched.in_range(of.values[part], trained.low, trained.high)
        marked[part] = able & (insensitive.scores(trained.forest, of.values[part]) >= trained.threshold)
    return marked, truth


def _where(night: Night, mask: Any) -> Night:
    return Night(night.day, night.vms.where(mask), night.predicted[:, mask])


def _silent(_: str) -> None:
    pass
