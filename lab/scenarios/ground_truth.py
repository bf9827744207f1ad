"""Compares each tracker's idle ages with a workload whose accesses are all known, and measures the tracker's cost.

`misplaced_ratio` is the share of the job's swap-backed bytes that a tracker puts on the wrong side of a threshold.
page_idle and damon are compared page by page at 10 s; pages within one scan period (2 s) of the threshold are excluded,
because ages count whole scans. lru_gen reports no individual pages: its histogram is compared at its own two
boundaries, the times of its last two ageings. A tracker's cost is the CPU time of a scan as a ratio to one read of the
kernel's per-page files in the same guest.

Then the cold-age and promotion histograms of every tracker are compared with the truth at thresholds up to 61 scans,
on a second workload of hot, warm, cold and random memory (`thermolab.histograms`). The trackers that `auto` prefers
must be within their bound in 95 % of the cells.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from thermolab import histograms, node, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine
from thermolab.truth import Region, Verdict, Workload

KERNELS = ("6.12-idle", "6.12", "7.2")
MORE_IS_BETTER = ("compared_bytes",)

SCAN_S = 2
IDLE_S = 10
SAMPLES = int(os.environ.get("THERMOCLINE_LAB_SAMPLES", "3"))

HISTOGRAMS_ONLY = os.environ.get("THERMOCLINE_LAB_HISTOGRAMS", "")
"""Trackers, separated by commas: then only their histograms are compared, which takes four minutes per tracker."""

_TRACKERS = ("sampled", "lru_gen", "page_idle", "sampled_frames")

CELLS_WITHIN_MIN = 0.95

BOUNDS = {"page_idle": 0.005, "lru_gen": 0.02, "damon": 0.10}

RSS_MAX_BYTES = 20 * MIB
RSS_MAX_RATIO = 0.0005

_OUT, _ERR = "/run/observe.jsonl", "/run/observe.err"
_BITMAP = "/sys/kernel/mm/page_idle/bitmap"
_DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"
_BULK_READS = 20

_SETTINGS = {
    # Under emulation, reading DAMON's regions takes 20 times as long as on real hardware, and DAMON does not sample
    # meanwhile: with the default of 4096 and a scan period of 2 s it would not sample for half of the time.
    "damon": ["--set", "agent.damon_regions_max=1024"],
}


def regions() -> list[Region]:
    """Returns regions of all kinds, some 270 MiB in total."""
    never = {"never": True}
    return [
        Region("hot", 32, {"period_ms": 100}),
        Region("warm", 40, {"period_ms": 5_000}),
        Region("slow", 40, {"period_ms": 20_000}, writes=True),
        Region("never", 64, never),
        Region("zipf", 16, {"zipf": {"exponent": 1.0, "touches_per_s": 200}}),
        Region("file_warm", 16, {"period_ms": 5_000}, kind="file"),
        Region("shared_warm", 16, {"period_ms": 5_000}, kind="shared"),
        Region("shared_never", 16, never, kind="shared"),
        Region("huge_warm", 8, {"period_ms": 5_000}, kind="huge"),
        Region("huge_never", 8, never, kind="huge"),
        Region("random_never", 8, never, kind="incompressible"),
    ]


def run(lab: Lab) -> dict[str, Any]:
    """Runs one tracker after the other on one workload."""
    figures: dict[str, Any] = {"scan_period_seconds": SCAN_S, "idle_seconds": IDLE_S}
    with lab.guest(Machine(memory_bytes=GIB)) as guest:
        truth.tick(guest)
        if HISTOGRAMS_ONLY:
            if guest.exists(_DAMON_STAT):
                guest.write(_DAMON_STAT, "N")
            _histograms(lab, guest, figures, HISTOGRAMS_ONLY.split(","))
            return figures
        workload = Workload(guest, regions())
        node.configure(guest, [node.Job(workload.job, "observe")], {"agent.scan_period": f"{SCAN_S}s"})
        figures["job_bytes"] = workload.bytes_of(workload.swap_backed())
        bulk = _bulk_read_cpu_s(guest)
        _damon_stat_is_respected(lab, guest, workload)
        if guest.exists(_BITMAP):
            figures["page_idle"] = _by_pages(lab, workload, "page_idle")
        figures["lru_gen"] = _by_histogram(lab, workload)
        figures["damon"] = _by_pages(lab, workload, "damon")
        for tracker in BOUNDS:
            if tracker in figures:
                cost = figures[tracker]
                cost["cpu_ratio_to_bulk_read"] = cost.pop("cpu_s_per_scan") / bulk
                lab.at_most(f"{tracker}.misplaced_ratio", cost["misplaced_ratio"], BOUNDS[tracker])
                rss_max = RSS_MAX_BYTES + RSS_MAX_RATIO * guest.machine.memory_bytes
                lab.at_most(f"{tracker}.rss_bytes", cost["rss_bytes"], rss_max)
        workload.stop()
        _histograms(lab, guest, figures, _TRACKERS)
    return figures


def _histograms(lab: Lab, guest: Guest, figures: dict[str, Any], trackers: Sequence[str]) -> None:
    """Compares the histograms of these trackers."""
    mix = Workload(guest, histograms.regions(), "mix")
    report = json.loads(guest.run(["thermocline", "doctor", "--format", "json"], check=False).stdout)
    offered = {check["name"] for check in report["checks"] if check["status"] == "ok"}
    if "page_idle" in offered:
        offered.add("sampled_frames")  # by the same bits
    figures["auto"] = report["tracker"]
    lab.holds(
        "auto.compared",
        report["tracker"] in offered.intersection(trackers),
        f"`auto` uses {report['tracker']}, which is not compared; compared: {', '.join(trackers)}",
    )
    for tracker in trackers:
        if tracker not in offered:
            lab.say(f"{tracker}: this kernel does not offer it")
            continue
        found = histograms.compare(lab, mix, tracker)
        figures.setdefault(tracker, {}).update(found)
        if tracker != "lru_gen":
            lab.at_least(f"{tracker}.cells_within_bound_ratio", found["cells_within_bound_ratio"], CELLS_WITHIN_MIN)
    mix.stop()


def _damon_stat_is_respected(lab: Lab, guest: Guest, workload: Workload) -> None:
    """If damon_stat uses DAMON, the tracker must report that and not interfere; afterwards, disables damon_stat."""
    if not guest.exists(_DAMON_STAT) or guest.read(_DAMON_STAT).strip() != "Y":
        return
    argv = ["thermocline", "--set", "agent.tracker=damon", "observe", workload.job, "--for", "1s"]
    refused = guest.run(argv, check=False)
    message = refused.stderr.strip()
    lab.say(f"damon_stat is on: {message}")
    lab.holds(
        "damon.busy", refused.status != 0 and "damon_stat" in message, f"status {refused.status}, message {message!r}"
    )
    lab.holds("damon.not_taken", guest.read(_DAMON_STAT).strip() == "Y", "the agent switched damon_stat off")
    guest.write(_DAMON_STAT, "N")


def _by_pages(lab: Lab, workload: Workload, tracker: str) -> dict[str, Any]:
    """Compares page by page the memory that a tracker considers cold."""
    judged = set(workload.swap_backed())
    totals = dict.fromkeys(("idle_not_cold_bytes", "cold_not_idle_bytes", "excluded_bytes", "compared_bytes"), 0)
    by_region: dict[str, float] = {}
    views: list[dict[str, Any]] = []
    for sample in range(SAMPLES):
        # Durations that are no multiples of the regions' periods observe them at different ages.
        view, ranges = _observe(workload, tracker, 25 + 3 * sample, f"{IDLE_S}s")
        views.append(view)
        cold = [pages for process in ranges for pages in process["cold"]]
        taken_at_ns = next(process["taken_at_ns"] for process in ranges if process["pid"] == workload.pid)
        verdict = Verdict(taken_at_ns, cold)
        for name, region in workload.compare(verdict, IDLE_S * 1000, SCAN_S * 1000).items():
            if name not in judged:
                continue
            wrong = region["idle_not_cold_bytes"] + region["cold_not_idle_bytes"]
            by_region[name] = by_region.get(name, 0.0) + wrong / (SAMPLES * region["total_bytes"])
            for figure in totals:
                totals[figure] += region[figure]
    misplaced = totals["idle_not_cold_bytes"] + totals["cold_not_idle_bytes"]
    ratio = misplaced / totals["compared_bytes"] if totals["compared_bytes"] else 1.0
    regions_text = ", ".join(f"{name} {share:.2%}" for name, share in by_region.items())
    lab.say(f"{tracker}: {ratio:.3%} misplaced at {IDLE_S} s; by region: {regions_text}")
    return {"misplaced_ratio": ratio, **totals, "misplaced_ratio_by_region": by_region, **_costs(views)}


def _by_histogram(lab: Lab, workload: Workload) -> dict[str, Any]:
    """Compares the bytes that lru_gen counts as idle since its last ageing but one, and since the one before."""
    judged = workload.swap_backed()
    total = workload.bytes_of(judged)
    worst = {1: 0.0, 2: 0.0}
    wrong, compared = 0.0, 0
    views: list[dict[str, Any]] = []
    for sample in range(SAMPLES):
        views.append(_observe(workload, "lru_gen", 15 + 3 * sample, None)[0])
        scans = [json.loads(line)["jobs"][0] for line in workload.guest.read(_OUT).splitlines()]
        taken = sorted({scan["scanned_at_seconds"] for scan in scans})
        last = next(scan for scan in reversed(scans) if scan["scanned_at_seconds"] == taken[-1])
        for scans_old in worst:
            counted = next(bytes_ for seconds, bytes_ in last["cold_age"] if seconds == scans_old * SCAN_S)
            idle_ms = round((taken[-1] - taken[-1 - scans_old]) * 1000)
            true = workload.idle_bytes(judged, idle_ms, taken[-1])
            share = abs(counted - true) / total
            lab.say(
                f"lru_gen: idle for {idle_ms} ms: {counted / MIB:.1f} MiB, actual {true / MIB:.1f} MiB ({share:.2%})"
            )
            worst[scans_old] = max(worst[scans_old], share)
            wrong += abs(counted - true)
            compared += total
    return {
        "misplaced_ratio": wrong / compared,
        "misplaced_ratio_at_one_scan_max": worst[1],
        "misplaced_ratio_at_two_scans_max": worst[2],
        "compared_bytes": compared,
        **_costs(views),
    }


def _observe(
    workload: Workload, tracker: str, seconds: int, cold: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs `observe` for a while; returns the last view, and the cold ranges if requested."""
    guest = workload.guest
    argv = ["thermocline", "--format", "json", "--set", f"agent.tracker={tracker}", *_SETTINGS.get(tracker, [])]
    argv += ["observe", workload.job, "--for", f"{seconds}s"]
    if cold is not None:
        argv += ["--cold-ranges", cold]
    guest.write(_OUT, "")
    guest.write(_ERR, "")
    pid = guest.spawn(argv, stdout=_OUT, stderr=_ERR)
    end = guest.wait_exit(pid, timeout_s=10 * seconds)
    if end.status != 0:
        raise RuntimeError(f"observe with {tracker} exited with {end}: {guest.read(_ERR)}")
    lines = [json.loads(line) for line in guest.read(_OUT).splitlines()]
    ranges = lines.pop()["cold_ranges"] if cold is not None else []
    return lines[-1], ranges


def _costs(views: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the cost of observing: sums and maxima over the runs."""
    costs = [view["costs"] for view in views]
    scans = sum(cost["scans"] for cost in costs)
    cpu = sum(cost["scan_cpu_seconds"] for cost in costs)
    scanned = sum(cost["scanned_bytes"] for cost in costs)
    return {
        "cpu_s_per_scan": cpu / scans,
        "emulated_cpu_seconds_per_gib": cpu / scanned * GIB,
        "rss_bytes": max(cost["rss_bytes"] for cost in costs),
        "late_scans": sum(cost["late_scans"] for cost in costs),
        "remarks": sorted({job["remark"] for view in views for job in view["jobs"] if job["remark"]}),
    }


def _bulk_read_cpu_s(guest: Guest) -> float:
    """Returns the CPU time of one sequential read of the kernel's per-page files."""
    files = ["/proc/kpageflags", "/proc/kpagecgroup"]
    if guest.exists(_BITMAP):
        files.append(_BITMAP)
    once = "; ".join(f"dd if={file} of=/dev/null bs=1M 2>/dev/null" for file in files)
    done = guest.run(["sh", "-c", f"for i in $(seq {_BULK_READS}); do {once}; done"], timeout_s=300)
    # Subtracts the time for starting dd.
    idle = "; ".join("dd if=/dev/null of=/dev/null bs=1M 2>/dev/null" for _ in files)
    empty = guest.run(["sh", "-c", f"for i in $(seq {_BULK_READS}); do {idle}; done"], timeout_s=300)
    return (done.cpu_s - empty.cpu_s) / _BULK_READS
