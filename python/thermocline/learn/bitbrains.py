"""The untouched-memory model on real memory use: 500 VMs of the Bitbrains trace "Rnd" (GWA-T-12), July 2013.

The trace has neither arrivals and departures, nor customers or types: the same VMs run all month. A VM's day (or week)
therefore counts as one lifetime, and a VM's own past week replaces its customer's history. This is easier than predicting a
new VM of a known customer; the static policy is evaluated on the same lifetimes. Active memory is memory that was used
recently, not memory that was ever touched, so the untouched memory is an upper bound.
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
"""The model is trained on the first three weeks and tested on the rest."""

_COLUMNS = ("vm", "ts", "cores", "mem_prov_mib", "mem_active_mib")
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A setting of the model, and the static policy that uses the same amount of memory."""

    model: Point
    static: Point


def read(path: Path) -> tuple[Vms, dict[str, int]]:
    """Reads the days of VMs as lifetimes, sorted by arrival. Also returns the number of days, and of those skipped by reason.

    Raises:
        BadTrace: the file is not this trace.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, columns=list(_COLUMNS))
    except (pyarrow.ArrowException, KeyError) as error:
        raise BadTrace(f"{path}: expected the columns {', '.join(_COLUMNS)}: {error}") from error
    vm, second, cores, provisioned, active = (np.asarray(table[name].to_numpy()) for name in _COLUMNS)
    day = (second - second.min()) // DAY
    return lives(vm.astype(np.int64), day.astype(np.int64), cores, provisioned, active)


def lives(vm: Any, day: Any, cores: Any, provisioned: Any, active: Any) -> tuple[Vms, dict[str, int]]:
    """Converts samples (MiB) to lifetimes of one day."""
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
    """Extends lifetimes to `days` days, with the memory that stays untouched in all of them. Drops incomplete ones."""
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


def compare(of: features.Known, quantiles: Sequence[float], progress: untouched.Progress) -> tuple[list[Comparison], int]:
    """Trains on the first three weeks and tests on later lifetimes. Also returns the number of tested lifetimes."""
    until = TRAINED_DAYS * DAY
    later = of.where(of.vms.arrival >= until)
    compared = []
    for quantile in quantiles:
        progress(f"Bitbrains: quantile {quantile:.3f}")
        trained = untouched.train(of, quantile, until, days=TRAINED_DAYS)
        ratio, memory = later.vms.untouched_ratio, later.vms.memory_bytes
        model = untouched.point(trained.answers(later), ratio, memory, quantile)
        compared.append(Comparison(model, untouched.point(np.full(len(ratio), model.gain), ratio, memory, model.gain)))
    return compared, len(later.vms)
