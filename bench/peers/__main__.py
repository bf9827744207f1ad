"""`python -m peers --program thermocline --into model.json`: adds `peers` to the report of the model's benchmark."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Single-threaded, because figures are per core.
for library in ("OMP", "OPENBLAS", "NUMBA"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from . import versions  # noqa: E402
from .jobs import load  # noqa: E402

PAIR = versions.Pair(rate_ppm=2_000, percentile_ppm=980_000, warmup_ms=600_000)


def main() -> int:
    """Generates a trace, compares the sums, and measures."""
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument("--program", required=True, help="thermocline, a release build")
    parser.add_argument("--into", type=Path, required=True, help="JSON report of the model's benchmark")
    parser.add_argument("--jobs", type=int, default=200, help="concurrent jobs [default: 200]")
    parser.add_argument("--days", type=int, default=7, help="length of the trace in days [default: 7]")
    parser.add_argument("--runs", type=int, default=5, help="runs of each version; medians are reported [default: 5]")
    options = parser.parse_args()
    report = json.loads(options.into.read_text()) if options.into.exists() else {}
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        generate = ["model", "--generate", str(options.jobs), "--days", str(options.days), "--record", directory]
        subprocess.run([options.program, *generate], check=True, stdout=subprocess.DEVNULL)
        expected = _ours(options.program, directory)
        jobs = load(Path(directory))
    connection = versions.in_duckdb(jobs)
    ways: dict[str, Callable[[], versions.Sums]] = {
        "numpy": lambda: versions.by_numpy(jobs, PAIR),
        "numba": lambda: versions.by_numba(jobs, PAIR),
        "duckdb": lambda: versions.by_sql(connection, PAIR),
    }
    peers, same = {}, 0
    for name, way in ways.items():
        # The first run also compiles.
        found = way()
        same = same or found[0]
        if found != (same, *expected):
            print(f"{name} sums to {found}, not to {(same, *expected)}", file=sys.stderr)
            return 1
        seconds = statistics.median(_seconds(way) for _ in range(options.runs if name != "duckdb" else 1))
        rate = len(jobs) / seconds
        peers[name] = {"entries_per_second_per_core": rate}
        if ours := report.get("entries_per_second_per_core_memory_one_pair"):
            peers[name]["ratio_to_thermocline"] = rate / ours
        print(f"{name}: {rate / 1e6:.3g} M entries/s, one pair of K and S, {len(jobs)} entries", file=sys.stderr)
    options.into.parent.mkdir(parents=True, exist_ok=True)
    options.into.write_text(json.dumps({**report, "peers": peers}, indent=2) + "\n")
    return 0


def _seconds(way: Callable[[], versions.Sums]) -> float:
    # CPU time, because other programs may run.
    begins = time.process_time()
    way()
    return time.process_time() - begins


def _ours(program: str, directory: str) -> tuple[int, int]:
    """Returns thermocline's own sums for the same pair: promotions, and entries with far memory.

    Its stored bytes are not compared, because they exclude incompressible pages, which the other versions do not
    model. They implement SDFM section 4.3 alone, without what the defaults add to it.
    """
    percentile, warmup = f"{PAIR.percentile_ppm / 10_000:g}%", f"{PAIR.warmup_ms // 1000}s"
    argv = [
        program,
        "model",
        "--trace",
        directory,
        "--format",
        "json",
        "--percentiles",
        percentile,
        "--warmups",
        warmup,
    ]
    argv += ["--set", "cold_age.bound=false", "--set", "cold_age.partial=false"]
    argv += ["--set", f"cold_age.percentile={percentile}", "--set", f"cold_age.warmup={warmup}"]
    answer = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    found = answer["answers"][0]["configured"]
    promotions = found["promotions_pages_per_second"] * answer["span_seconds"]
    return round(promotions), round(found["on_ratio"] * answer["entries"])


sys.exit(main())
