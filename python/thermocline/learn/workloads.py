"""Generates workloads with top-down counters and slowdowns on slow memory.

No public data has both. The generated workloads are fitted to the published figures: the distribution of slowdowns at 182 %
and 222 % of local latency (Pond section 3.3), and that the share of time in which a core waits for DRAM predicts most of the
slowdown, while the share in which it waits for any memory predicts much less (Pond section 6.4.1). A workload's slowdown is
linear in the added latency, which fits both published distributions. The correlation of counters and slowdown is published
only indirectly, through the accuracy of Pond's forest; the noise below is fitted to it. The accuracy on real counters is
therefore unknown.

Counters have the names of Intel's top-down metrics; shares are of pipeline slots.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .generate import Fitted

LATENCIES = (1.82, 2.22)
"""Latency of slow memory as a multiple of local latency: Intel 142/78 ns and AMD 255/115 ns (Pond section 6.1)."""

SLOWDOWN_AT_182 = (
    (0.0, 0.0005), (0.23, 0.01 * 0.82 / 1.22), (0.26, 0.01), (0.37, 0.05 * 0.82 / 1.22), (0.43, 0.05), (0.63, 0.25 * 0.82 / 1.22),
    (0.79, 0.25), (1.0, 0.55),
)  # fmt: skip
"""Share of workloads, and the slowdown below which they are. Points of 222 % are scaled to 182 % by the added latency."""

COUNTERS = (
    "Retiring", "Bad_Speculation", "Frontend_Bound", "Backend_Bound", "Core_Bound", "Memory_Bound", "L1_Bound", "L2_Bound", "L3_Bound",
    "DRAM_Bound", "Store_Bound", "MEM_Bandwidth", "MEM_Latency", "DTLB_Load", "DTLB_Store", "Store_Latency", "FB_Full", "SQ_Full",
    "L3_Hit_Latency", "Contested_Accesses", "Data_Sharing", "Lock_Latency", "Branch_Mispredicts", "Machine_Clears", "Fetch_Latency",
    "Fetch_Bandwidth", "ICache_Misses", "Divider", "Ports_Utilization", "Light_Operations", "Heavy_Operations", "FP_Arith",
    "Info_Thread_IPC", "Info_Core_ILP", "Info_Memory_MLP", "Info_Memory_L3MPKI", "Info_Memory_Load_Miss_Real_Latency",
    "llc_miss_local_memory_bandwidth_read", "llc_miss_local_memory_bandwidth_write",
)  # fmt: skip

_EXPOSURE = 0.75
"""Spread of the ratio between time lost to DRAM and slots counted as waiting for it: a core overlaps some waits."""
_HIDDEN = 0.06
"""Share of workloads whose waits are hardly visible in DRAM_Bound (Pond finding 4): stores, page walks, rare serial misses."""


@dataclasses.dataclass(frozen=True, slots=True)
class Workloads:
    """Counters by workload, and the slowdown of each at `LATENCIES`, as a ratio."""

    names: Sequence[str]
    counters: Sequence[str]
    values: Any
    slowdowns: Any

    def __len__(self) -> int:
        return len(self.names)

    def where(self, chosen: Any) -> Workloads:
        """Returns the workloads at these positions."""
        return Workloads([self.names[at] for at in chosen], self.counters, self.values[chosen], self.slowdowns[chosen])

    def column(self, counter: str) -> Any:
        """Returns one counter of all workloads."""
        return self.values[:, self.counters.index(counter)]


class BadSamples(Exception):
    """A file of samples cannot be used for training."""


def generate(count: int, *, seed: int) -> Workloads:
    """Generates workloads. Pure: equal arguments give equal workloads."""
    if not 20 <= count <= 1_000_000:
        raise ValueError(f"cannot generate {count} workloads; give 20 to 1000000")
    chance = np.random.default_rng(seed)
    rank = (chance.permutation(count) + 0.5) / count
    at_182 = np.exp(np.interp(rank, [share for share, _ in SLOWDOWN_AT_182], [math.log(slow) for _, slow in SLOWDOWN_AT_182]))
    # Share of time in which a workload waits for DRAM without overlap.
    waits = at_182 / (LATENCIES[0] - 1)
    noise = chance.normal(0, 0.04, size=(count, 2))
    slowdowns = np.stack([waits * (latency - 1) for latency in LATENCIES], axis=1) * np.exp(noise)
    values = _counters(chance, waits)
    return Workloads([f"workload-{at:03}" for at in range(count)], COUNTERS, values.astype(np.float32), slowdowns)


def _counters(chance: np.random.Generator, waits: Any) -> Any:
    """Returns the counters of workloads with these waiting times."""
    count = len(waits)

    def spread(scale: float) -> Any:
        return np.exp(chance.normal(0, scale, size=count))

    exposure = chance.normal(0, 1, size=count)
    hidden = chance.random(count) < _HIDDEN
    dram = np.clip(waits * 0.9 * np.exp(-_EXPOSURE * exposure), 0.0002, 0.75)
    dram = np.where(hidden, np.minimum(dram, 0.02 * chance.random(count) + 0.001), dram)
    store = np.where(hidden, 0.5 * waits * spread(0.6), 0.01 * spread(1.0))
    # Overlapping waits count as bandwidth-bound, others as latency-bound, which reveals part of the exposure.
    latency_share = 1 / (1 + np.exp(-(1.5 * exposure + chance.normal(0, 0.5, size=count))))
    l1, l2, l3 = 0.05 * spread(0.9), 0.02 * spread(0.9), 0.04 * spread(1.0)
    memory = np.clip(dram + store + l1 + l2 + l3, 0, 0.85)
    rest = 1 - memory
    parts = chance.dirichlet((5, 1.0, 1.5, 2), size=count) * rest[:, None]
    retiring, speculation, frontend, core = parts.T
    mlp = np.exp(0.8 - 0.35 * exposure) * spread(0.15)
    bandwidth = dram * (1 - latency_share)
    found = {
        "Retiring": retiring, "Bad_Speculation": speculation, "Frontend_Bound": frontend, "Backend_Bound": memory + core,
        "Core_Bound": core,
        "Memory_Bound": memory, "L1_Bound": l1, "L2_Bound": l2, "L3_Bound": l3, "DRAM_Bound": dram, "Store_Bound": store,
        "MEM_Bandwidth": bandwidth, "MEM_Latency": dram * latency_share, "DTLB_Load": 0.02 * spread(1.0) + np.where(hidden, 0.1 * waits, 0),
        "DTLB_Store": 0.005 * spread(1.0), "Store_Latency": store * 0.6 * spread(0.4), "FB_Full": bandwidth * spread(0.7),
        "SQ_Full": bandwidth * 0.3 * spread(0.8), "L3_Hit_Latency": l3 * 0.7 * spread(0.3), "Contested_Accesses": l3 * 0.1 * spread(1.0),
        "Data_Sharing": l3 * 0.1 * spread(1.0), "Lock_Latency": 0.01 * spread(1.2), "Branch_Mispredicts": speculation * 0.9,
        "Machine_Clears": speculation * 0.1, "Fetch_Latency": frontend * 0.6, "Fetch_Bandwidth": frontend * 0.4,
        "ICache_Misses": frontend * 0.2 * spread(0.8), "Divider": 0.01 * spread(1.5), "Ports_Utilization": core * 0.8 * spread(0.1),
        "Light_Operations": retiring * 0.9, "Heavy_Operations": retiring * 0.1, "FP_Arith": retiring * chance.beta(0.5, 1.5, size=count),
        "Info_Thread_IPC": 4 * retiring, "Info_Core_ILP": 1.5 + 2 * retiring * spread(0.15), "Info_Memory_MLP": mlp,
        "Info_Memory_L3MPKI": 60 * dram * mlp / 2.2 * spread(0.3), "Info_Memory_Load_Miss_Real_Latency": 60 * spread(0.3),
        "llc_miss_local_memory_bandwidth_read": 9 * dram * mlp * spread(0.3),
        "llc_miss_local_memory_bandwidth_write": 3 * (dram + store) * mlp * spread(0.5),
    }  # fmt: skip
    return np.stack([found[name] for name in COUNTERS], axis=1)


def fit(of: Workloads) -> list[Fitted]:
    """Compares the published figures of (Pond sections 3.3 and 6.4.1) with these workloads."""
    found = []
    for at, latency in enumerate(("182 %", "222 %")):
        slow = of.slowdowns[:, at]
        for name, published, measured in (
            ("below 1 %", (0.26, 0.23)[at], np.mean(slow < 0.01)),
            ("below 5 %", (0.43, 0.37)[at], np.mean(slow < 0.05)),
            ("above 25 %", (0.21, 0.37)[at], np.mean(slow > 0.25)),
        ):
            found.append(Fitted(f"workloads slowed {name} at {latency} (3.3)", published, float(measured)))
    contrary = int(np.sum((of.column("DRAM_Bound") <= 0.02) & (of.slowdowns[:, 0] > 0.2)))
    return [*found, Fitted("workloads slowed above 20 % with 2 % DRAM-bound (finding 4: multiple)", 2, contrary)]


def read(path: Path) -> Workloads:
    """Reads samples as JSON lines: `{"name": ..., "counters": {...}, "slowdowns": [at 182 %, at 222 %]}` with equal counters.

    Raises:
        BadSamples: a line is not such a sample; the message has its number and the problem.
    """
    names, values, slowdowns = [], [], []
    counters: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            sample = json.loads(line)
            name, shown, slow = str(sample["name"]), dict(sample["counters"]), [float(one) for one in sample["slowdowns"]]
            numbers = {key: float(value) for key, value in shown.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise BadSamples(f"{where}: not a sample: {error!r}") from error
        counters = counters or sorted(numbers)
        if sorted(numbers) != counters:
            odd = sorted(set(numbers) ^ set(counters))
            raise BadSamples(f"{where}: the counters differ from those of line 1 in {', '.join(odd[:5])}")
        if len(slow) != len(LATENCIES) or not all(map(math.isfinite, [*slow, *numbers.values()])):
            raise BadSamples(f"{where}: expected {len(LATENCIES)} slowdowns (at {LATENCIES} of local latency) and finite counters")
        names.append(name)
        values.append([numbers[key] for key in counters])
        slowdowns.append(slow)
    if len(names) < 20:
        raise BadSamples(f"{path}: {len(names)} samples; training requires 20")
    return Workloads(names, counters, np.array(values, dtype=np.float32), np.array(slowdowns))


def write(of: Workloads, path: Path) -> None:
    """Writes samples in the format of `read`."""
    lines = []
    for name, row, slow in zip(of.names, of.values, of.slowdowns, strict=True):
        shown = {counter: float(value) for counter, value in zip(of.counters, row, strict=True)}
        lines.append(json.dumps({"name": name, "counters": shown, "slowdowns": [float(one) for one in slow]}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
