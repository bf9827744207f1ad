"""VMs as columns: one entry per VM, sorted by arrival."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

DAY = 86_400
GIB = 1 << 30

RUNNING = np.iinfo(np.int64).max
"""The departure of a VM that runs at the end of the trace."""

_COLUMNS = (
    "id", "arrival_seconds", "lifetime_seconds", "cores", "memory_bytes", "cluster", "customer", "vm_type", "guest_os", "location",
    "untouched_ppm", "slowdown_64ns_ppm", "slowdown_140ns_ppm",
)  # fmt: skip
"""The columns of a VM trace, all signed 64-bit integers. `crates/pool/vmtrace` defines the format."""

_CATEGORIES = {"vm_type": "vm_types", "guest_os": "guest_os", "location": "locations"}
"""Columns with indices of names, and the list of names in the file's metadata."""

_VERSION_KEY, _ABOUT_KEY, _VERSION = b"thermocline.vmtrace_version", b"thermocline.vmtrace_about", 1
_UNKNOWN, _SLOWDOWN_UNKNOWN = -1, -1_000_000
_PPM = 1e6


class BadTrace(Exception):
    """The trace cannot be used for training."""


@dataclasses.dataclass(frozen=True, slots=True)
class Vms:
    """Columns of equal length. Times are in seconds. Categories are text, empty if unknown."""

    id: Any
    arrival: Any
    departure: Any
    cores: Any
    memory_bytes: Any
    customer: Any
    vm_type: Any
    guest_os: Any
    location: Any
    untouched_ratio: Any
    """Smallest untouched share over the VM's lifetime; NaN if it was not measured."""

    def __len__(self) -> int:
        return len(self.id)

    def where(self, mask: Any) -> Vms:
        """Returns the VMs that a mask or a list of indices selects."""
        return Vms(*(getattr(self, field.name)[mask] for field in dataclasses.fields(self)))


def by_arrival(vms: Vms) -> Vms:
    """Sorts VMs by arrival, then by id."""
    return vms.where(np.lexsort((vms.id, vms.arrival)))


def read(path: Path) -> Vms:
    """Reads the VMs of a trace with known customer and untouched memory.

    Raises:
        BadTrace: the file is not a VM trace, is of another version, or has no such VM.
        OSError: the file cannot be read.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise BadTrace(f"{path}: not a Parquet file: {error}") from error
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise BadTrace(f"{path}: no column {', '.join(missing)}; import the trace with `thermocline pool import` first")
    names = _names(path, table.schema.metadata or {})
    columns = {name: np.asarray(table[name].to_numpy(), dtype=np.int64) for name in _COLUMNS}
    known = (columns["customer"] != _UNKNOWN) & (columns["untouched_ppm"] != _UNKNOWN)
    if not known.any():
        raise BadTrace(f"{path}: no VM has both customer and untouched memory; `thermocline pool generate` generates traces with both")
    columns = {name: column[known] for name, column in columns.items()}
    lifetimes = columns["lifetime_seconds"]
    return by_arrival(
        Vms(
            id=columns["id"],
            arrival=columns["arrival_seconds"],
            departure=np.where(lifetimes == _UNKNOWN, RUNNING, columns["arrival_seconds"] + lifetimes),
            cores=columns["cores"],
            memory_bytes=columns["memory_bytes"],
            customer=columns["customer"],
            **{name: _named(path, name, columns[name], names[list_]) for name, list_ in _CATEGORIES.items()},
            untouched_ratio=columns["untouched_ppm"] / _PPM,
        )
    )


def _names(path: Path, metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Reads the lists of category names of a file."""
    try:
        version = int(metadata.get(_VERSION_KEY, b"0"))
        about = json.loads(metadata.get(_ABOUT_KEY, b"{}"))
        names = {key: [str(name) for name in about.get(key, [])] for key in _CATEGORIES.values()}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadTrace(f"{path}: its metadata cannot be read: {error}") from error
    if version != _VERSION:
        raise BadTrace(f"{path}: the VM trace has version {version}; this program reads version {_VERSION}")
    return names


def _named(path: Path, column: str, numbers: Any, names: list[str]) -> Any:
    """Returns the names of indices; empty if unknown."""
    if len(numbers) and (numbers.min() < _UNKNOWN or numbers.max() >= len(names)):
        raise BadTrace(f"{path}: the column {column} has an index out of range; there are {len(names)} names")
    return np.array([*names, ""])[numbers]


def write(vms: Vms, path: Path, origin: str, ends: int) -> None:
    """Writes generated VMs as a trace that ends at the second `ends`, for `read` and for `thermocline pool`."""
    import pyarrow
    from pyarrow import parquet

    count = len(vms)
    lists, numbers = {}, {}
    for name, list_ in _CATEGORIES.items():
        values, where = np.unique(getattr(vms, name), return_inverse=True)
        lists[list_], numbers[name] = [str(value) for value in values], where
    columns = {
        "id": vms.id,
        "arrival_seconds": vms.arrival,
        "lifetime_seconds": np.where(vms.departure == RUNNING, _UNKNOWN, vms.departure - vms.arrival),
        "cores": vms.cores,
        "memory_bytes": vms.memory_bytes,
        "cluster": np.zeros(count),
        "customer": vms.customer,
        **numbers,
        "untouched_ppm": np.round(vms.untouched_ratio * _PPM),
        "slowdown_64ns_ppm": np.full(count, _SLOWDOWN_UNKNOWN),
        "slowdown_140ns_ppm": np.full(count, _SLOWDOWN_UNKNOWN),
    }
    about = {"origin": origin, "generated": True, "ends": ends, **lists}
    schema = pyarrow.schema([pyarrow.field(name, pyarrow.int64(), nullable=False) for name in _COLUMNS])
    schema = schema.with_metadata({_VERSION_KEY: str(_VERSION).encode(), _ABOUT_KEY: json.dumps(about).encode()})
    arrays = [pyarrow.array(np.asarray(columns[name], dtype=np.int64)) for name in _COLUMNS]
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(arrays, schema=schema), path, compression="zstd")
