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

from . import conformal, features, insensitive, untouched
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
    """Returns the days to solve on, after one that only calibrates, and the days to verify on, which end the trace.

    Raises:
        ValueError: the trace is too short.
    """
    last, first = int(of.vms.arrival.max() + 1) // DAY, int(of.vms.arrival.min()) // DAY
    cut = last - held_out
    # A model answers for no weekday that its training lacks.
    if cut - solved - 1 < first + _WEEK:
        needed = solved + 1 + held_out + _WEEK
        raise ValueError(f"the trace has {last - first} days; {solved} to solve on and {held_out} to verify on require {needed}")
    return range(cut - solved - 1, cut), range(cut, last)


def forest_curve(of: Workloads, promise: Promise, *, seed: int, folds: int, progress: Progress) -> list[Point]:
    """Returns the forest's curve that Eq. (1) is solved on."""
    compared = insensitive.validate(of, promise.latency, seed=seed, progress=progress, pdm=promise.pdm, folds=folds)
    return insensitive.curve(compared["RandomForest"])


def memory_curve(nights: Sequence[Night]) -> list[Point]:
    """Returns the curve of untouched memory that Eq. (1) is solved on. VMs that had not ended after the last night are left out."""
    return conformal.curve(nights, (nights[-1].day + 1) * DAY)


@dataclasses.dataclass(frozen=True, slots=True)
class Tested:
    """Workloads with scores of a forest that does not know them, and the validation that sets the forest's threshold."""

    score: Any
    """Below 0 where the forest does not answer."""
    insensitive: Any
    held: insensitive.Held

    def marked(self, target: float, bound: insensitive.Bound) -> Any:
        """Returns which workloads are marked as insensitive."""
        return self.score >= insensitive.threshold(self.held, target, bound).setting


def tested(of: Workloads, others: Workloads, promise: Promise, *, seed: int, folds: int) -> Tested:
    """Trains a forest on `of`, and scores `others` by it."""
    held = insensitive.held_out_scores(of, promise.latency, promise.pdm, seed=seed, progress=_silent, folds=folds)
    forest = insensitive.fit(of.values, insensitive.labels(of, promise.latency, promise.pdm), seed)
    able = untouched.in_range(others.values, *insensitive.ranges(of.values))
    score = np.where(able, insensitive.scores(forest, others.values), -1.0)
    return Tested(score, insensitive.labels(others, promise.latency, promise.pdm), held)


def quarters(of: Workloads, promise: Promise, *, seed: int, folds: int, progress: Progress) -> list[Tested]:
    """Tests each quarter of the workloads by a forest of the others."""
    found = []
    for number, part in enumerate(np.array_split(np.random.default_rng(seed).permutation(len(of)), HELD_OUT_FOLDS)):
        progress(f"verification: part {number + 1} of {HELD_OUT_FOLDS} of the workloads")
        found.append(tested(of.where(np.setdiff1d(np.arange(len(of)), part)), of.where(part), promise, seed=seed, folds=folds))
    return found


def verify(
    nights: Sequence[Night], held_out: range, parts: Sequence[Tested], solution: Solution, bound: insensitive.Bound = insensitive.BOUND
) -> HeldOut:
    """Evaluates the solved shares of errors on the nights of `held_out`, and on the tested workloads."""
    predicted, ratio, memory = [], [], []
    for at, night in enumerate(nights):
        if night.day in held_out:
            predicted.append(conformal.predictions(night, nights[:at], solution.untouched.setting, conformal.one_for_all))
            ratio.append(night.vms.untouched_ratio)
            memory.append(night.vms.memory_bytes)
    found = NOTHING
    if solution.untouched != NOTHING:
        found = untouched.point(np.concatenate(predicted), np.concatenate(ratio), np.concatenate(memory), 0.0)
    marked = np.concatenate([part.marked(solution.insensitive.wrong, bound) for part in parts])
    truth = np.concatenate([part.insensitive for part in parts])
    forest = Point(float(np.mean(marked & ~truth)), float(np.mean(marked)))
    return HeldOut(found, forest, sum(map(len, ratio)), len(truth))


def _silent(_: str) -> None:
    pass
