"""A protected working set in nested slices is not reclaimed when the machine runs short of memory.

A server two slices below the root uses anonymous memory and page cache of a file. Then another program, which no rule
names, uses more than the machine has left. The server's refaults are counted without protection by the agent, with
`memory.low` on its own cgroup alone, and with the agent's protection, which covers the slices too: by `memory.low`
alone, in spite of which the kernel reclaims while the machine stays short, and by `memory.min` where it does.
"""

from typing import Any

from thermolab import node, programs, truth
from thermolab.errors import LabError
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB, Machine

KERNELS = ("6.12", "7.2")

MACHINE_MIB = 640
ANON_MIB, FILE_MIB = 80, 48
PERIOD_MS = 4000
"""Of the server. The other program must use its memory much more often, also while it swaps: else the kernel rightly
takes its pages and not the server's, and nothing is tested."""
HOG_MIB = 480
HOG_PERIOD_MS = 500
DECIDE_SECONDS = 32
SQUEEZE_SECONDS = 15
JUDGED_SECONDS = 25

REFAULTS_MAX_RATIO = 0.1
REFAULTS_WITHOUT_MIN = 3_000
"""With fewer the machine was not short: on a busy host the other program is too slow for that."""

_LOW_ONLY = ("agent_low_only", "agent_low_only_without_mglru")
"""Controls: protection by `memory.low` alone, with the kernel's multi-generational lists and with its old ones."""

_JOB = "/outer.slice/inner.slice/server"
_SIBLING_LOW_MIB = 16
_UNIT_MIN_MIB = 64
"""`MemoryMin=` of the agent's unit and of its slice: without it the agent itself may be swapped out."""
_SETTINGS: node.Settings = {
    # Only protection is tested: nothing is offloaded.
    "cold_age.warmup": "1h",
    "agent.scan_period": "8s",
    "agent.control_period": "4s",
}


def run(lab: Lab) -> dict[str, Any]:
    """Measures each kind of protection in a guest of its own."""
    figures: dict[str, Any] = {}
    # On 7.2 DAMON is in use by the kernel itself: without MGLRU, no tracker is left.
    controls = _LOW_ONLY[:1] if lab.kernel.name == "7.2" else _LOW_ONLY
    for kind in ("none", "own_cgroup", *controls, "agent", "agent_recursive"):
        with lab.guest(Machine(memory_bytes=MACHINE_MIB * MIB)) as guest:
            figures[kind] = row = _squeeze(guest, kind)
            lab.say(f"{kind}: {row['refaults']} refaults, {row['protected_bytes'] / MIB:.0f} MiB protected in effect")
    without = max(figures["none"]["refaults"], 1)
    figures["refaults_without"] = without
    figures["refaults_own_cgroup_ratio"] = figures["own_cgroup"]["refaults"] / without
    for kind in controls:
        figures[f"refaults_{kind.removeprefix('agent_')}_ratio"] = figures[kind]["refaults"] / without
    figures["refaults_recursive_ratio"] = figures["agent_recursive"]["refaults"] / without
    figures["refaults_ratio"] = figures["agent"]["refaults"] / without
    lab.at_least("refaults_without", without, REFAULTS_WITHOUT_MIN)
    lab.at_most("refaults_ratio", figures["refaults_ratio"], REFAULTS_MAX_RATIO)
    lab.at_most("refaults_recursive_ratio", figures["refaults_recursive_ratio"], REFAULTS_MAX_RATIO)
    lab.holds(
        "restored",
        all(row["left"] == row["given"] for row in figures.values() if isinstance(row, dict)),
        "memory.low or memory.min of a slice was not restored: see `given` and `left`",
    )
    return figures


def _squeeze(guest: Guest, kind: str) -> dict[str, Any]:
    truth.tick(guest)
    if kind == "agent_recursive":
        guest.run(["busybox", "mount", "-o", "remount,memory_recursiveprot", "/sys/fs/cgroup"])
    if kind.endswith("without_mglru"):
        guest.write("/sys/kernel/mm/lru_gen/enabled", "0")
    slices = [guest.cgroup("outer.slice"), guest.cgroup("outer.slice/inner.slice")]
    for path in slices:
        guest.write(f"{path}/cgroup.subtree_control", "+memory")
    # A sibling claims a part of what its slice has.
    sibling = "/outer.slice/inner.slice/sibling"
    programs.workload(guest, sibling, [programs.hot("hot", 2 * _SIBLING_LOW_MIB * MIB, PERIOD_MS)])
    guest.write(f"{guest.cgroup(sibling[1:])}/memory.low", str(_SIBLING_LOW_MIB * MIB))
    heap = programs.hot("heap", ANON_MIB * MIB, PERIOD_MS)
    index = {**programs.hot("index", FILE_MIB * MIB, PERIOD_MS), "kind": "file", "path": "/root/index"}
    programs.workload(guest, _JOB, [heap, index])
    cgroup = guest.cgroup(_JOB[1:])
    given = [guest.number(f"{path}/memory.{kind}") for path in slices for kind in ("low", "min")]
    protect = kind.startswith("agent")
    switches: node.Settings = {"agent.protect_working_set": protect, "agent.hard_protection": kind not in _LOW_ONLY}
    node.configure(guest, [node.Job(_JOB)], {**_SETTINGS, **switches})
    agent = node.start(guest, cgroup=_as_its_unit(guest))
    guest.run(["sleep", str(DECIDE_SECONDS)])
    if kind == "own_cgroup":
        guest.write(f"{cgroup}/memory.low", str((ANON_MIB + FILE_MIB) * MIB))
    at_start = _refaults(guest, cgroup)
    hog = _start_hog(guest, kind)
    guest.run(["sleep", str(SQUEEZE_SECONDS)])
    before = _refaults(guest, cgroup)
    guest.run(["sleep", str(JUDGED_SECONDS)])
    refaults = _refaults(guest, cgroup) - before
    view = agent.job(_JOB)
    row = {
        "refaults": refaults,
        "refaults_before": before - at_start,
        "hardened": _hardened(guest, agent),
        "memory_bytes": guest.number(f"{cgroup}/memory.current"),
        "hard": view["hard_protection"],
        "min_bytes": [guest.number(f"{path}/memory.min") for path in [*slices, cgroup]],
        "low_events": guest.flat_keyed(f"{cgroup}/memory.events")["low"],
        "lru_gen": guest.read("/sys/kernel/mm/lru_gen/enabled").strip(),
        "recursive": "memory_recursiveprot" in guest.read("/proc/mounts"),
        "claimed_bytes": view["protection_claimed_bytes"],
        "protected_bytes": view["protection_bytes"],
        "low_bytes": [guest.number(f"{path}/memory.low") for path in [*slices, cgroup]],
        "given": given,
    }
    guest.kill(hog)
    guest.wait_exit(hog)
    agent.stop()
    files = [f"{path}/memory.{kind}" for path in slices for kind in ("low", "min")]
    return {**row, "left": [guest.number(file) for file in files]}


def _start_hog(guest: Guest, kind: str) -> int:
    """Starts the other program; returns its pid once it has its memory.

    Raises:
        LabError: the kernel killed it.
    """
    try:
        return programs.workload(guest, "/hog", [programs.hot("hog", HOG_MIB * MIB, HOG_PERIOD_MS)])
    except LabError as error:
        kills = guest.flat_keyed("/proc/vmstat")["oom_kill"]
        if not kills:
            raise
        raise LabError(f"{kind}: the kernel killed {kills} processes while the other program grew") from error


def _hardened(guest: Guest, agent: node.Agent) -> list[str]:
    """What the agent said of `memory.min`."""
    return [line for line in guest.read(agent.log).splitlines() if "memory.min" in line]


def _as_its_unit(guest: Guest) -> str:
    """Makes a cgroup for the agent, whose own memory is kept as by its systemd unit; returns its directory."""
    own = [guest.cgroup("thermocline.slice"), guest.cgroup("thermocline.slice/agent")]
    guest.write(f"{own[0]}/cgroup.subtree_control", "+memory")
    for path in own:
        guest.write(f"{path}/memory.min", str(_UNIT_MIN_MIB * MIB))
    return own[1]


def _refaults(guest: Guest, cgroup: str) -> int:
    stat = guest.flat_keyed(f"{cgroup}/memory.stat")
    return stat["workingset_refault_anon"] + stat["workingset_refault_file"]
