"""Untouched memory by the least of the own past week, with the share of it that is promised calibrated every night.

The one-line rule promises 0.9 times the least untouched memory of a VM's past week. Here the share follows from the days before:
the largest shares that would have overpredicted at most the target then (conformal prediction: the past days' ratios of actual
to least untouched memory are the scores). One share for each group of VMs of similar size: what counts is the number of
overpredicted VMs and the memory that is promised, so a large VM may be promised more of its least memory than a small one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import features, history
from .vms import DAY

RULE = 0.9
"""The share of the one-line rule."""

CALIBRATION_DAYS = 7
GROUPS = 3
"""Groups by memory, of about as many VMs each."""

_SHARES = np.concatenate([[0.0], np.linspace(0.3, 1.0, 71)])


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The share of the least untouched memory that is promised, by size of the VM."""

    bounds: Any
    """Memory in bytes between one group and the next."""
    shares: Any
    """Share by group."""

    def predict(self, of: features.Known) -> Any:
        """Returns the promised share of each VM's memory; 0 without a past week."""
        return least(of) * self.shares[np.searchsorted(self.bounds, of.vms.memory_bytes)]


def least(of: features.Known) -> Any:
    """Returns the least untouched share of the past week; 0 without one."""
    return np.where(of.counts >= history.ENTRIES_MIN, np.nan_to_num(of.percentiles[:, 0]), 0.0)


def rule(of: features.Known, share: float = RULE) -> Any:
    """Returns what the one-line rule promises."""
    return share * least(of)


def calibrate(past: features.Known, target: float) -> Calibration:
    """Returns the shares that would have promised most memory of these VMs with at most `target` of them overpredicted.

    The number of overpredicted VMs includes one standard error, for the days to come.
    """
    base = least(past)
    known = base > 0
    memory, base, actual = past.vms.memory_bytes[known], base[known], past.vms.untouched_ratio[known]
    if not len(memory):
        return Calibration(np.array([]), np.zeros(1))
    bounds = np.quantile(memory, np.arange(1, GROUPS) / GROUPS)
    group = np.searchsorted(bounds, memory)
    wrong, promised = [], []
    for number in range(GROUPS):
        of = group == number
        scores = np.sort(actual[of] / base[of])
        # VMs with less left than this share of their least are overpredicted.
        wrong.append(np.searchsorted(scores, _SHARES - 1e-12, side="left"))
        promised.append(_SHARES * (base[of] * memory[of]).sum())
    return Calibration(bounds, _SHARES[_most(np.array(wrong), np.array(promised), target * len(past.vms))])


def _most(wrong: Any, promised: Any, limit: float) -> Any:
    """Returns for each group the index of its share: most promised within the limit of wrong ones.

    A price of a wrong prediction, the same in all groups, is halved until the limit is met exactly (Lagrange).
    """
    low, high = 0.0, 2.0 * float(promised.max()) + 1.0
    best: Any = np.zeros(len(wrong), dtype=np.int64)
    for _ in range(100):
        price = (low + high) / 2
        at = np.argmax(promised - price * wrong, axis=1)
        total = float(wrong[np.arange(len(at)), at].sum())
        if total + total**0.5 <= limit:
            best, high = at, price
        else:
            low = price
    return best


def nightly(of: features.Known, days: Sequence[int], target: float) -> Any:
    """Returns the promised share of the VMs that arrive on each of these days, calibrated on the days before; NaN for others."""
    day = of.vms.arrival // DAY
    promised = np.full(len(day), np.nan)
    for one in days:
        ended = (day >= one - CALIBRATION_DAYS) & (day < one) & (of.vms.departure <= one * DAY)
        there = day == one
        promised[there] = calibrate(of.where(ended), target).predict(of.where(there))
    return promised
