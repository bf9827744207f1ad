"""The features of the untouched-memory model for a requested VM (Pond figure 14).

Every feature is a 32-bit float, which ONNX trees compare, so that a threshold between two of them has the same effect in
training and in serving.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import history
from .vms import DAY, GIB, Vms

CATEGORIES = ("vm_type", "guest_os", "location")

CATEGORY_VMS_MIN = 30
"""VMs of a category that the training data must have; a category with fewer counts as unseen."""

NAMES = (
    *(f"history_p{percent}" for percent in history.PERCENTILES),
    "history_count",
    *(f"{name}_mean" for name in CATEGORIES),
    "cores",
    "memory_gib",
    "gib_per_core",
    "hour",
    "weekday",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """VMs with the history that was known when each arrived. Independent of the model: computed once per trace."""

    vms: Vms
    counts: Any
    percentiles: Any

    def where(self, mask: Any) -> Known:
        """Returns the VMs that a mask selects."""
        return Known(self.vms.where(mask), self.counts[mask], self.percentiles[mask])


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """Encodes categories as numbers: the mean untouched share of their VMs in the training data."""

    means: Mapping[str, Mapping[str, float]]


def known(vms: Vms) -> Known:
    """Computes the history known at each VM's arrival."""
    return Known(vms, *history.percentiles(vms))


def encoding(vms: Vms) -> Encoding:
    """Returns the encoding from these training VMs."""
    means: dict[str, dict[str, float]] = {}
    for name in CATEGORIES:
        values, where, counts = np.unique(getattr(vms, name), return_inverse=True, return_counts=True)
        sums = np.bincount(where, weights=vms.untouched_ratio, minlength=len(values))
        means[name] = {
            str(value): float(np.float32(total / count))
            for value, total, count in zip(values, sums, counts, strict=True)
            if count >= CATEGORY_VMS_MIN
        }
    return Encoding(means)


def matrix(of: Known, by: Encoding) -> Any:
    """Returns features by VM, in the order of `NAMES`; NaN for an unseen category or without history."""
    vms = of.vms
    gib = vms.memory_bytes / GIB
    columns = [of.percentiles, of.counts[:, None]]
    for name in CATEGORIES:
        values, where = np.unique(getattr(vms, name), return_inverse=True)
        means = np.array([by.means[name].get(str(value), np.nan) for value in values])
        columns.append(means[where][:, None])
    times = (vms.cores, gib, gib / vms.cores, vms.arrival % DAY // 3600, vms.arrival // DAY % 7)
    columns += [column[:, None] for column in times]
    return np.concatenate(columns, axis=1).astype(np.float32)


def answerable(of: Known, features: Any) -> Any:
    """Returns which VMs the model can predict: those with history and seen categories. The others stay local."""
    return (of.counts >= history.ENTRIES_MIN) & ~np.isnan(features).any(axis=1)
