"""The untouched memory of a customer's VMs in the past week, as a scheduler knows it when a VM is requested.

Only VMs that have ended count, because the untouched memory of a running VM is not final. The history that serves
(`crates/pool/predict/src/history.rs`) has the same window and limits, and computes percentiles in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .vms import RUNNING, Vms

WINDOW_SECONDS = 7 * 86_400
ENTRIES_MAX = 256
"""The largest number of VMs of a customer, the latest ones."""
ENTRIES_MIN = 3
"""A VM with fewer entries counts as one without history."""
PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Returns the value at a percentile of ascending values, rounded down to an existing value."""
    return ordered[(len(ordered) - 1) * percent // 100]


def percentiles(vms: Vms, percents: Sequence[int] = PERCENTILES) -> tuple[Any, Any]:
    """Returns, for every VM, how many VMs of its customer ended in the week before it arrived, and percentiles of their shares.

    Returns:
        Counts, and an array of shape (VMs, percents) that is NaN if the count is 0.
    """
    counts: Any = np.zeros(len(vms), dtype=np.int64)
    taken: Any = np.full((len(vms), len(percents)), np.nan)
    by_customer = np.argsort(vms.customer, kind="stable")
    starts = np.flatnonzero(np.diff(vms.customer[by_customer], prepend=-1))
    for members in np.split(by_customer, starts[1:]):
        ended = members[vms.departure[members] != RUNNING]
        ended = ended[np.lexsort((vms.id[ended], vms.departure[ended]))]
        when, shares = vms.departure[ended], vms.untouched_ratio[ended]
        last: Any = np.searchsorted(when, vms.arrival[members], side="right")
        first: Any = np.searchsorted(when, vms.arrival[members] - WINDOW_SECONDS, side="right")
        first = np.maximum(first, last - ENTRIES_MAX)
        counts[members] = last - first
        for vm, low, high in zip(members.tolist(), first.tolist(), last.tolist(), strict=True):
            if high > low:
                ordered = np.sort(shares[low:high])
                taken[vm] = ordered[[(high - low - 1) * percent // 100 for percent in percents]]
    return counts, taken
