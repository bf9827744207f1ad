"""The untouched-memory model: LightGBM's quantile regression, trained every night, looked at on the day after.

The label is what a VM left untouched over its life; the model answers with a low quantile of it, so that few VMs touch more
than it left them. 004 section 5: default hyperparameters.
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
"""Settings that are tried: about what share of VMs touches more."""

TRAINED_DAYS = 14
ROUNDS = 100
"""Trees of a model: LightGBM's default."""
CHOICE_DAYS = 3
"""How many past days the setting for tomorrow is chosen by."""

STATIC = tuple(share / 100 for share in (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 25, 30, 35, 40, 50))

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """A model with what it must know to be asked."""

    booster: Any
    encoding: features.Encoding
    low: Any
    high: Any
    quantile: float
    trained_until: int
    vms: int

    def answers(self, of: features.Known) -> Any:
        """The untouched share that it promises of each VM, 0 where it may not speak: the safe answer."""
        inputs = features.matrix(of, self.encoding)
        able = features.answerable(of, inputs) & in_range(inputs, self.low, self.high)
        told = np.zeros(len(inputs))
        if able.any():
            told[able] = np.clip(self.booster.predict(inputs[able].astype(np.float64), num_threads=1), 0.0, 1.0)
        return told


@dataclasses.dataclass(frozen=True, slots=True)
class Night:
    """What the models of one night promised the VMs of the day after."""

    day: int
    vms: Vms
    promised: Any
    """By quantile and VM."""


def in_range(inputs: Any, low: Any, high: Any) -> Any:
    """Which rows lie within what training has seen."""
    return ((inputs >= low) & (inputs <= high)).all(axis=1)


def train(of: features.Known, quantile: float, until: int, *, days: int = TRAINED_DAYS, rounds: int = ROUNDS) -> Trained:
    """A model of what had ended by a time (seconds) and had begun at most so many days before.

    Raises:
        ValueError: too few VMs to learn from.
    """
    ended = of.where((of.vms.departure <= until) & (of.vms.arrival >= until - days * DAY))
    by = features.encoding(ended.vms)
    inputs = features.matrix(ended, by)
    able = features.answerable(ended, inputs)
    if able.sum() < 200:
        raise ValueError(f"{int(able.sum())} VMs with history had ended by day {until / DAY:.1f}; the model needs 200 to learn from")
    booster = fit(inputs[able], ended.vms.untouched_ratio[able], quantile, rounds)
    return Trained(booster, by, inputs[able].min(axis=0), inputs[able].max(axis=0), quantile, until, int(able.sum()))


def fit(inputs: Any, labels: Any, quantile: float, rounds: int = ROUNDS) -> Any:
    """LightGBM with its defaults, in one thread, the same every time."""
    import lightgbm

    settings = {
        "objective": "quantile", "alpha": quantile, "num_threads": 1, "deterministic": True, "force_row_wise": True,
        "seed": 1, "verbosity": -1,
    }  # fmt: skip
    booster = lightgbm.train(settings, lightgbm.Dataset(inputs.astype(np.float64), labels), num_boost_round=rounds)
    return lightgbm.Booster(model_str=in_floats(booster.model_to_string()))


def in_floats(model: str) -> str:
    """LightGBM's text form of a model, with every threshold brought down to the 32-bit float below it.

    A feature is such a float itself, so no comparison changes; but ONNX would round to the nearest, and thereby send some
    features to the other side.
    """
    lines = []
    for line in model.splitlines():
        key, _, values = line.partition("=")
        if key == "threshold" and values:
            below = float_below(np.array(values.split(), dtype=np.float64))
            lines.append("threshold=" + " ".join(repr(float(one)) for one in below))
        # How long each tree's text was: without it, the library finds them by itself.
        elif key != "tree_sizes":
            lines.append(line)
    return "\n".join(lines) + "\n"


def float_below(values: Any) -> Any:
    """The greatest 32-bit floats that are not above some numbers."""
    near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def roll(of: features.Known, days: Sequence[int], say: Say, quantiles: Sequence[float] = QUANTILES) -> list[Night]:
    """Trains at the end of the day before each of some days, and asks for the VMs that arrive on it."""
    nights = []
    for day in days:
        say(f"night before day {day}: {len(quantiles)} models")
        arriving = of.where((of.vms.arrival >= day * DAY) & (of.vms.arrival < (day + 1) * DAY))
        promised = [train(of, quantile, day * DAY).answers(arriving) for quantile in quantiles]
        nights.append(Night(day, arriving.vms, np.array(promised)))
    return nights


def curve(nights: Sequence[Night], quantiles: Sequence[float] = QUANTILES) -> list[Point]:
    """What each setting came to over all nights."""
    ratio, memory = _all(nights)
    promised = np.concatenate([night.promised for night in nights], axis=1)
    return [point(row, ratio, memory, quantile) for row, quantile in zip(promised, quantiles, strict=True)]


def static_curve(nights: Sequence[Night], shares: Sequence[float] = STATIC) -> list[Point]:
    """The same for a policy that takes one share of every VM."""
    ratio, memory = _all(nights)
    return [point(np.full(len(ratio), share), ratio, memory, share) for share in shares]


def point(promised: Any, ratio: Any, memory: Any, setting: float) -> Point:
    """Overpredictions of all VMs, and the share of all memory that was promised."""
    return Point(float(np.mean(promised > ratio)), float((promised * memory).sum() / memory.sum()), setting)


def in_slices(promised: Any, memory: Any) -> Any:
    """The shares rounded down to whole GiB, as a pool hands them out."""
    return np.floor(promised * memory / GIB) * GIB / memory


def choose(nights: Sequence[Night], target: float, now: int, quantiles: Sequence[float] = QUANTILES) -> int:
    """Which setting to use from a time on: the boldest that overpredicted at most `target` of the VMs that have ended since.

    With nothing to go by it is the boldest below the target.
    """
    recent = nights[-CHOICE_DAYS:]
    best = max((at for at, quantile in enumerate(quantiles) if quantile <= target), default=0)
    if not recent:
        return best
    ended = np.concatenate([night.vms.departure for night in recent]) <= now
    if ended.sum() < 100:
        return best
    ratio, _ = _all(recent)
    promised = np.concatenate([night.promised for night in recent], axis=1)
    wrong = (promised[:, ended] > ratio[ended]).mean(axis=1)
    # One standard error on the safe side: a few hundred VMs tell a rate of 4 % no better than to a half.
    wrong += np.sqrt(wrong * (1 - wrong) / ended.sum())
    return max((at for at in range(len(quantiles)) if wrong[at] <= target), default=0)


def nightly(nights: Sequence[Night], target: float, quantiles: Sequence[float] = QUANTILES) -> list[tuple[int, Point]]:
    """What each day came to with the setting that the days before it had chosen: 004 figure 20.

    The first `CHOICE_DAYS` are chosen by and not told.
    """
    told = []
    for at, night in list(enumerate(nights))[CHOICE_DAYS:]:
        chosen = choose(nights[:at], target, night.day * DAY, quantiles)
        vms = night.vms
        told.append((night.day, point(night.promised[chosen], vms.untouched_ratio, vms.memory_bytes, quantiles[chosen])))
    return told


def _all(nights: Sequence[Night]) -> tuple[Any, Any]:
    return np.concatenate([night.vms.untouched_ratio for night in nights]), np.concatenate([night.vms.memory_bytes for night in nights])
