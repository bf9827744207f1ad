"""The arena's programs: each starts in cgroups of its own, and serves at a fixed rate."""

import contextlib
import json
import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thermolab import loads, rootfs, services
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.truth import Region, Workload, poisson

SOURCES = Path(__file__).parent
COMPILED = SOURCES / "Sessions.java"
PACKAGES = (
    *("gcc", "libc6-dev", "memcached", "nginx", "openjdk-21-jdk-headless", f"postgresql-{rootfs.POSTGRESQL}"),
    *("procps", "python3", "redis-server"),
)
"""Debian packages of the programs."""

_LOAD_SECONDS = 3600
"""Longer than any guest lives."""

_JVM_STARTS = 4
"""Under emulation, the compiler of Debian's JVM crashes in some of its starts."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the arena."""

    name: str
    """Also the name of its cgroup."""
    start: Callable[[Guest], None]
    """Starts it and returns once its memory is filled and requests arrive."""
    what: str
    """One line for the page."""


def _phases(guest: Guest) -> None:
    Workload(
        guest,
        [
            Region("hot", 16, {"period_ms": 100}),
            Region("warm", 24, poisson(0.02, 0.5)),
            Region("never", 40, {"never": True}),
            Region("phases", 24, {"phases": [{"for_s": 40, "period_ms": 1000}, {"for_s": 40, "never": True}]}),
        ],
        "phases",
    )


def _redis(guest: Guest) -> None:
    server = services.redis(guest)
    load = loads.Requests(server, "redis", keys=50_000)
    load.fill()
    load.start(_LOAD_SECONDS, 300)


def _sqlite(guest: Guest) -> None:
    _python(guest, "catalogue", "sqlite", ["/root/catalogue.db", "60"])


def _jvm(guest: Guest) -> None:
    options = ["-Xms128m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto"]
    argv = ["java", *options, "-cp", rootfs.CLASSES, "Sessions", "40"]
    for left in reversed(range(_JVM_STARTS)):
        pid = guest.spawn(argv, cgroup=guest.cgroup("jvm"), stdout="/run/jvm.out", stderr="/run/jvm.err")
        try:
            guest.expect("/run/jvm.out", "ready", timeout_s=60)
            return
        except LabError:
            if not left:
                raise
            with contextlib.suppress(LabError):
                guest.kill(pid, signal.SIGKILL)


def _build(guest: Guest) -> None:
    guest.write("/root/build.sh", (SOURCES / "build.sh").read_text())
    guest.spawn(
        ["sh", "/root/build.sh"], cgroup=guest.cgroup("build"), stdout="/run/build.out", stderr="/run/build.err"
    )
    guest.expect("/run/build.out", "ready", timeout_s=120)


def _memcached(guest: Guest) -> None:
    server = services.memcached(guest, memory_mib=96)
    load = loads.Requests(server, "memcached", keys=40_000)
    load.fill()
    load.start(_LOAD_SECONDS, 200)


def _postgres(guest: Guest) -> None:
    server = services.postgres(guest, shared_buffers_mib=48)
    load = loads.Pgbench(server, scale=4)
    load.fill()
    load.start(_LOAD_SECONDS, 20)


def _static(guest: Guest) -> None:
    server = services.nginx(guest, "static")
    load = loads.Requests(server, "http", keys=2_000, value_factor=8)
    load.fill()
    load.start(_LOAD_SECONDS, 40)


def _weights(guest: Guest) -> None:
    hot = Region("layers", 24, {"period_ms": 2000}, kind="weights")
    Workload(guest, [hot, Region("experts", 48, poisson(0.01, 0.1), kind="weights")], "weights")


def _sandbox(guest: Guest) -> None:
    for number in range(6):
        _python(guest, "sandbox", "sandbox", [], number)


def _python(guest: Guest, program: str, name: str, arguments: Sequence[str], number: int = 0) -> None:
    path, out = f"/root/{program}.py", f"/run/{name}{number or ''}.out"
    guest.write(path, (SOURCES / f"{program}.py").read_text())
    guest.spawn(["python3", path, *arguments], cgroup=guest.cgroup(name), stdout=out, stderr=out)
    guest.expect(out, "ready", timeout_s=180)


MIXES: dict[str, Sequence[Program]] = {
    "five": (
        Program("phases", _phases, "104 MiB of known ages, of which 24 MiB are used for 40 s and then not for 40 s"),
        Program("redis", _redis, "Redis, 50,000 keys by Zipf's law, 300 requests/s"),
        Program("sqlite", _sqlite, "SQLite, 36 MB on disk, drifting popularity, 60 reads/s"),
        Program("jvm", _jvm, "Java, 72 MB of sessions, a tenth of them in use, 40 requests/s"),
        Program("build", _build, "gcc over and over: short-lived processes, headers and old outputs in the page cache"),
    ),
    "servers": (
        Program("memcached", _memcached, "memcached, 40,000 keys by Zipf's law, 200 requests/s"),
        Program("postgres", _postgres, "PostgreSQL, 64 MB of pgbench accounts, 48 MiB of buffers, 20 reads/s"),
        Program("static", _static, "nginx, 2,000 files of 8 KiB in the mean, 40 requests/s"),
        Program("weights", _weights, "72 MiB that do not compress, of which 24 MiB are read every 2 s"),
        Program("sandbox", _sandbox, "six Python interpreters that were used and wait"),
    ),
}


_REPORTS = {
    "redis": ("/run/redis-load.jsonl", 60),
    "memcached": ("/run/memcached-load.jsonl", 60),
    "static": ("/run/http-load.jsonl", 60),
    "sqlite": ("/run/sqlite.out", 6),
}
"""Files with the reports of programs that write some, and how many lines are a minute."""


def p99_us(guest: Guest, name: str) -> float | None:
    """Returns the slowest percent of a program's requests in its last minute, the median of its reports.

    `None`: the program reports nothing.
    """
    if name not in _REPORTS:
        return None
    path, lines = _REPORTS[name]
    reports = [line for line in guest.read(path).splitlines() if line.startswith("{") and line.endswith("}")]
    recent = [json.loads(line)["p99_us"] for line in reports[-lines:]]
    # A report without a finished request has none.
    known = [us for us in recent if us is not None]
    return statistics.median(known) if known else None
