"""Other readers of our traces find what was written: each column has the same sum with every reader.

Run by `make test-trace`, which sets THERMOCLINE to the path of the program.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from pathlib import Path

import duckdb
import polars
import pyarrow.parquet
import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "crates/fleet/trace/tests/trace-v2.parquet"
WORDS = ["cluster", "machine", "job", "class", "policy", "tracker", "decision"]
# Identifiers, whose sums have no meaning.
KEYS = ["job_key"]


def thermocline(*arguments: str) -> str:
    """Returns the output of the program."""
    return subprocess.run([os.environ["THERMOCLINE"], *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a store with one file, as agents write it."""
    root = tmp_path_factory.mktemp("store")
    for machine in ("m1", "m2"):
        directory = root / "cluster=c" / "date=2026-11-20" / f"machine={machine}"
        directory.mkdir(parents=True)
    shutil.copy(TRACE, root / "cluster=c" / "date=2026-11-20" / "machine=m1" / "1795132800000-0123456789abcdef.parquet")
    return root


@pytest.fixture(scope="module")
def written() -> dict[str, int]:
    """Returns the sums of all numeric columns, from our own reader."""
    rows = list(csv.DictReader(thermocline("trace", "export", str(TRACE)).splitlines()))
    assert len(rows) == 48
    return {name: sum(int(row[name]) for row in rows) for name in rows[0] if name not in WORDS + KEYS}


def test_pyarrow(written: dict[str, int]) -> None:
    """Reads with pyarrow."""
    table = pyarrow.parquet.ParquetFile(TRACE).read()
    assert {name: sum(table.column(name).to_pylist()) for name in written} == written
    assert set(table.column("job").to_pylist()) == {"/redis", "/web"}


def test_duckdb(written: dict[str, int]) -> None:
    """Reads with DuckDB, in SQL."""
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in written)
    (row,) = duckdb.sql(f"SELECT {sums} FROM read_parquet('{TRACE}')").fetchall()  # noqa: S608
    assert dict(zip(written, row, strict=True)) == written


def test_polars(written: dict[str, int]) -> None:
    """Reads with Polars."""
    frame = polars.read_parquet(TRACE, hive_partitioning=False)
    assert frame.select(list(written)).sum().row(0, named=True) == written
    assert frame.height == 48


def test_files_are_self_describing() -> None:
    """The metadata contains versions, thresholds and units."""
    metadata = pyarrow.parquet.ParquetFile(TRACE).metadata.metadata
    assert metadata[b"thermocline.trace_version"] == b"2"
    assert metadata[b"thermocline.thresholds_scans"].startswith(b"1,2,3,")
    assert (metadata[b"thermocline.scan_period_ms"], metadata[b"thermocline.page_bytes"]) == (b"120000", b"4096")


QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/trace.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("query", QUERIES, ids=[query.splitlines()[0].removeprefix("-- ") for query in QUERIES])
def test_queries_of_the_manual(store: Path, query: str) -> None:
    """Every query in docs/trace.md runs on a store and returns rows."""
    assert len(duckdb.sql(query.replace("/srv/traces", str(store))).fetchall()) > 0


def test_the_manual_has_queries() -> None:
    """The regular expression of the test above finds the queries."""
    assert len(QUERIES) >= 5
