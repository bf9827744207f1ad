"""The features of the untouched-memory model for a requested VM (Pond figure 14).

Every feature is a 32-bit float, which ONNX trees compare, so that a threshold between two of them has the same effect in
training and in serving.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import history
from .vms import DAY, GIB, Vms

CATEGORIES = ("vm_type", "guest_os", "location")

CATEGORY_VMS_MIN = 30
"""VMs of a category that the training data must have; a category with fewer counts as unseen."""

ENCODING_FOLDS = 5
"""Parts of each category in training: a VM is encoded with the mean of the other parts."""

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
    means = []
    for name in CATEGORIES:
        values, where = np.unique(getattr(of.vms, name), return_inverse=True)
        means.append(np.array([by.means[name].get(str(value), np.nan) for value in values])[where])
    return _columns(of, means)


def training_matrix(of: Known) -> Any:
    """Returns the features of the VMs that `encoding` is computed from: `matrix` without each VM's own label.

    A category is divided into parts, and each VM is encoded with the mean of the parts without it. Leaving out the VM alone
    would be worse than not to leave it out: the mean of the others falls with the VM's own label, so that a tree that
    compares means within a category reads the label (CatBoost, Prokhorenkova 2018, section 3.2). Means of parts take
    `ENCODING_FOLDS` values per category, each shared by many VMs.
    """
    means = []
    for name in CATEGORIES:
        _, where, counts = np.unique(getattr(of.vms, name), return_inverse=True, return_counts=True)
        part = _rank_within(where, counts) % ENCODING_FOLDS
        cell = where * ENCODING_FOLDS + part
        cells = len(counts) * ENCODING_FOLDS
        sums = np.bincount(cell, weights=of.vms.untouched_ratio, minlength=cells).reshape(-1, ENCODING_FOLDS)
        sizes = np.bincount(cell, minlength=cells).reshape(-1, ENCODING_FOLDS)
        others = (sums.sum(axis=1, keepdims=True) - sums) / np.maximum(counts[:, None] - sizes, 1)
        means.append(np.where(counts[where] >= CATEGORY_VMS_MIN, others[where, part], np.nan))
    return _columns(of, means)


def _rank_within(where: Any, counts: Any) -> Any:
    """Returns each VM's position among those of its category, in the order of the trace."""
    rank: Any = np.empty(len(where), dtype=np.int64)
    rank[np.argsort(where, kind="stable")] = np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


def _columns(of: Known, means: Sequence[Any]) -> Any:
    """Returns the features with these means of `CATEGORIES`."""
    vms = of.vms
    gib = vms.memory_bytes / GIB
    columns = [of.percentiles, of.counts[:, None], *(one[:, None] for one in means)]
    times = (vms.cores, gib, gib / vms.cores, vms.arrival % DAY // 3600, vms.arrival // DAY % 7)
    columns += [column[:, None] for column in times]
    return np.concatenate(columns, axis=1).astype(np.float32)


def answerable(of: Known, features: Any) -> Any:
    """Returns which VMs the model can predict: those with history and seen categories. The others stay local."""
    return (of.counts >= history.ENTRIES_MIN) & ~np.isnan(features).any(axis=1)
