"""The Debian package is installed, used, upgraded, removed and purged on a system with systemd, and leaves nothing.

The agent's unit observes as installed; then its configuration offloads a service. The agent is killed once, which must
restore what it had set, and start it again. `leftovers` are files, units and settings of cgroups and zswap that differ
from before the installation once the package is purged.
"""

from typing import Any

from thermolab import node, package, programs, systemd
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

FEATURES = ("s3",)
MORE_IS_BETTER = ("offloaded_bytes", "offloaded_after_upgrade_bytes")

AGENT = "thermocline-agent.service"
WORK = "work.service"
JOB = f"/system.slice/{WORK}"
IDLE_MIB, HOT_MIB = 48, 8
OFFLOADED_MIN_RATIO = 0.9
EXPOSURE_MAX = 3.0

# Logs, caches and what the package manager itself records are not left by the package.
_FILES = (
    "find / -xdev ( -path /proc -o -path /sys -o -path /dev -o -path /lab -o -path /tmp -o -path /var/log"
    " -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/lib/man-db ) -prune -o -print"
)
_RUN = "find /run/thermocline /var/lib/dpkg/info -name *thermocline*"
_SETTINGS = ("memory.low", "memory.high", "memory.swap.max", "memory.zswap.max", "memory.zswap.writeback")
_LAB: node.Settings = {
    "agent.scan_period": "1s",
    "agent.control_period": "1s",
    "cold_age.promotion_rate": "100%",
    "cold_age.warmup": "2s",
    "cold_age.bound": False,
}


def run(lab: Lab) -> dict[str, Any]:
    """Packs the program twice, and runs the cycle in one guest."""
    first, second = (package.built(lab, revision) for revision in (1, 2))
    figures: dict[str, Any] = {}
    with systemd.guest(lab, {"first.deb": first, "second.deb": second}) as guest:
        # The image leaves out documentation, by a rule that dpkg would follow for this package too.
        guest.run(["sh", "-c", "rm -f /etc/dpkg/dpkg.cfg.d/*"])
        _work(guest)
        before = _everything(guest)
        _installed(lab, guest)
        figures["exposure"] = systemd.security(guest, AGENT)
        figures["offloaded_bytes"] = _offloads(guest).job(JOB)["far_bytes"]
        figures["offloaded_after_upgrade_bytes"] = _upgraded(lab, guest)
        _killed(guest)
        guest.run(["dpkg", "--remove", "thermocline"], timeout_s=120)
        low = guest.number(f"/sys/fs/cgroup{JOB}/memory.low")
        lab.holds(
            "removed", low == 0 and not guest.exists("/usr/bin/thermocline"), f"memory.low is {low} after removal"
        )
        lab.holds("kept", guest.exists("/var/lib/thermocline/journal"), "a removal deleted the journal")
        guest.run(["dpkg", "--purge", "thermocline"], timeout_s=120)
        left = sorted(_everything(guest) ^ before)
    (lab.directory / "leftovers").write_text("".join(f"{line}\n" for line in left))
    lab.at_most("leftovers", len(left), 0)
    lab.at_most("exposure", figures["exposure"], EXPOSURE_MAX)
    lab.at_least("offloaded_bytes", figures["offloaded_bytes"], OFFLOADED_MIN_RATIO * IDLE_MIB * MIB)
    return {**figures, "leftovers": len(left)}


def _work(guest: Guest) -> None:
    """Starts a service with known memory."""
    regions = [programs.idle("idle", IDLE_MIB * MIB), programs.hot("hot", HOT_MIB * MIB)]
    programs.as_service(guest, WORK, regions)


def _everything(guest: Guest) -> set[str]:
    """Returns the system's files, units and the settings that an agent may change, as lines."""
    lines = set(guest.run(_FILES.split(), timeout_s=120).stdout.splitlines())
    lines |= set(guest.run(_RUN.split(), check=False).stdout.splitlines())
    lines |= set(
        guest.run(["systemctl", "list-unit-files", "--no-legend", "*thermocline*"], check=False).stdout.splitlines()
    )
    for cgroup in ("system.slice", JOB[1:]):
        for name in _SETTINGS:
            lines.add(f"{cgroup}/{name} = {guest.read(f'/sys/fs/cgroup/{cgroup}/{name}').strip()}")
    for parameter in ("enabled", "shrinker_enabled", "max_pool_percent"):
        lines.add(f"zswap {parameter} = {guest.read(f'/sys/module/zswap/parameters/{parameter}').strip()}")
    return lines


def _installed(lab: Lab, guest: Guest) -> None:
    """Installs the package: nothing runs until it is started, and then nothing is moved."""
    guest.run(["dpkg", "--install", "/lab/first.deb"], timeout_s=120)
    enabled = guest.run(["systemctl", "is-enabled", AGENT], check=False).stdout.strip()
    active = systemd.state(guest, AGENT)
    lab.holds(
        "quiet", (enabled, active) == ("disabled", "inactive"), f"after installation it is {enabled} and {active}"
    )
    page = guest.run(["sh", "-c", "MANPAGER=cat man 1 thermocline-observe | head -5"]).stdout
    lab.holds("manual", "thermocline-observe" in page, f"no man page: {page!r}")
    guest.run(["thermocline", "config", "check"])
    guest.run(["systemctl", "start", AGENT], timeout_s=120)
    agent = _agent(guest)
    job = agent.job(JOB)
    lab.holds("observes", job["class"] == "observe", f"as installed, {JOB} is of class {job['class']}")


def _agent(guest: Guest) -> node.Agent:
    return node.Agent(guest, systemd.number(guest, AGENT, "MainPID"))


def _offloads(guest: Guest) -> node.Agent:
    """Configures far memory for the service, and waits until its idle memory is out."""
    node.configure(guest, [node.Job(JOB)], _LAB)
    guest.run(["systemctl", "restart", AGENT], timeout_s=120)
    agent = _agent(guest)
    _wait_offloaded(agent)
    return agent


def _wait_offloaded(agent: node.Agent) -> None:
    want = OFFLOADED_MIN_RATIO * IDLE_MIB * MIB
    node.until("the service's idle memory is offloaded", lambda: agent.job(JOB)["far_bytes"] >= want, timeout_s=180)


def _upgraded(lab: Lab, guest: Guest) -> int:
    """Upgrades while the agent runs; returns the bytes in far memory afterwards."""
    old = _agent(guest).pid
    # The configuration was changed: it must be kept without a question.
    guest.run(["dpkg", "--install", "/lab/second.deb"], timeout_s=180, stdin="")
    agent = _agent(guest)
    lab.holds("restarted", agent.pid not in (0, old), f"the agent is still process {old} after the upgrade")
    _wait_offloaded(agent)
    job = agent.job(JOB)
    lab.holds("configuration_kept", job["class"] == "standard", f"after the upgrade the job is of class {job['class']}")
    far: int = job["far_bytes"]
    return far


def _killed(guest: Guest) -> None:
    """Kills the agent: its settings are restored at once, and it starts again."""
    old = _agent(guest).pid
    node.until("the job is protected", lambda: _low(guest) > 0)
    guest.kill(old, 9)
    node.until("settings are restored after a kill", lambda: _low(guest) == 0, timeout_s=30)
    node.until("the agent is started again", lambda: systemd.number(guest, AGENT, "MainPID") not in (0, old))
    node.until("it is ready", lambda: systemd.state(guest, AGENT) == "active")
    node.until("the job is protected again", lambda: _low(guest) > 0)


def _low(guest: Guest) -> int:
    return guest.number(f"/sys/fs/cgroup{JOB}/memory.low")
