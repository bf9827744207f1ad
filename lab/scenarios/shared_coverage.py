"""Cold memory that several processes map, or none, is offloaded like any other.

Four jobs: PostgreSQL, of whose rows one in twenty is read; four processes that map the same memory file, as
PostgreSQL's processes map its buffers; a server in Perl that fills its memory and then forks its workers; a job that
has written files to a tmpfs, which nothing maps. Coverage is far memory as a share of cold memory, at the least
threshold. Files that nothing maps are seen by tracker `page_idle` alone: the others follow page tables. PostgreSQL
starts where the kernel has System V shared memory: a prebuilt small kernel may have been built without it.
"""

from contextlib import suppress
from typing import Any

from thermolab import loads, node, services
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12-idle", "6.12")
MORE_IS_BETTER = ("coverage_min_ratio",)

POSTGRES, BUFFERS, FORKED, TMPFS = "/postgres", "/buffers", "/forked", "/tmpfs"
# A page of the rows that are read is read every two to three seconds: in about each scan.
POSTGRES_SCALE, POSTGRES_BUFFERS_MIB, POSTGRES_SHARE, POSTGRES_RATE = 6, 96, 0.05, 200
# Of 90 MB of rows, a checkpoint leaves most in the buffers.
POSTGRES_COLD_MIN_MIB = 60
BUFFERS_MIB, BUFFERS_HOT_MIB = 64, 8
BUFFERS_COLD_MIB = BUFFERS_MIB - BUFFERS_HOT_MIB
TMPFS_MIB = 64
PROCESSES = 4
COVERAGE_MIN = 0.85
WITHIN_SECONDS = 180
# The workers' own memory, and what their requests read.
FORKED_COLD_MIN_MIB = 40

_SETTINGS: node.Settings = {"cold_age.promotion_rate": "100%", "cold_age.warmup": "10s", "cold_age.bound": False}

_FILL = "exec tar -cf - /usr 2>/dev/null | head -c {bytes} >{file}"
# Records of half a KiB; a request reads one of the first 8 %.
_SERVER = """
use strict; $| = 1;
my @records = map { my $n = $_; sprintf("%08d", $n) . join(",", map { $n * $_ % 99_991 } 1 .. 40) . " value $n" x 20 }
    1 .. 100_000;
for (1 .. 4) {
    next if fork;
    my $read = 0;
    while (1) { for (1 .. 50) { $read += length $records[rand 8_000] } select undef, undef, undef, 0.02 }
}
print "ready\\n"; sleep 100_000;
"""


def run(lab: Lab) -> dict[str, Any]:
    """Starts the jobs, then the agent, and waits until their cold memory is out."""
    with lab.guest() as guest:
        started = {BUFFERS: _buffers, FORKED: _forked, TMPFS: _tmpfs, POSTGRES: _postgres}
        if not guest.exists("/proc/sys/kernel/shmmax"):
            lab.say("no PostgreSQL: this kernel has no System V shared memory")
            del started[POSTGRES]
        for start in started.values():
            start(guest)
        node.configure(guest, [node.Job(job) for job in started], _SETTINGS)
        agent = node.start(guest)

        def covered() -> bool:
            views = {job: agent.job(job) for job in started}
            known = views[BUFFERS]["far_bytes"] >= COVERAGE_MIN * BUFFERS_COLD_MIB * MIB
            return known and _least_coverage(views) >= COVERAGE_MIN

        # What is missing at the end shows in the figures.
        with suppress(LabError):
            node.until("the jobs' cold memory is offloaded", covered, timeout_s=WITHIN_SECONDS)
        jobs = {job: agent.job(job) for job in started}
        agent.stop()
        guest.keep(f"{node.STATE}/journal")
    figures = {job[1:]: _figures(view) for job, view in jobs.items()}
    least = _least_coverage(jobs)
    lab.at_least("coverage_min_ratio", least, COVERAGE_MIN)
    lab.at_least("forked.far_bytes", figures["forked"]["far_bytes"], COVERAGE_MIN * FORKED_COLD_MIN_MIB * MIB)
    lab.at_least("buffers.far_bytes", figures["buffers"]["far_bytes"], COVERAGE_MIN * BUFFERS_COLD_MIB * MIB)
    if POSTGRES in jobs:
        lab.at_least("postgres.far_bytes", figures["postgres"]["far_bytes"], COVERAGE_MIN * POSTGRES_COLD_MIN_MIB * MIB)
    if _sees_tmpfs(jobs):
        lab.at_least("tmpfs.far_bytes", figures["tmpfs"]["far_bytes"], COVERAGE_MIN * TMPFS_MIB * MIB)
    return {"tracker": jobs[BUFFERS]["tracker"], "coverage_min_ratio": least, **figures}


def _sees_tmpfs(jobs: dict[str, dict[str, Any]]) -> bool:
    return bool(jobs[TMPFS]["tracker"] == "page_idle")


def _least_coverage(jobs: dict[str, dict[str, Any]]) -> float:
    """Returns the least coverage of the jobs whose memory the tracker sees."""
    seen = [view for job, view in jobs.items() if job != TMPFS or _sees_tmpfs(jobs)]
    return min(float(view["coverage_ratio"] or 0) for view in seen)


def _figures(job: dict[str, Any]) -> dict[str, Any]:
    keys = ("memory_bytes", "far_bytes", "cold_bytes", "saved_bytes", "promotion_rate_ratio_per_min")
    return {"coverage_ratio": job["coverage_ratio"] or 0.0, **{key: job[key] for key in keys}}


def _buffers(guest: Guest) -> None:
    cgroup = guest.cgroup(BUFFERS[1:])
    file = "/dev/shm/buffers"
    guest.run(["sh", "-c", _FILL.format(bytes=BUFFERS_MIB * MIB, file=file)], cgroup=cgroup, timeout_s=120)
    for number in range(PROCESSES):
        log = f"/run/mapper-{number}.log"
        argv = ["labguest", "mappers", file, "--hot-mib", str(BUFFERS_HOT_MIB)]
        guest.spawn(argv, cgroup=cgroup, stdout=log, stderr=log)
        guest.expect(log, "ready")


def _postgres(guest: Guest) -> None:
    server = services.postgres(guest, shared_buffers_mib=POSTGRES_BUFFERS_MIB)
    load = loads.Pgbench(server, scale=POSTGRES_SCALE, asked_share=POSTGRES_SHARE)
    load.fill()
    load.start(WITHIN_SECONDS + 120, POSTGRES_RATE)


def _forked(guest: Guest) -> None:
    guest.write("/run/server.pl", _SERVER)
    log = "/run/server.log"
    guest.spawn(["perl", "/run/server.pl"], cgroup=guest.cgroup(FORKED[1:]), stdout=log, stderr=log)
    guest.expect(log, "ready", timeout_s=120)


def _tmpfs(guest: Guest) -> None:
    cgroup = guest.cgroup(TMPFS[1:])
    command = _FILL.format(bytes=TMPFS_MIB * MIB, file="/dev/shm/files")
    guest.run(["sh", "-c", command], cgroup=cgroup, timeout_s=120)
    # A job is a cgroup with a process.
    guest.spawn(["sleep", "100000"], cgroup=cgroup)
