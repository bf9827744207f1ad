"""The agent works with the capabilities of its unit alone, and SIGHUP reads its configuration again.

The guest has no systemd: the bounding set of `deploy/thermocline-agent.service` is applied by `setpriv`, without new
privileges. The unit's system call filter and its mount namespace are not applied. While the agent runs, its
configuration changes: a knob, then an error, then the job's class.
"""

from pathlib import Path
from typing import Any

from thermolab import node, programs
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12", "7.2")
MORE_IS_BETTER = ("offloaded_bytes",)

UNIT = Path(__file__).parents[2] / "deploy" / "thermocline-agent.service"
JOB = "/job"
IDLE_MIB, HOT_MIB = 48, 8
OFFLOADED_MIN_RATIO = 0.9

_SETTINGS: node.Settings = {
    "agent.scan_period": "500ms",
    "agent.control_period": "500ms",
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "2s",
    "cold_age.bound": False,
}


def run(lab: Lab) -> dict[str, Any]:
    """Runs the confined agent, and reloads its configuration."""
    names = _capabilities()
    kept = ",".join(["-all", *(f"+{name}" for name in names)])
    with lab.guest() as guest:
        programs.workload(guest, JOB, [programs.idle("idle", IDLE_MIB * MIB), programs.hot("hot", HOT_MIB * MIB)])
        low = f"/sys/fs/cgroup{JOB}/memory.low"
        before = guest.number(low)
        node.configure(guest, [node.Job(JOB)], _SETTINGS)
        agent = node.start(guest, prefix=["setpriv", "--bounding-set", kept, "--no-new-privs"])
        status = guest.read(f"/proc/{agent.pid}/status")
        effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
        node.until("the job is offloaded", lambda: agent.job(JOB)["far_bytes"] >= OFFLOADED_MIN_RATIO * IDLE_MIB * MIB)
        far = agent.job(JOB)["far_bytes"]
        protected = guest.number(low) != before

        node.configure(
            guest, [node.Job(JOB)], {**_SETTINGS, "cold_age.promotion_rate": "50%", "agent.scan_period": "1s"}
        )
        guest.kill(agent.pid, 1)
        guest.expect(agent.log, "configuration reloaded: cold_age.promotion_rate; at the next start: agent.scan_period")
        guest.write("/etc/thermocline/thermocline.toml", "[agent]\nscan_perod = 3\n")
        guest.kill(agent.pid, 1)
        guest.expect(agent.log, "the configuration was not reloaded")
        kept_on = guest.number(low) != before
        node.configure(guest, [node.Job(JOB, group="observe")], _SETTINGS)
        guest.kill(agent.pid, 1)
        guest.expect(agent.log, "the job rules apply from now on")
        node.until("the job is only observed", lambda: agent.job(JOB)["class"] == "observe")
        node.until("the protection of a job that is only observed is taken back", lambda: guest.number(low) == before)
        end = agent.stop()
        log = guest.read(agent.log)
    denied = [line for line in log.splitlines() if "not permitted" in line or "denied" in line]
    lab.holds("capabilities", int(effective, 16).bit_count() == len(names), f"CapEff is {effective}, not {names}")
    lab.holds("denied", not denied, f"the kernel refused: {denied[:3]}")
    lab.holds("protected", protected, "memory.low was not set")
    lab.holds("kept_on", kept_on, "a file with an error changed the job")
    lab.holds("end", end.status == 0, f"it ended with {end}")
    return {"capabilities": len(names), "offloaded_bytes": far, "denied": len(denied), "reloads": 3}


def _capabilities() -> list[str]:
    line = next(line for line in UNIT.read_text().splitlines() if line.startswith("CapabilityBoundingSet="))
    return [name.removeprefix("CAP_").lower() for name in line.split("=", 1)[1].split()]
