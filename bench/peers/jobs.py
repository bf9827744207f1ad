"""A fleet's trace as arrays, one job after the other."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Jobs:
    """Columns of the entries that the controller reads; rows are sorted by job and time."""

    starts: Numbers
    """First row of each job, and the end of the last job: jobs + 1 values."""
    age_ms: Numbers
    window_ms: Numbers
    cold: npt.NDArray[np.uint32]
    """Pages by age: entries x buckets; the first bucket is younger than every threshold."""
    promotions: npt.NDArray[np.uint32]
    table: pa.Table
    """The same columns, and `job_number`, for SQL."""

    def __len__(self) -> int:
        return len(self.age_ms)


def load(directory: Path) -> Jobs:
    """Reads all trace files below a directory."""
    dataset = ds.dataset(directory, format="parquet", partitioning=None)
    histograms = {
        kind: sorted(name for name in dataset.schema.names if name.startswith(f"{kind}_") and name.endswith("_pages"))
        for kind in ("cold", "promotions")
    }
    # Names such as `promoted_pages` are not buckets.
    histograms = {kind: [name for name in names if name.split("_")[1].isdigit()] for kind, names in histograms.items()}
    keys = ["machine", "job", "job_key", "start_unix_ms"]
    columns = [*keys, "job_age_ms", "window_ms", *histograms["cold"], *histograms["promotions"]]
    table = dataset.to_table(columns=columns).sort_by([(key, "ascending") for key in keys]).combine_chunks()
    changes = np.zeros(len(table), dtype=bool)
    changes[0] = True
    for key in keys[:3]:
        codes = table[key].combine_chunks().dictionary_encode().indices.to_numpy()
        changes[1:] |= codes[1:] != codes[:-1]
    starts = np.append(np.flatnonzero(changes), len(table)).astype(np.int64)
    numbers = pa.array(np.cumsum(changes) - 1)

    def matrix(kind: str) -> npt.NDArray[np.uint32]:
        return np.stack([table[name].to_numpy() for name in histograms[kind]], axis=1).astype(np.uint32)

    return Jobs(
        starts=starts,
        age_ms=table["job_age_ms"].to_numpy(),
        window_ms=table["window_ms"].to_numpy(),
        cold=matrix("cold"),
        promotions=matrix("promotions"),
        table=table.append_column("job_number", numbers),
    )
