"""Spark reads the sums that were written. Run by `make test-trace-spark`; requires Java."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest

TRACE = Path(__file__).resolve().parents[2] / "crates/fleet/trace/tests/trace-v2.parquet"
WORDS = ["cluster", "machine", "job", "class", "policy", "tracker", "decision", "job_key"]

sql = pytest.importorskip("pyspark.sql", reason="requires its own environment: make test-trace-spark")


def test_spark() -> None:
    """All numeric columns have the same sums, in a session with two local workers."""
    program = os.environ["THERMOCLINE"]
    exported = subprocess.run([program, "trace", "export", str(TRACE)], check=True, capture_output=True, text=True)
    rows = list(csv.DictReader(exported.stdout.splitlines()))
    written = {name: sum(int(row[name]) for row in rows) for name in rows[0] if name not in WORDS}
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = (
        builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    )
    try:
        frame = session.read.parquet(str(TRACE))
        assert frame.count() == len(rows) > 0
        assert frame.agg(dict.fromkeys(written, "sum")).collect()[0].asDict() == {
            f"sum({name})": total for name, total in written.items()
        }
    finally:
        session.stop()
