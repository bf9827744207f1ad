"""What is known of VMs, as columns: one entry per VM, sorted by arrival."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

DAY = 86_400
GIB = 1 << 30

RUNNING = np.iinfo(np.int64).max
"""The departure of a VM that is still there when the trace ends."""

_COLUMNS = (
    "id", "arrival_seconds", "lifetime_seconds", "cores", "memory_bytes", "cluster", "customer", "vm_type", "guest_os", "location",
    "untouched_ppm", "slowdown_64ns_ppm", "slowdown_140ns_ppm",
)  # fmt: skip
"""The columns of a VM trace, all signed 64-bit integers; `crates/pool/vmtrace` owns the format."""

_WORDS = {"vm_type": "vm_types", "guest_os": "guest_os", "location": "locations"}
"""Columns of numbers that stand for words, and the list in the file's metadata that has them."""

_VERSION_KEY, _ABOUT_KEY, _VERSION = b"thermocline.vmtrace_version", b"thermocline.vmtrace_about", 1
_UNKNOWN, _SLOWDOWN_UNKNOWN = -1, -1_000_000
_PPM = 1e6


class BadTrace(Exception):
    """A trace that cannot be learned from."""


@dataclasses.dataclass(frozen=True, slots=True)
class Vms:
    """Columns of equal length. Times are seconds; categories are text, empty where unknown."""

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
    """The least share of its memory that was untouched over its life; not a number where nobody looked."""

    def __len__(self) -> int:
        return len(self.id)

    def where(self, mask: Any) -> Vms:
        """Those that a mask or a list of indices names."""
        return Vms(*(getattr(self, field.name)[mask] for field in dataclasses.fields(self)))


def by_arrival(vms: Vms) -> Vms:
    """The same, sorted by arrival, then by id."""
    return vms.where(np.lexsort((vms.id, vms.arrival)))


def read(path: Path) -> Vms:
    """The VMs of a trace whose customer and untouched memory are known.

    Raises:
        BadTrace: no such trace, one of a newer version, or no VM can be learned from.
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
    words = _words(path, table.schema.metadata or {})
    columns = {name: np.asarray(table[name].to_numpy(), dtype=np.int64) for name in _COLUMNS}
    known = (columns["customer"] != _UNKNOWN) & (columns["untouched_ppm"] != _UNKNOWN)
    if not known.any():
        raise BadTrace(
            f"{path}: of no VM both customer and untouched memory are known; `thermocline pool generate` makes up traces with both"
        )
    columns = {name: column[known] for name, column in columns.items()}
    lives = columns["lifetime_seconds"]
    return by_arrival(
        Vms(
            id=columns["id"],
            arrival=columns["arrival_seconds"],
            departure=np.where(lives == _UNKNOWN, RUNNING, columns["arrival_seconds"] + lives),
            cores=columns["cores"],
            memory_bytes=columns["memory_bytes"],
            customer=columns["customer"],
            **{name: _named(path, name, columns[name], words[list_]) for name, list_ in _WORDS.items()},
            untouched_ratio=columns["untouched_ppm"] / _PPM,
        )
    )


def _words(path: Path, metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """The lists of words of a file."""
    try:
        version = int(metadata.get(_VERSION_KEY, b"0"))
        about = json.loads(metadata.get(_ABOUT_KEY, b"{}"))
        words = {name: [str(word) for word in about.get(name, [])] for name in _WORDS.values()}
    except (ValueError, AttributeError, TypeError) as error:
        raise BadTrace(f"{path}: its metadata cannot be read: {error}") from error
    if version != _VERSION:
        raise BadTrace(f"{path}: a VM trace of version {version}; this program reads version {_VERSION}")
    return words


def _named(path: Path, name: str, numbers: Any, words: list[str]) -> Any:
    """The words that numbers stand for; empty where unknown."""
    if len(numbers) and (numbers.min() < _UNKNOWN or numbers.max() >= len(words)):
        raise BadTrace(f"{path}: {name} holds a number without a word; there are {len(words)}")
    return np.array([*words, ""])[numbers]


def write(vms: Vms, path: Path, origin: str, ends: int) -> None:
    """Writes made-up VMs as a trace that ends at a second, for `read` and for `thermocline pool`."""
    import pyarrow
    from pyarrow import parquet

    count = len(vms)
    lists, numbers = {}, {}
    for name, list_ in _WORDS.items():
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
