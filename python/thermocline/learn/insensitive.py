"""The latency-insensitivity model: a random forest on top-down counters, against one counter alone (004 section 6.4.1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .curves import Point, gain_at
from .workloads import LATENCIES, Workloads

PDM = 0.05
"""The performance degradation margin: a workload within it is insensitive."""

FOLDS = 100

TREES = 100
"""scikit-learn's default."""

HEURISTICS = ("DRAM_Bound", "Memory_Bound")

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """What one split came to: for every number of workloads marked insensitive, the share of all that is so wrongly."""

    wrong: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """A forest with what it must know to be asked."""

    forest: Any
    counters: Sequence[str]
    low: Any
    high: Any
    threshold: float
    """A score at or above it is insensitive."""
    latency: float
    pdm: float
    expected: Point
    """What validation says of this threshold."""


def labels(of: Workloads, latency: float, pdm: float) -> Any:
    """Which workloads are insensitive.

    Raises:
        ValueError: there is no slowdown at that latency.
    """
    if latency not in LATENCIES:
        raise ValueError(f"slowdowns are known at {LATENCIES} of local latency, not at {latency}")
    return of.slowdowns[:, LATENCIES.index(latency)] <= pdm


def fit(values: Any, insensitive: Any, seed: int, trees: int = TREES) -> Any:
    """scikit-learn's forest with its defaults, in one thread."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=trees, n_jobs=1, random_state=seed).fit(values, insensitive)


def scores(forest: Any, values: Any) -> Any:
    """The forest's probability that a workload is insensitive."""
    at = list(forest.classes_).index(True)
    return forest.predict_proba(values)[:, at]


def wrong_by_count(score: Any, insensitive: Any) -> Any:
    """For the 0, 1, 2 ... workloads of highest score, the share of all workloads that are among them and sensitive."""
    order = np.argsort(-score, kind="stable")
    return np.concatenate([[0.0], np.cumsum(~insensitive[order])]) / len(score)


def splits(count: int, folds: int, *, seed: int) -> list[tuple[Any, Any]]:
    """Random halves: what is trained on, and what is tested."""
    chance = np.random.default_rng(seed)
    halves = (chance.permutation(count) for _ in range(folds))
    return [(mixed[: count // 2], mixed[count // 2 :]) for mixed in halves]


def validate(of: Workloads, latency: float, *, seed: int, say: Say, pdm: float = PDM, folds: int = FOLDS) -> dict[str, list[Fold]]:
    """The forest and the two heuristics on the tested halves of the same splits."""
    insensitive = labels(of, latency, pdm)
    told: dict[str, list[Fold]] = {"RandomForest": [], **{name: [] for name in HEURISTICS if name in of.counters}}
    for number, (train, test) in enumerate(splits(len(of), folds, seed=seed)):
        if number % 20 == 0:
            say(f"validation at {latency:.0%}: fold {number + 1} of {folds}")
        if insensitive[train].all() or not insensitive[train].any():
            continue
        forest = fit(of.values[train], insensitive[train], seed + number)
        told["RandomForest"].append(Fold(wrong_by_count(scores(forest, of.values[test]), insensitive[test])))
        for name in told.keys() - {"RandomForest"}:
            told[name].append(Fold(wrong_by_count(-of.column(name)[test], insensitive[test])))
    if not told["RandomForest"]:
        raise ValueError(f"all workloads fall on one side of a margin of {pdm:.1%} at {latency:.0%}: there is nothing to tell apart")
    return told


def curve(folds: Sequence[Fold]) -> list[Point]:
    """The mean over folds: marked insensitive, and wrongly so."""
    wrong = np.mean([fold.wrong for fold in folds], axis=0)
    return [Point(float(one), at / (len(wrong) - 1), at / (len(wrong) - 1)) for at, one in enumerate(wrong)]


def confidence(folds: Sequence[Fold], sigmas: float = 2.576) -> Any:
    """Half of the 99 % interval of the mean, by number marked."""
    return sigmas * np.std([fold.wrong for fold in folds], axis=0) / math.sqrt(len(folds))


def train(of: Workloads, latency: float, target: float, *, seed: int, say: Say, pdm: float = PDM, folds: int = FOLDS) -> Trained:
    """A forest of all workloads, with the threshold that kept false positives at or below `target` of workloads in validation."""
    insensitive = labels(of, latency, pdm)
    held = _held_out_scores(of, insensitive, seed=seed, say=say, folds=folds)
    score, truth = np.concatenate([one for one, _ in held]), np.concatenate([one for _, one in held])
    points = []
    for threshold in np.unique(score):
        marked = score >= threshold
        points.append(Point(float(np.mean(marked & ~truth)), float(np.mean(marked)), float(threshold)))
    expected = gain_at(points, target)
    # No threshold keeps to the target: above 1 nothing is ever insensitive.
    threshold = expected.setting if expected.gain > 0 else 2.0
    forest = fit(of.values, insensitive, seed)
    return Trained(forest, of.counters, *ranges(of.values), threshold, latency, pdm, expected)


def ranges(values: Any) -> tuple[Any, Any]:
    """Where a counter may lie for the forest to speak: as far again beyond what training has seen as that reaches.

    A few hundred workloads do not show how far counters go; of a new one's forty, one or two are beyond what they have shown.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    return low - (high - low), high + (high - low)


def _held_out_scores(of: Workloads, insensitive: Any, *, seed: int, say: Say, folds: int) -> list[tuple[Any, Any]]:
    """Scores of workloads by forests that have not seen them, nine tenths of the others at a time, with the truth."""
    chance = np.random.default_rng(seed)
    held = []
    for round_ in range(max(1, folds // 10)):
        say(f"threshold: round {round_ + 1} of {max(1, folds // 10)}")
        for test in np.array_split(chance.permutation(len(of)), 10):
            train = np.setdiff1d(np.arange(len(of)), test)
            if insensitive[train].any() and not insensitive[train].all():
                forest = fit(of.values[train], insensitive[train], seed + round_)
                held.append((scores(forest, of.values[test]), insensitive[test]))
    if not held:
        raise ValueError("all workloads fall on one side of the margin: there is nothing to tell apart")
    return held
