"""`python -m emulate`: real programs on emulated slow memory, at several slowdowns (Thermostat figures 5 to 11).

Each run is a program started by the emulator with `--slowdown`: it is filled, the accesses to all of its memory are
counted, the policy places memory in the slow tier, and then the slow tier is slow and fast alternately.

With `--scaled`, the last case of each program has the same number of slow accesses at ten times the latency: its
slowdown is ten times as high and exceeds the noise of the machine.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import figures, postgres
from .workloads import BenchError, Workload, all_of, running

_CASES = [("1us", 0.03), ("1us", 0.06), ("1us", 0.10)]
_SCALED = [("10us", 0.30)]
_PACKAGES = {"redis-server": "redis-server", "memcached": "memcached", "pgbench": "postgresql"}


def main() -> int:
    """Runs all cases; returns 1 on an error."""
    parser = argparse.ArgumentParser(prog="emulate", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--emulator", type=Path, required=True, help="thermocline-emulator")
    parser.add_argument("--load", type=Path, required=True, help="labguest, which generates load")
    parser.add_argument("--out", type=Path, required=True, help="output file (JSON)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; medians are reported (3)")
    parser.add_argument("--only", action="append", help="run only this program; may be repeated")
    parser.add_argument("--period", type=float, default=10, help="length of a counting period in seconds (10)")
    parser.add_argument("--periods", type=int, default=4, help="number of periods with slow memory (4)")
    parser.add_argument(
        "--turn", type=float, default=5, help="length of a slow or fast phase in seconds; 0: always slow (5)"
    )
    parser.add_argument("--scaled", action="store_true", help="add a case of 3 %% at ten times the latency")
    arguments = parser.parse_args()
    # SIGTERM also stops the started programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _run(arguments)
    except BenchError as error:
        print(f"emulate: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise BenchError("emulation requires root: run it with sudo")
    _install()
    workloads = [w for w in all_of(arguments.load.resolve()) if not arguments.only or w.name in arguments.only]
    with_postgres = not arguments.only or "postgres" in arguments.only
    if not workloads and not with_postgres:
        raise BenchError(f"there is no program {' or '.join(arguments.only)}")
    result: dict[str, Any] = {
        "machine": {"kernel": platform.release(), "processors": os.cpu_count()},
        "options": {name: getattr(arguments, name) for name in ("runs", "period", "periods", "turn")},
        "rows": [],
    }
    runs: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    # Cases are interleaved, so that other load on the machine affects all of them alike.
    for _ in range(arguments.runs):
        for workload in workloads:
            for latency, target in _CASES + (_SCALED if arguments.scaled else []):
                run = _emulate(arguments, workload, latency, target)
                runs.setdefault((workload.name, latency, target), []).append(run)
                keys = (
                    "share_slow_ratio",
                    "slowdown_counted_ratio",
                    "slowdown_settled_ratio",
                    "slowdown_by_rate_ratio",
                )
                shown = {key: None if run.get(key) is None else round(run[key], 3) for key in keys}
                print(f"{workload.name} {target:.0%} at {latency}: {shown}, load {os.getloadavg()[0]:.0f}", flush=True)
                result["rows"] = [
                    {
                        "program": name,
                        "latency": latency,
                        "target_ratio": target,
                        **figures.of_runs(done),
                        "all_runs": done,
                    }
                    for (name, latency, target), done in runs.items()
                ]
                _store(arguments.out, result)
    if with_postgres:
        with tempfile.TemporaryDirectory(prefix="emulate-") as directory:
            result["postgres"] = postgres.measure(Path(directory), 10)
        _store(arguments.out, result)
        print(f"postgres: {result['postgres']}")
    print(figures.table(result["rows"]))


def _emulate(arguments: argparse.Namespace, workload: Workload, latency: str, target: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="emulate-") as directory:
        report = Path(directory) / "report.json"
        emulator = [str(arguments.emulator.resolve()), "--format", "json", "--latency", latency]
        emulator += ["--slowdown", f"{target * 100:g}%", "--period", f"{arguments.period:g}s"]
        if arguments.turn:
            emulator += ["--alternate", f"{arguments.turn:g}s"]
        # Slow memory begins with the load, because filling touches all of the memory.
        filled = Path(directory) / "filled"
        emulator += ["--wait-for", str(filled), "--report", str(report), "--"]
        with running(workload, emulator, Path(directory)) as program:
            program.fill()
            filled.touch()
            slow_seconds = arguments.period * arguments.periods
            # Decisions and phase changes are delayed by up to a second.
            late_seconds = arguments.periods + 1
            done = program.work(arguments.period + slow_seconds * (2 if arguments.turn else 1) + late_seconds)
        if not report.exists():
            raise BenchError(f"{workload.name} under emulation wrote no report")
        run = figures.of_run(json.loads(report.read_text()), done.seconds)
    return {**run, "load_average": os.getloadavg()[0]}


def _install() -> None:
    missing = sorted({package for program, package in _PACKAGES.items() if shutil.which(program) is None})
    if missing:
        print(f"installing {' '.join(missing)}", file=sys.stderr)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for argv in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing],
        ):
            if subprocess.run(argv, env=quiet, stdout=sys.stderr, check=False).returncode != 0:
                raise BenchError(f"{' '.join(argv)} failed")


def _store(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
