"""If decompression bursts exhaust the machine, the opt-in guard kills the job of the lowest class and reports why.

An aggressive job has 200 MiB in far memory, a standard job takes the memory that this freed, and then the first job
accesses all of its memory at once.
"""

import signal
from typing import Any

from thermolab import node, programs
from thermolab.lab import Lab
from thermolab.qemu import GIB, MIB, Machine, SwapDisk

_SIDECAR, _SERVICE = "/sidecar", "/service"
_COLD_BYTES = 200 * MIB
_QUIET_SECONDS = 90

_SETTINGS: node.Settings = {
    "agent.scan_period": "1s",
    "agent.control_period": "1s",
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "2s",
    "class.aggressive.promotion_rate": "100%",
    "class.aggressive.warmup": "2s",
    "zswap.max_pool": "50%",
    "guard.enabled": True,
    # The guest swaps in tens of MiB per second, and the guard checks once a second.
    "guard.available_min": "15%",
}


def run(lab: Lab) -> dict[str, Any]:
    """Fills memory, offloads it, fills the freed memory and triggers the burst."""
    with lab.guest(Machine(memory_bytes=512 * MIB, swap=SwapDisk(GIB))) as guest:
        burst = programs.phases("cold", _COLD_BYTES, (_QUIET_SECONDS, None), (_QUIET_SECONDS, 2000))
        pid = programs.workload(guest, _SIDECAR, [burst])
        node.configure(guest, [node.Job(_SIDECAR, "aggressive"), node.Job(_SERVICE)], _SETTINGS)
        agent = node.start(guest)
        # Waits until 90 % is swapped out.
        guest.run(["sh", "-c", _WAIT_FOR_OFFLOAD], timeout_s=_QUIET_SECONDS)
        available = guest.flat_keyed("/proc/meminfo")["MemAvailable"] * 1024
        size = (available - 96 * MIB) // MIB * MIB
        programs.workload(guest, _SERVICE, [programs.idle("idle", 16 * MIB), programs.hot("hot", size, 1000)])
        lab.say(f"{available} B were available, the service takes {size} B; waiting for the burst")
        line = guest.expect(agent.log, "guard ", timeout_s=4 * _QUIET_SECONDS)
        lab.say(line)
        died_of = guest.wait_exit(pid).signal
        far = agent.job(_SERVICE)["far_bytes"]
        serving = guest.flat_keyed(f"/sys/fs/cgroup{_SERVICE}/cgroup.events")["populated"]
        end = agent.stop()
        events = [record for record in node.journal(guest) if record["record"] == "event"]
    kills = [event for event in events if "guard killed the job" in event["what"]]
    killed = [str(event["job"]) for event in kills]
    lab.holds("killed_job", killed == [_SIDECAR], f"killed {killed or 'none'}, not only {_SIDECAR}")
    lab.holds("killed_job", died_of == signal.SIGKILL, f"its process was killed by signal {died_of}")
    lab.holds("service", bool(serving), f"{_SERVICE} has no processes left")
    lab.holds("agent", end.status == 0, f"exited with status {end.status}, signal {end.signal}")
    return {"killed_job": ", ".join(killed), "jobs_killed": len(killed), "service_far_bytes": far}


_WAIT_FOR_OFFLOAD = f"""
until [ "$(cat /sys/fs/cgroup{_SIDECAR}/memory.swap.current)" -ge {_COLD_BYTES * 9 // 10} ]; do sleep 0.2; done
"""
