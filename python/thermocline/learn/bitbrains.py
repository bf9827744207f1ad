"""The model on real memory use: 500 VMs of the Bitbrains trace "Rnd" (GWA-T-12), July 2013.

The trace has no VMs that come and go, no customers and no types: the same VMs run all month. So a life is taken to be a VM's
day (or week), and a VM's own past week stands for its customer's. That is an easier question than a new VM of a known
customer; the static policy is given the same lives. Active memory is what was used recently, not what was ever touched, so
what is called untouched here is a bound from above.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import features, untouched
from .curves import Point
from .vms import DAY, BadTrace, Vms

TRAINED_DAYS, DAYS = 21, 30
"""Trained on the first three weeks, tested on what follows."""

_WANTED = ("vm", "ts", "cores", "mem_prov_mib", "mem_active_mib")
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """One setting of the model, and the static policy that takes as much memory."""

    model: Point
    static: Point


def read(path: Path) -> tuple[Vms, dict[str, int]]:
    """Days of VMs as lives, sorted by arrival; and how many there were, and were left out, by reason.

    Raises:
        BadTrace: not this trace.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, columns=list(_WANTED))
    except (pyarrow.ArrowException, KeyError) as error:
        raise BadTrace(f"{path}: wants the columns {', '.join(_WANTED)}: {error}") from error
    vm, second, cores, provisioned, active = (np.asarray(table[name].to_numpy()) for name in _WANTED)
    day = (second - second.min()) // DAY
    return lives(vm.astype(np.int64), day.astype(np.int64), cores, provisioned, active)


def lives(vm: Any, day: Any, cores: Any, provisioned: Any, active: Any) -> tuple[Vms, dict[str, int]]:
    """Samples (MiB) as lives of a day."""
    order = np.lexsort((day, vm))
    vm, day, cores, provisioned, active = (column[order] for column in (vm, day, cores, provisioned, active))
    first = np.flatnonzero((np.diff(vm, prepend=-1) != 0) | (np.diff(day, prepend=-1) != 0))
    most, least = np.maximum.reduceat(provisioned, first), np.minimum.reduceat(provisioned, first)
    used = np.maximum.reduceat(active, first)
    resized = most != least
    empty = ~resized & (most == 0)
    kept = ~resized & ~empty
    at = first[kept]
    memory = most[kept].astype(np.int64) * _MIB
    start = day[at] * DAY
    none = np.full(len(at), "")
    vms = Vms(
        id=np.arange(len(at), dtype=np.int64),
        arrival=start,
        departure=start + DAY,
        cores=np.maximum(cores[at], 1).astype(np.int64),
        memory_bytes=memory,
        customer=vm[at],
        vm_type=none,
        guest_os=none,
        location=none,
        untouched_ratio=np.clip(1 - used[kept] * _MIB / memory, 0.0, 1.0),
    )
    counted = {"vm_days": len(first), "resized": int(resized.sum()), "without_memory": int(empty.sum()), "used": len(at)}
    return vms.where(np.lexsort((vms.id, vms.arrival))), counted


def lasting(of: features.Known, days: int) -> features.Known:
    """The same VMs on the same days, asked for so many days: what they left untouched in all of these, where all are there."""
    vms = of.vms
    place = {key: at for at, key in enumerate(zip(vms.customer.tolist(), (vms.arrival // DAY).tolist(), strict=True))}
    following = [
        [place.get((customer, day + ahead), -1) for ahead in range(days)]
        for customer, day in zip(vms.customer.tolist(), (vms.arrival // DAY).tolist(), strict=True)
    ]
    index = np.array(following)
    whole = (index >= 0).all(axis=1) & (vms.memory_bytes[index] == vms.memory_bytes[:, None]).all(axis=1)
    left = vms.untouched_ratio[index].min(axis=1)
    longer = dataclasses.replace(vms, departure=vms.arrival + days * DAY, untouched_ratio=left)
    return dataclasses.replace(of, vms=longer).where(whole)


def compare(of: features.Known, quantiles: Sequence[float], say: untouched.Say) -> tuple[list[Compared], int]:
    """Trained on what had ended after three weeks, tested on what began later; and how many lives were tested."""
    until = TRAINED_DAYS * DAY
    later = of.where(of.vms.arrival >= until)
    told = []
    for quantile in quantiles:
        say(f"Bitbrains: quantile {quantile:.3f}")
        trained = untouched.train(of, quantile, until, days=TRAINED_DAYS)
        ratio, memory = later.vms.untouched_ratio, later.vms.memory_bytes
        model = untouched.point(trained.answers(later), ratio, memory, quantile)
        told.append(Compared(model, untouched.point(np.full(len(ratio), model.gain), ratio, memory, model.gain)))
    return told, len(later.vms)
