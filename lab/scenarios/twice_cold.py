"""Memory that stays unaccessed in zswap goes on to the swap device, and what returns does not.

A job under `auto` has memory that is checked once, at the end of the run, and memory of which every page is read every
few seconds. With `writeback.enabled` most of what the former has in zswap must be on the device in the end, so that
the job's pool shrinks; next to nothing may have been read from the device until then; and every byte must be as it was
written. The agent is killed while it has closed zswap to the job: `thermocline agent --restore` must restore the
settings.
"""

import json
import time
from typing import Any

from thermolab import node, programs, remains, truth
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12",)
MORE_IS_BETTER = ("pool_reduction_ratio", "moved_bytes")

_JOB = "/twice"
_COLD_MIB, _HOT_MIB, _RETURNS_MIB = 64, 4, 16
_RETURN_MS = 10_000
_CHECK_SECONDS = 270
"""When everything is checked: what was moved is read from the device then."""
_FIGURES = "/run/verify.json"
_KILL_SECONDS_MAX = 90

POOL_REDUCTION_MIN_RATIO = 0.5
DEVICE_READS_MAX_RATIO = 0.05
"""Bound on what was read from the device before the check, as a share of the memory that is there."""

_SETTINGS: node.Settings = {
    "agent.policy": "auto",
    "writeback.enabled": True,
    "writeback.after_min": "20s",
    "pressure.period": "1s",
    "pressure.warmup": "2s",
    # Time passes sixty times as fast.
    "pressure.stall_target": "6%",
    "pressure.io_stall_target": "6%",
    "cold_age.warmup": "10s",
    # What the check has written compresses two to one.
    "tier.compressed_max": "70%",
    "tier.latency_max": "100ms",
}


def run(lab: Lab) -> dict[str, Any]:
    """Kills an agent during a batch, then lets another one finish, and checks the memory."""
    with lab.guest() as guest:
        truth.tick(guest)
        began = time.monotonic()
        _start_programs(guest)
        node.configure(guest, [node.Job(_JOB)], _SETTINGS)
        before = remains.inspect(guest)
        killed = _kill_in_batch(lab, guest, before)
        agent = node.start(guest)
        figures = _watch(lab, agent, began + _CHECK_SECONDS - 15)
        read_early = figures["device_reads_bytes"] / max(figures["moved_bytes"], 1)
        _check_content(lab, guest)
        end = agent.stop()
        left = remains.differing(before, remains.inspect(guest))
        replay = guest.run(["thermocline", "replay"], check=False)
        guest.keep(f"{node.STATE}/journal")
    lab.holds("exit", end.status == 0 and not left, f"status {end.status}: {'; '.join(left)}")
    lab.holds("replay", replay.status == 0, replay.stdout)
    lab.at_least("pool_reduction_ratio", figures["pool_reduction_ratio"], POOL_REDUCTION_MIN_RATIO)
    lab.at_most("device_reads_ratio", read_early, DEVICE_READS_MAX_RATIO)
    return {**figures, **killed, "device_reads_ratio": read_early}


def _start_programs(guest: Guest) -> None:
    programs.workload(guest, _JOB, [programs.hot("returns", _RETURNS_MIB * MIB, _RETURN_MS)])
    argv = ["labguest", "verify", "--mib", str(_COLD_MIB), "--hot-mib", str(_HOT_MIB)]
    argv += ["--every-ms", str(_CHECK_SECONDS * 1000), "--figures", _FIGURES]
    guest.spawn(argv, cgroup=guest.cgroup(_JOB[1:]), stdout="/run/verify.log", stderr="/run/verify.log")
    guest.expect("/run/verify.log", "ready", timeout_s=60)


def _kill_in_batch(lab: Lab, guest: Guest, before: remains.Settings) -> dict[str, Any]:
    """Kills the agent while `memory.zswap.max` is 0; returns what it left and what was restored."""
    agent = node.start(guest)
    file = f"{guest.cgroup(_JOB[1:])}/memory.zswap.max"
    # The settings are changed for some milliseconds only: the loop reads without starting a process.
    loop = f'end=$(($(date +%s)+{_KILL_SECONDS_MAX})); n=0; while read -r v < {file} && [ "$v" != 0 ]; do n=$((n+1)); '
    loop += f'[ $((n % 1000)) != 0 ] || [ "$(date +%s)" -lt $end ] || exit 1; done; kill -9 {agent.pid}; cat {file}'
    found = guest.run(["sh", "-c", loop], check=False, timeout_s=_KILL_SECONDS_MAX + 30)
    if found.status != 0:
        agent.stop(9)
    else:
        guest.wait_exit(agent.pid)
    left = found.stdout.strip()
    restored = guest.run(["thermocline", "agent", "--restore"]).stdout
    remaining = remains.differing(before, remains.inspect(guest))
    lab.say(f"killed with memory.zswap.max at {left!r}; restored: {restored.strip()}")
    lab.holds("killed_in_batch", left == "0", f"memory.zswap.max was {left!r} when the agent was killed")
    lab.holds("restore", not remaining, "; ".join(remaining))
    return {"killed_in_batch": left == "0", "left_after_restore": len(remaining)}


def _watch(lab: Lab, agent: node.Agent, until: float) -> dict[str, Any]:
    """Follows the job's pool until then."""
    guest, cgroup = agent.guest, agent.guest.cgroup(_JOB[1:])
    reads = guest.flat_keyed("/proc/vmstat")["pswpin"]
    pool_max = pool = 0
    while time.monotonic() < until:
        pool = guest.number(f"{cgroup}/memory.zswap.current")
        pool_max = max(pool_max, pool)
        # There is no event to wait for.
        time.sleep(1)
    stat, job = guest.flat_keyed(f"{cgroup}/memory.stat"), agent.job(_JOB)
    figures = {
        "pool_max_bytes": pool_max,
        "pool_end_bytes": pool,
        "pool_reduction_ratio": 1 - pool / max(pool_max, 1),
        "moved_bytes": job["moved_to_device_bytes"],
        "saved_bytes": job["saved_bytes"],
        "far_bytes": job["far_bytes"],
        "swapcached_bytes": stat["swapcached"],
        "zswpwb_pages": stat["zswpwb"],
        "device_reads_bytes": (guest.flat_keyed("/proc/vmstat")["pswpin"] - reads) * 4096,
    }
    lab.say(", ".join(f"{name} {round(value, 3)}" for name, value in figures.items()))
    lab.say(job["explanation"])
    return figures


def _check_content(lab: Lab, guest: Guest) -> None:
    node.until("everything is checked once", lambda: guest.exists(_FIGURES), timeout_s=180)
    found = json.loads(guest.read(_FIGURES))
    corrupt, verified = found["bytes_corrupt"], found["bytes_verified"]
    lab.say(f"{verified / MIB:.0f} MiB verified, {corrupt} bytes corrupt")
    lab.at_most("bytes_corrupt", corrupt, 0)
    lab.at_least("bytes_verified", verified, _COLD_MIB * MIB)
