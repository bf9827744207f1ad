"""What the untouched-memory model knows of a VM when it is asked for (004 figure 14), and how serving finds the same.

Every feature is a 32-bit float, because that is what ONNX trees compare: a threshold between two of them means the same to
the trainer and to who serves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import history
from .vms import DAY, GIB, Vms

CATEGORIES = ("vm_type", "guest_os", "location")

SEEN_MIN = 30
"""VMs of a category that training must have seen; with fewer it counts as unseen."""

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
    """What was known of each VM, whoever learns from it: computed once for a whole trace."""

    vms: Vms
    counts: Any
    percentiles: Any

    def where(self, mask: Any) -> Known:
        """Those that a mask names."""
        return Known(self.vms.where(mask), self.counts[mask], self.percentiles[mask])


@dataclasses.dataclass(frozen=True, slots=True)
class Encoding:
    """How categories become numbers: by the mean untouched share of their VMs in training."""

    means: Mapping[str, Mapping[str, float]]


def known(vms: Vms) -> Known:
    """What was known of each VM when it arrived."""
    return Known(vms, *history.percentiles(vms))


def encoding(vms: Vms) -> Encoding:
    """The encoding that training on these VMs gives."""
    means: dict[str, dict[str, float]] = {}
    for name in CATEGORIES:
        values, where, counts = np.unique(getattr(vms, name), return_inverse=True, return_counts=True)
        sums = np.bincount(where, weights=vms.untouched_ratio, minlength=len(values))
        means[name] = {
            str(value): float(np.float32(total / count))
            for value, total, count in zip(values, sums, counts, strict=True)
            if count >= SEEN_MIN
        }
    return Encoding(means)


def matrix(of: Known, by: Encoding) -> Any:
    """Features by VM, in the order of `NAMES`; not a number where a category is unseen or there is no history."""
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
    """Which VMs the model may speak of: with history, and of categories that it has seen. The others stay local."""
    return (of.counts >= history.ENTRIES_MIN) & ~np.isnan(features).any(axis=1)
