"""What a customer's VMs of the past week left untouched, as a scheduler knows it when a VM is asked for.

Only VMs that have ended count: what a running VM will have left is not known yet. The store that serves
(`crates/pool/predict/src/history.rs`) keeps the same window and the same number of entries, and takes percentiles alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .vms import RUNNING, Vms

WINDOW_SECONDS = 7 * 86_400
ENTRIES_MAX = 256
"""How many of a customer's VMs are kept, the latest."""
ENTRIES_MIN = 3
"""With fewer, a VM counts as one without history."""
PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Of values in rising order, the one at a percentile, rounded down to one that is there."""
    return ordered[(len(ordered) - 1) * percent // 100]


def percentiles(vms: Vms, percents: Sequence[int] = PERCENTILES) -> tuple[Any, Any]:
    """For every VM, how many of its customer's VMs ended in the week before it arrived, and percentiles of what they left.

    Returns:
        Counts, and an array of shape (VMs, percents) that is not a number where the count is 0.
    """
    counts: Any = np.zeros(len(vms), dtype=np.int64)
    taken: Any = np.full((len(vms), len(percents)), np.nan)
    by_customer = np.argsort(vms.customer, kind="stable")
    starts = np.flatnonzero(np.diff(vms.customer[by_customer], prepend=-1))
    for members in np.split(by_customer, starts[1:]):
        ended = members[vms.departure[members] != RUNNING]
        ended = ended[np.lexsort((vms.id[ended], vms.departure[ended]))]
        when, left = vms.departure[ended], vms.untouched_ratio[ended]
        last: Any = np.searchsorted(when, vms.arrival[members], side="right")
        first: Any = np.searchsorted(when, vms.arrival[members] - WINDOW_SECONDS, side="right")
        first = np.maximum(first, last - ENTRIES_MAX)
        counts[members] = last - first
        for vm, low, high in zip(members.tolist(), first.tolist(), last.tolist(), strict=True):
            if high > low:
                ordered = np.sort(left[low:high])
                taken[vm] = ordered[[(high - low - 1) * percent // 100 for percent in percents]]
    return counts, taken
