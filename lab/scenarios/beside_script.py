"""Policies `cold_age` and `auto` beside the simplest rival: a script that evicts MGLRU generations of a fixed age.

Three programs at once on a stock kernel: one whose memory has known ages and changes phases, Redis, and a build that
forks. Every contender has a guest of its own, with the same programs and seeds. The script opens a generation every A/2
and evicts those that are A old, for A = 6, 15 and 30 s; the agent has its defaults in compressed time. Saved memory is
what a program's cgroup occupies less than in the guest without a contender. Time lost is what its faults would take on
real devices: 120 us from zswap and 500 us from a disk.

At equal time lost: the saving of the script at a policy's loss is read from the line through the origin and the
script's three points; beyond the last point it is that point's. A job's memory differs by some hundred KiB from guest
to guest, so savings below a MiB are not distinguished: both sides of a ratio are at least that. What a contender costs
while it settles is a figure of its own (`settling_lost_ratio`).

They are watched for two cycles of the phases, and for a dozen of the build: in 80 s the script at A = 30 s lost between
nothing and 0.6 % on the build, by how its period fell on the build's.

THERMOCLINE_LAB_SETTLE is how many seconds contenders settle; THERMOCLINE_LAB_AGES, _POLICIES and _CLASSES are
comma-separated lists of what competes; default: all. With THERMOCLINE_LAB_ROUNDS above 1 all of them run so many times,
one after the other in each round, and means are compared.
"""

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arena import contenders, losses
from thermolab import loads, node, services, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB
from thermolab.truth import Region, Workload, poisson

KERNELS = ("6.12",)
MORE_IS_BETTER = ("worst_ratio",)

SETTLE_SECONDS = float(os.environ.get("THERMOCLINE_LAB_SETTLE", "80"))
WATCH_SECONDS = 160
READ_SECONDS = 2
SCRIPT_AGES = [int(age) for age in os.environ.get("THERMOCLINE_LAB_AGES", "6,15,30").split(",")]
POLICIES = os.environ.get("THERMOCLINE_LAB_POLICIES", "cold_age,auto").split(",")
CLASSES = os.environ.get("THERMOCLINE_LAB_CLASSES", "conservative,standard,aggressive").split(",")
ROUNDS = int(os.environ.get("THERMOCLINE_LAB_ROUNDS", "1"))
JOBS = ("phases", "redis", "build")

_BUILD = """
mkdir -p /root/build
while :; do
  for file in 1 2 3 4; do
    head -c 2000000 /usr/bin/python3* /usr/bin/perl* /bin/busybox 2>/dev/null | gzip -1 >/root/build/$file.o
    for step in 1 2 3 4 5 6 7 8; do busybox sha256sum /root/build/$file.o >/dev/null; done
  done
  cat /root/build/*.o | gzip -1 >/root/build/out
  sleep 1
done
"""


@dataclass(frozen=True, slots=True)
class Point:
    """What one contender did to one program."""

    current_bytes: float
    lost_ratio: float
    settling_lost_ratio: float


Points = dict[str, Point]


def run(lab: Lab) -> dict[str, Any]:
    """Runs every contender and compares the policies with the script."""
    script = [f"script {age} s" for age in SCRIPT_AGES]
    ours = [f"{policy} {group}" for policy in POLICIES for group in CLASSES]
    rounds = [{name: _contend(lab, name) for name in ("none", *script, *ours)} for _ in range(ROUNDS)]
    means = {name: _mean([one[name] for one in rounds]) for name in rounds[0]}
    base = means["none"]
    figures: dict[str, Any] = {"rounds": ROUNDS}
    ratios = []
    for job in JOBS:
        curve = sorted(_gain(base[job], means[name][job]) for name in script)
        rows: dict[str, Any] = {
            "script": [{"lost_ratio": lost, "saved_bytes": saved} for lost, saved in curve],
            "script_settling_lost_ratio": [means[name][job].settling_lost_ratio for name in script],
        }
        for name in ours:
            lost, saved = _gain(base[job], means[name][job])
            ratio = max(saved, MIB) / max(_at(curve, lost), MIB)
            ratios.append(ratio)
            rows[name.replace(" ", "_")] = {
                "lost_ratio": lost,
                "settling_lost_ratio": means[name][job].settling_lost_ratio,
                "saved_bytes": saved,
                "saved_ratio_to_script_at_equal_loss": ratio,
            }
            lab.say(f"{job}: {name}: {saved / MIB:.1f} MiB at {lost:.2%} lost, {ratio:.2f} times the script")
        figures[job] = rows
    figures["worst_ratio"] = min(ratios)
    lab.at_least("worst_ratio", figures["worst_ratio"], 1.0)
    return figures


def _mean(points: Sequence[Points]) -> Points:
    """Returns the means of what one contender did in all rounds."""
    return {
        job: Point(
            statistics.fmean(one[job].current_bytes for one in points),
            statistics.fmean(one[job].lost_ratio for one in points),
            statistics.fmean(one[job].settling_lost_ratio for one in points),
        )
        for job in points[0]
    }


def _gain(base: Point, point: Point) -> tuple[float, float]:
    """Returns the additional time lost and the bytes saved."""
    return max(point.lost_ratio - base.lost_ratio, 0.0), base.current_bytes - point.current_bytes


def _at(curve: Sequence[tuple[float, float]], lost: float) -> float:
    """Returns the script's saving at this loss."""
    points = [(0.0, 0.0), *curve]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if lost < x1:
            return y0 + (y1 - y0) * (lost - x0) / (x1 - x0)
    return max(y for x, y in points if x <= lost)


def _contend(lab: Lab, name: str) -> Points:
    """Runs all programs under one contender, `none`, `script A s` or `POLICY CLASS`, in a guest of its own."""
    what, *which = name.split()
    with lab.guest() as guest:
        truth.tick(guest)
        guest.write("/proc/sys/vm/page-cluster", "0")
        guest.write("/sys/module/zswap/parameters/enabled", "Y")
        _programs(guest)
        if what == "script":
            contenders.evict_by_script(guest, int(which[0]), [f"/{job}" for job in JOBS])
        elif what in POLICIES:
            settings: node.Settings = {"agent.policy": what, "zswap.manage": False}
            node.configure(guest, [node.Job(f"/{job}", group=which[0]) for job in JOBS], settings)
            node.start(guest)
        points = _watch(guest)
        if what in POLICIES:
            journal = guest.keep(f"{node.STATE}/journal")
            journal.replace(journal.with_name(f"{name.replace(' ', '-')}.journal"))
    for job, point in points.items():
        lost = f"{point.lost_ratio:.2%} lost, {point.settling_lost_ratio:.2%} while settling"
        lab.say(f"{name}: {job}: {point.current_bytes / MIB:.1f} MiB, {lost}")
    return points


def _programs(guest: Guest) -> None:
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
    server = services.redis(guest)
    mix = ("--hot-fraction", "0.05", "--hot-share", "0.95", "--write-share", "0.05")
    load = loads.Requests(server, "redis", keys=50_000, mix=mix)
    load.fill()
    load.start(3600, 300)
    guest.spawn(["busybox", "sh", "-c", _BUILD], cgroup=guest.cgroup("build"))


def _watch(guest: Guest) -> Points:
    """Lets the contender settle, and reads what the programs occupy and lose for a while."""
    first, started = {job: losses.faults(guest, job) for job in JOBS}, time.monotonic()
    time.sleep(SETTLE_SECONDS)
    before, began = {job: losses.faults(guest, job) for job in JOBS}, time.monotonic()
    current: dict[str, list[int]] = {job: [] for job in JOBS}
    while time.monotonic() < began + WATCH_SECONDS:
        for job in JOBS:
            current[job].append(guest.number(f"/sys/fs/cgroup/{job}/memory.current"))
        time.sleep(READ_SECONDS)
    elapsed_us = (time.monotonic() - began) * 1e6
    points = {}
    for job in JOBS:
        lost = _since(before[job], losses.faults(guest, job))
        settling = _since(first[job], before[job]) / ((began - started) * 1e6)
        points[job] = Point(statistics.fmean(current[job]), lost / elapsed_us, settling)
    return points


def _since(before: losses.Faults, after: losses.Faults) -> int:
    """Returns the time that faults between two readings would have taken on real devices, in microseconds."""
    return sum(losses.lost_us(before, after).values())
