"""The latency-insensitivity model: a random forest on top-down counters, compared with single counters (Pond section 6.4.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .curves import Point
from .workloads import LATENCIES, Workloads

PDM = 0.05
"""The performance degradation margin: the largest slowdown of an insensitive workload."""

FOLDS = 100

TREES = 100
"""scikit-learn's default."""

HEURISTICS = ("DRAM_Bound", "Memory_Bound")

Progress = Callable[[str], None]
Bound = Callable[[float, int], float]
"""Returns the false positives to expect, from their share in the validation and the number of workloads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """The result of one split: for each number of workloads marked insensitive, the share of all that is marked wrongly."""

    wrong: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """A forest with the parameters of serving."""

    forest: Any
    counters: Sequence[str]
    low: Any
    high: Any
    threshold: float
    """Scores at or above it mean insensitive."""
    latency: float
    pdm: float
    expected: Point
    """Result of this threshold in the validation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Scores of workloads by forests that were trained without them, and which of them are insensitive."""

    score: Any
    insensitive: Any
    workloads: int
    """Number of workloads. Each has a score per round of the validation."""


def as_validated(wrong: float, _: int) -> float:
    """Expects the share of false positives that the validation had."""
    return wrong


def with_standard_error(wrong: float, count: int) -> float:
    """Adds one standard error of a share of `count` workloads."""
    return wrong + math.sqrt(wrong * (1 - wrong) / count)


def with_one_more(wrong: float, count: int) -> float:
    """Counts the workload to come as a false positive: conformal risk control (Angelopoulos 2022, section 2)."""
    return (wrong * count + 1) / (count + 1)


BOUND: Bound = with_standard_error
"""The bound that thresholds are chosen by, the same margin as for untouched memory. As validated, the threshold that marks most
workloads within its target is also one whose false positives the validation underestimates."""


def labels(of: Workloads, latency: float, pdm: float) -> Any:
    """Returns which workloads are insensitive.

    Raises:
        ValueError: there are no slowdowns for this latency.
    """
    if latency not in LATENCIES:
        raise ValueError(f"slowdowns are known at {LATENCIES} of local latency, not at {latency}")
    return of.slowdowns[:, LATENCIES.index(latency)] <= pdm


def fit(values: Any, insensitive: Any, seed: int, trees: int = TREES) -> Any:
    """Trains scikit-learn's forest with its defaults, in one thread."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=trees, n_jobs=1, random_state=seed).fit(values, insensitive)


def scores(forest: Any, values: Any) -> Any:
    """Returns the forest's probability that a workload is insensitive."""
    at = list(forest.classes_).index(True)
    return forest.predict_proba(values)[:, at]


def wrong_by_count(score: Any, insensitive: Any) -> Any:
    """Returns, for the 0, 1, 2 ... workloads of highest score, the share of all workloads that are among them and sensitive."""
    order = np.argsort(-score, kind="stable")
    return np.concatenate([[0.0], np.cumsum(~insensitive[order])]) / len(score)


def splits(count: int, folds: int, *, seed: int) -> list[tuple[Any, Any]]:
    """Returns random halves for training and testing."""
    chance = np.random.default_rng(seed)
    halves = (chance.permutation(count) for _ in range(folds))
    return [(mixed[: count // 2], mixed[count // 2 :]) for mixed in halves]


def validate(
    of: Workloads, latency: float, *, seed: int, progress: Progress, pdm: float = PDM, folds: int = FOLDS
) -> dict[str, list[Fold]]:
    """Validates the forest and both heuristics on the test halves of the same splits."""
    insensitive = labels(of, latency, pdm)
    folds_by_model: dict[str, list[Fold]] = {"RandomForest": [], **{name: [] for name in HEURISTICS if name in of.counters}}
    for number, (train, test) in enumerate(splits(len(of), folds, seed=seed)):
        if number % 20 == 0:
            progress(f"validation at {latency:.0%}: fold {number + 1} of {folds}")
        if insensitive[train].all() or not insensitive[train].any():
            continue
        forest = fit(of.values[train], insensitive[train], seed + number)
        folds_by_model["RandomForest"].append(Fold(wrong_by_count(scores(forest, of.values[test]), insensitive[test])))
        for name in folds_by_model.keys() - {"RandomForest"}:
            folds_by_model[name].append(Fold(wrong_by_count(-of.column(name)[test], insensitive[test])))
    if not folds_by_model["RandomForest"]:
        raise ValueError(f"all workloads are on one side of the margin of {pdm:.1%} at {latency:.0%}, so there is nothing to learn")
    return folds_by_model


def curve(folds: Sequence[Fold]) -> list[Point]:
    """Returns the mean over folds: workloads marked insensitive, and those marked wrongly."""
    wrong = np.mean([fold.wrong for fold in folds], axis=0)
    return [Point(float(one), at / (len(wrong) - 1), at / (len(wrong) - 1)) for at, one in enumerate(wrong)]


def confidence(folds: Sequence[Fold], sigmas: float = 2.576) -> Any:
    """Returns half the width of the 99 % confidence interval of the mean, by number of marked workloads."""
    return sigmas * np.std([fold.wrong for fold in folds], axis=0) / math.sqrt(len(folds))


def train(of: Workloads, latency: float, target: float, *, seed: int, progress: Progress, pdm: float = PDM, folds: int = FOLDS) -> Trained:
    """Trains a forest on all workloads, with the threshold that keeps false positives within `target` by the validation and `BOUND`."""
    held = held_out_scores(of, latency, pdm, seed=seed, progress=progress, folds=folds)
    expected = threshold(held, target)
    forest = fit(of.values, labels(of, latency, pdm), seed)
    return Trained(forest, of.counters, *ranges(of.values), expected.setting, latency, pdm, expected)


def threshold(held: Held, target: float, bound: Bound = BOUND) -> Point:
    """Returns the threshold that marks most workloads with at most `target` false positives by this bound.

    If none does, a threshold above 1 marks no workload as insensitive.
    """
    found = Point(0.0, 0.0, 2.0)
    for at in np.unique(held.score):
        marked = held.score >= at
        wrong = float(np.mean(marked & ~held.insensitive))
        if bound(wrong, held.workloads) <= target:
            found = max(found, Point(wrong, float(np.mean(marked)), float(at)), key=lambda one: (one.gain, -one.wrong))
    return found


def ranges(values: Any) -> tuple[Any, Any]:
    """Returns the range of each counter in which the forest answers: that of the training data, extended by its width.

    A few hundred workloads do not show the full range of a counter: a new workload exceeds one or two of forty ranges.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    return low - (high - low), high + (high - low)


def held_out_scores(of: Workloads, latency: float, pdm: float, *, seed: int, progress: Progress, folds: int) -> Held:
    """Returns scores of all workloads from repeated tenfold cross-validation, each by a forest that does not know the workload."""
    insensitive = labels(of, latency, pdm)
    chance = np.random.default_rng(seed)
    score, truth = [], []
    for round_ in range(max(1, folds // 10)):
        progress(f"threshold: round {round_ + 1} of {max(1, folds // 10)}")
        for test in np.array_split(chance.permutation(len(of)), 10):
            train = np.setdiff1d(np.arange(len(of)), test)
            if insensitive[train].any() and not insensitive[train].all():
                score.append(scores(fit(of.values[train], insensitive[train], seed + round_), of.values[test]))
                truth.append(insensitive[test])
    if not score:
        raise ValueError("all workloads are on one side of the margin, so there is nothing to learn")
    return Held(np.concatenate(score), np.concatenate(truth), len(of))
