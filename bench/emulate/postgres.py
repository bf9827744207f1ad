"""PostgreSQL, whose memory cannot be slowed down: measures how much of it its processes share."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .workloads import BenchError

_START_SECONDS = 60.0


def measure(directory: Path, seconds: float) -> dict[str, Any]:
    """Returns the private and shared memory of all its processes under pgbench (TPC-B), and the transaction rate."""
    with _server(directory) as (server, socket):
        pgbench = ["pgbench", "--host", str(socket), "--username", "postgres"]
        _run([*pgbench, "--initialize", "--quiet", "--scale", "10", "postgres"])
        with subprocess.Popen(
            [*pgbench, "--client", "4", "--time", f"{seconds:g}", "postgres"], stdout=subprocess.PIPE, text=True
        ) as load:
            time.sleep(seconds / 2)
            memory = _memory(server.pid)
            output = load.communicate()[0]
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    return {**memory, "transactions_per_second": float(found.group(1)) if found else None}


@contextmanager
def _server(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not binaries:
        raise BenchError("there is no PostgreSQL in /usr/lib/postgresql; install postgresql")
    data = directory / "postgres"
    data.mkdir()
    # PostgreSQL refuses to run as root.
    as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(data, "postgres", "postgres")
        directory.chmod(0o755)
    cluster = data / "cluster"
    initdb = [str(binaries[-1] / "initdb"), "--pgdata", str(cluster), "--username", "postgres", "--no-sync"]
    _run([*as_user, *initdb])
    options = [
        "-D",
        str(cluster),
        "-k",
        str(data),
        "-c",
        "listen_addresses=",
        "-c",
        "shared_buffers=128MB",
        "-c",
        "fsync=off",
    ]
    with (directory / "postgres.log").open("wb") as log:
        server = subprocess.Popen([*as_user, str(binaries[-1] / "postgres"), *options], stdout=log, stderr=log)
    try:
        until = time.monotonic() + _START_SECONDS
        while subprocess.run(["pg_isready", "--quiet", "--host", str(data)], check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > until:
                raise BenchError(f"PostgreSQL does not start: {(directory / 'postgres.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield server, data
    finally:
        server.terminate()
        server.wait()


def _memory(server: int) -> dict[str, int]:
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    sums = {"private_anonymous_bytes": 0, "shared_memory_bytes": 0, "files_bytes": 0}
    lines = {"Pss_Anon": "private_anonymous_bytes", "Pss_Shmem": "shared_memory_bytes", "Pss_File": "files_bytes"}
    for pid in [str(server), *children]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE):
            if name in lines:
                sums[lines[name]] += int(size) * 1024
    return sums


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{argv[0]} failed: {done.stderr.strip()[-2000:]}")
