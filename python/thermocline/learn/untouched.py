"""The untouched-memory model: LightGBM's quantile regression, trained every night and evaluated on the day after.

The label is the share of memory that a VM left untouched over its lifetime. The model predicts a low quantile of it, so that
few VMs touch more than predicted. Hyperparameters are the defaults (Pond section 5).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import features
from .curves import Point
from .vms import DAY, GIB, Vms

QUANTILES = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2)
"""Quantiles to try, each approximately the share of overpredicted VMs."""

TRAINED_DAYS = 14
ROUNDS = 100
"""Trees of a model: LightGBM's default."""
CHOICE_DAYS = 3
"""Past days from which the setting for the next day is chosen."""

STATIC = tuple(share / 100 for share in (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 25, 30, 35, 40, 50))

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """A model with the parameters of serving."""

    booster: Any
    encoding: features.Encoding
    low: Any
    high: Any
    quantile: float
    lowered: float
    """The share of memory that the trees' sum is lowered by (`conformal`)."""
    trained_until: int
    vms: int

    def answers(self, of: features.Known) -> Any:
        """Returns the predicted untouched share of each VM; 0, the safe answer, if the model cannot predict it."""
        inputs = features.matrix(of, self.encoding)
        able = features.answerable(of, inputs) & in_range(inputs, self.low, self.high)
        found = np.zeros(len(inputs))
        if able.any():
            found[able] = np.clip(self.booster.predict(inputs[able].astype(np.float64), num_threads=1), 0.0, 1.0)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Night:
    """The predictions of one night's models for the VMs of the following day."""

    day: int
    vms: Vms
    predicted: Any
    """Predicted share by quantile and VM."""


def in_range(inputs: Any, low: Any, high: Any) -> Any:
    """Returns which rows are within the range of the training data."""
    return ((inputs >= low) & (inputs <= high)).all(axis=1)


def train(
    of: features.Known, quantile: float, until: int, *, lowered: float = 0.0, days: int = TRAINED_DAYS, rounds: int = ROUNDS
) -> Trained:
    """Trains on the VMs that had ended before `until` (seconds) and arrived at most `days` days before.

    All predictions are lowered by the share `lowered` of memory.

    Raises:
        ValueError: too few VMs.
    """
    ended = of.where((of.vms.departure <= until) & (of.vms.arrival >= until - days * DAY))
    by = features.encoding(ended.vms)
    inputs, served = features.training_matrix(ended), features.matrix(ended, by)
    able = features.answerable(ended, served)
    if able.sum() < 200:
        raise ValueError(f"{int(able.sum())} VMs with history had ended before day {until / DAY:.1f}; training requires 200")
    booster = lower(fit(inputs[able], ended.vms.untouched_ratio[able], quantile, rounds), lowered)
    # The range is that of what is served.
    return Trained(booster, by, served[able].min(axis=0), served[able].max(axis=0), quantile, lowered, until, int(able.sum()))


def fit(inputs: Any, labels: Any, quantile: float, rounds: int = ROUNDS) -> Any:
    """Trains LightGBM with its defaults, in one thread and deterministically."""
    import lightgbm

    settings = {
        "objective": "quantile", "alpha": quantile, "num_threads": 1, "deterministic": True, "force_row_wise": True,
        "seed": 1, "verbosity": -1,
    }  # fmt: skip
    booster = lightgbm.train(settings, lightgbm.Dataset(inputs.astype(np.float64), labels), num_boost_round=rounds)
    return lightgbm.Booster(model_str=in_floats(booster.model_to_string()))


def lower(booster: Any, by: float) -> Any:
    """Subtracts a share from all predictions: from the leaves of the first tree, so that the format of a served model is the same."""
    import lightgbm

    head, separator, tail = booster.model_to_string().partition("leaf_value=")
    values, rest = tail.split("\n", 1)
    shifted = " ".join(repr(float(one) - by) for one in values.split())
    lines = (head + separator + shifted + "\n" + rest).splitlines()
    return lightgbm.Booster(model_str="\n".join(line for line in lines if not line.startswith("tree_sizes=")) + "\n")


def in_floats(model: str) -> str:
    """Rounds the thresholds in LightGBM's text format of a model down to 32-bit floats.

    Features are 32-bit floats, so no comparison changes. Without this, the conversion to ONNX would round to the nearest
    float, which changes the branch of some features.
    """
    lines = []
    for line in model.splitlines():
        key, _, values = line.partition("=")
        if key == "threshold" and values:
            below = float_below(np.array(values.split(), dtype=np.float64))
            lines.append("threshold=" + " ".join(repr(float(one)) for one in below))
        # Sizes of the trees' text. They are optional, and invalid after the change.
        elif key != "tree_sizes":
            lines.append(line)
    return "\n".join(lines) + "\n"


def float_below(values: Any) -> Any:
    """Returns the largest 32-bit floats that are not above the given numbers."""
    near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def roll(of: features.Known, days: Sequence[int], progress: Progress, quantiles: Sequence[float] = QUANTILES) -> list[Night]:
    """Trains at the end of the day before each of `days`, and predicts the VMs that arrive on it."""
    nights = []
    for day in days:
        progress(f"night before day {day}: {len(quantiles)} models")
        arriving = of.where((of.vms.arrival >= day * DAY) & (of.vms.arrival < (day + 1) * DAY))
        predicted = [train(of, quantile, day * DAY).answers(arriving) for quantile in quantiles]
        nights.append(Night(day, arriving.vms, np.array(predicted)))
    return nights


def curve(nights: Sequence[Night], quantiles: Sequence[float] = QUANTILES) -> list[Point]:
    """Returns the result of each setting over all nights."""
    ratio, memory = _all(nights)
    predicted = np.concatenate([night.predicted for night in nights], axis=1)
    return [point(row, ratio, memory, quantile) for row, quantile in zip(predicted, quantiles, strict=True)]


def static_curve(nights: Sequence[Night], shares: Sequence[float] = STATIC, *, in_whole_gib: bool = False) -> list[Point]:
    """Returns the results of a policy that uses the same share of every VM."""
    ratio, memory = _all(nights)
    same = [np.full(len(ratio), share) for share in shares]
    predicted = [in_slices(one, memory) for one in same] if in_whole_gib else same
    return [point(one, ratio, memory, share) for one, share in zip(predicted, shares, strict=True)]


def point(predicted: Any, ratio: Any, memory: Any, setting: float) -> Point:
    """Returns the share of overpredicted VMs, and the predicted share of all memory."""
    return Point(float(np.mean(predicted > ratio)), float((predicted * memory).sum() / memory.sum()), setting)


def in_slices(predicted: Any, memory: Any) -> Any:
    """Rounds shares down to whole GiB, the unit of pool memory."""
    return np.floor(predicted * memory / GIB) * GIB / memory


def nights_in_slices(nights: Sequence[Night]) -> list[Night]:
    """Returns the nights with predictions in whole GiB."""
    return [dataclasses.replace(night, predicted=in_slices(night.predicted, night.vms.memory_bytes)) for night in nights]


def choose(nights: Sequence[Night], target: float, now: int, quantiles: Sequence[float] = QUANTILES) -> int:
    """Returns the setting to use from `now`: the highest that overpredicted at most `target` of the VMs that have ended.

    Without enough data it is the highest quantile within the target.
    """
    recent = nights[-CHOICE_DAYS:]
    best = max((at for at, quantile in enumerate(quantiles) if quantile <= target), default=0)
    if not recent:
        return best
    ended = np.concatenate([night.vms.departure for night in recent]) <= now
    if ended.sum() < 100:
        return best
    ratio, _ = _all(recent)
    predicted = np.concatenate([night.predicted for night in recent], axis=1)
    wrong = (predicted[:, ended] > ratio[ended]).mean(axis=1)
    # Adds one standard error: a few hundred VMs determine a rate of 4 % only to within about half of it.
    wrong += np.sqrt(wrong * (1 - wrong) / ended.sum())
    return max((at for at in range(len(quantiles)) if wrong[at] <= target), default=0)


def nightly(nights: Sequence[Night], target: float, quantiles: Sequence[float] = QUANTILES) -> list[tuple[int, Point]]:
    """Returns the result of each day with the setting chosen from the days before it (Pond figure 20).

    The first `CHOICE_DAYS` days are used for the choice only.
    """
    found = []
    for at, night in list(enumerate(nights))[CHOICE_DAYS:]:
        chosen = choose(nights[:at], target, night.day * DAY, quantiles)
        vms = night.vms
        found.append((night.day, point(night.predicted[chosen], vms.untouched_ratio, vms.memory_bytes, quantiles[chosen])))
    return found


def _all(nights: Sequence[Night]) -> tuple[Any, Any]:
    return np.concatenate([night.vms.untouched_ratio for night in nights]), np.concatenate([night.vms.memory_bytes for night in nights])
