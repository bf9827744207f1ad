"""How often predictions of untouched memory are too high for each kind of VM and on each day, against their target.

A target that is kept on average may be broken for large VMs or for customers with few VMs. A group is over its target if it is by
more than two standard errors of a share of so many VMs. VMs of one customer fail together, so that the true error is larger, and
one group in forty is over by chance.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .history import ENTRIES_MAX, ENTRIES_MIN
from .untouched import Night
from .vms import GIB

ERRORS_BEYOND = 2.0
"""A group is over its target by more than so many standard errors."""

HISTORY = (ENTRIES_MIN, 10, 30, 100, ENTRIES_MAX)
"""VMs of a customer that ended in the week before, from which on its VMs are of the next group."""

MEMORY_GIB = (8, 16, 32, 64)
"""Memory from which on a VM is of the next group."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """VMs of one kind."""

    kind: str
    """`customer`, `memory_gib` or `day`."""
    name: str
    vms: int
    overpredicted: float
    untouched: float
    """Predicted share of the group's memory."""
    standard_error: float
    """Of the target, for so many VMs."""
    over: bool


def groups(nights: Sequence[Night], counts: Any, predicted: Any, target: float) -> list[Group]:
    """Returns the groups of the VMs of these nights.

    Args:
        nights: VMs, in the order of the other arguments.
        counts: VMs in each VM's history.
        predicted: predicted share by VM.
        target: largest share of VMs to overpredict.
    """
    memory = np.concatenate([night.vms.memory_bytes for night in nights])
    wrong = predicted > np.concatenate([night.vms.untouched_ratio for night in nights])
    days = [night.day for night in nights]
    kinds: Sequence[tuple[str, Any, list[str]]] = (
        ("customer", np.searchsorted(HISTORY, counts, side="right"), _classes(HISTORY)),
        ("memory_gib", np.searchsorted(np.array(MEMORY_GIB) * GIB, memory, side="right"), _classes(MEMORY_GIB)),
        ("day", np.repeat(np.arange(len(days)), [len(night.vms) for night in nights]), [str(day) for day in days]),
    )
    found = []
    for kind, of, names in kinds:
        for number, name in enumerate(names):
            there = of == number
            count = int(there.sum())
            if not count:
                continue
            rate, error = float(wrong[there].mean()), float(np.sqrt(target * (1 - target) / count))
            share = float((predicted[there] * memory[there]).sum() / memory[there].sum())
            found.append(Group(kind, name, count, rate, share, error, rate > target + ERRORS_BEYOND * error))
    return found


def _classes(bounds: Sequence[int]) -> list[str]:
    """Returns the names of the classes between these numbers."""
    between = [f"{low} to {high - 1}" for low, high in itertools.pairwise(bounds)]
    return [f"below {bounds[0]}", *between, f"{bounds[-1]} or more"]
