"""Predictions of untouched memory, lowered by what the past days' predictions exceeded (conformalized quantile regression).

A model of a low quantile overpredicts more VMs than its quantile where the days to come differ from those it was trained on.
Conformalized quantile regression (Romano, Patterson and Candes 2019, section 4; here for the lower end only) measures by how
much predictions exceeded the truth on VMs that the model did not know, and subtracts the share that all but `target` of them
stayed below. The VMs are those of the nights before that have ended, each predicted by the model of its own night, so that
nothing of the future is used.

The share is one for all VMs, one for each class of customers by their number of VMs (Mondrian categories: Vovk 2003), or one for
each customer. Customers have too few VMs for a low quantile, so a customer's distribution is mixed with that of all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import untouched
from .curves import Point
from .untouched import Night
from .vms import DAY

QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Quantiles to try. The shares that are subtracted make up for what is between them."""

CALIBRATION_DAYS = untouched.CHOICE_DAYS
"""Past days whose VMs calibrate."""

CLASSES = (5, 25, 100)
"""Calibration VMs of a customer from which on it is of the next class."""

SHRINKAGE = 50.0
"""How many of a customer's own VMs the distribution of all VMs counts as."""

ENDED_MIN = 100
"""VMs that must have ended. With fewer, the highest quantile within the target is used as it is."""

TARGETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1)
"""Targets that Eq. (1) is solved on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What a model is trained for: its quantile, and the share of memory that is subtracted from its predictions."""

    quantile: float
    lowered: float


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """By how much the past days' predictions exceeded what was left untouched, as shares of memory, in ascending order."""

    excess: Any
    customer: Any
    target: float
    """Share of VMs that may be overpredicted, less one standard error for the days to come."""

    def lowered_by(self, weights: Any) -> float:
        """Returns the share to subtract so that at most `target` of these weights stay overpredicted.

        The VM to come counts as one more overpredicted VM. If there is no such share, it is 1: nothing is predicted. Predictions
        are never raised: 0 is also the answer for VMs that the model cannot predict.
        """
        count = len(self.excess)
        within = (1 - self.target) * weights.sum() * (1 + 1 / count)
        at = int(np.searchsorted(np.cumsum(weights), within - 1e-9))
        return max(0.0, float(self.excess[at])) if at < count else 1.0


Lower = Callable[[Past, Any], Any]
"""Returns the share to subtract for each VM, from the past and the VMs' customers."""


def one_for_all(past: Past, customer: Any) -> Any:
    """Subtracts the same share from every prediction."""
    return np.full(len(customer), past.lowered_by(np.ones(len(past.excess))))


def by_class(past: Past, customer: Any) -> Any:
    """Subtracts a share for each class of customers, by their number of VMs in the past days."""
    names, counts = np.unique(past.customer, return_counts=True)
    classes: Any = np.searchsorted(CLASSES, counts, side="right")
    class_of = dict(zip(names.tolist(), classes.tolist(), strict=True))
    before: Any = np.array([class_of[one] for one in past.customer.tolist()])
    lowered = np.ones(len(CLASSES) + 1)
    for number in np.unique(before).tolist():
        of = before == number
        lowered[number] = Past(past.excess[of], past.customer[of], past.target).lowered_by(np.ones(int(of.sum())))
    return lowered[[class_of.get(one, 0) for one in customer.tolist()]]


def by_customer(past: Past, customer: Any) -> Any:
    """Subtracts a share for each customer. Its distribution is mixed with that of all VMs."""
    shared = np.full(len(past.excess), SHRINKAGE / len(past.excess))
    names, where = np.unique(customer, return_inverse=True)
    return np.array([past.lowered_by(shared + (past.customer == one)) for one in names])[where]


KINDS: Mapping[str, Lower] = {"one_for_all": one_for_all, "by_class": by_class, "by_customer": by_customer}
"""Ways to lower predictions. Models are trained with the first: the others were no better (docs/reproduction/pond-predictions.md)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """Predictions by quantile for the VMs of the past days that have ended."""

    predicted: Any
    ratio: Any
    memory: Any
    customer: Any

    def past(self, row: int, target: float) -> Past:
        """Returns the past of one quantile."""
        count = len(self.ratio)
        excess = self.predicted[row] - self.ratio
        order = np.argsort(excess, kind="stable")
        return Past(excess[order], self.customer[order], target - math.sqrt(target * (1 - target) / count))


def ended(nights: Sequence[Night], now: int) -> Ended:
    """Returns the VMs of the last nights that have ended until `now` (seconds)."""
    recent = [one for one in nights if one.day >= now // DAY - CALIBRATION_DAYS]
    kept = [one.vms.departure <= now for one in recent]
    columns = [
        [one.predicted[:, mask] for one, mask in zip(recent, kept, strict=True)],
        *([getattr(one.vms, name)[mask] for one, mask in zip(recent, kept, strict=True)] for name in _COLUMNS),
    ]
    return Ended(*(np.concatenate(column, axis=-1) if column else np.zeros((0, 0)) for column in columns))


_COLUMNS = ("untouched_ratio", "memory_bytes", "customer")


def choose(nights: Sequence[Night], target: float, now: int, quantiles: Sequence[float] = QUANTILES) -> Setting:
    """Returns the setting to use from `now` (seconds): the one that would have promised most memory of the past days' VMs."""
    row, lowered = _choose(ended(nights, now), target, quantiles)
    return Setting(quantiles[row], lowered)


def _choose(of: Ended, target: float, quantiles: Sequence[float]) -> tuple[int, float]:
    if of.ratio.size < ENDED_MIN:
        return max((at for at, quantile in enumerate(quantiles) if quantile <= target), default=0), 0.0
    lowered = [of.past(row, target).lowered_by(np.ones(len(of.ratio))) for row in range(len(quantiles))]
    promised = [float((np.maximum(row - by, 0.0) * of.memory).sum()) for row, by in zip(of.predicted, lowered, strict=True)]
    best = int(np.argmax(promised))
    return best, lowered[best]


def predictions(night: Night, before: Sequence[Night], target: float, lower: Lower, quantiles: Sequence[float] = QUANTILES) -> Any:
    """Returns the night's predictions by the setting chosen on the nights before it, lowered by customer. Never below 0."""
    of = ended(before, night.day * DAY)
    row, lowered = _choose(of, target, quantiles)
    enough = of.ratio.size >= ENDED_MIN
    by = lower(of.past(row, target), night.vms.customer) if enough and lower is not one_for_all else lowered
    return np.maximum(night.predicted[row] - by, 0.0)


def nightly(
    nights: Sequence[Night], target: float, quantiles: Sequence[float] = QUANTILES, *, lower: Lower = one_for_all
) -> list[tuple[int, Point]]:
    """Returns the result of each day with the setting chosen from the days before it (Pond figure 20).

    The first `CALIBRATION_DAYS` days only calibrate.
    """
    found = []
    for at, night in list(enumerate(nights))[CALIBRATION_DAYS:]:
        predicted = predictions(night, nights[:at], target, lower, quantiles)
        found.append((night.day, untouched.point(predicted, night.vms.untouched_ratio, night.vms.memory_bytes, target)))
    return found


def curve(nights: Sequence[Night], now: int, quantiles: Sequence[float] = QUANTILES) -> list[Point]:
    """Returns what each of `TARGETS` would have given on all nights but the first, on the VMs that have ended until `now`."""
    points = []
    for target in TARGETS:
        predicted = np.concatenate([predictions(one, nights[:at], target, one_for_all, quantiles) for at, one in enumerate(nights) if at])
        vms = [one.vms for one in nights[1:]]
        over = np.concatenate([one.departure <= now for one in vms])
        ratio, memory = (np.concatenate([getattr(one, name) for one in vms])[over] for name in _COLUMNS[:2])
        points.append(untouched.point(predicted[over], ratio, memory, target))
    return points
