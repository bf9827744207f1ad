"""A local user without privileges cannot exhaust, blind, lock out or direct the agent.

The user sends request heads without an end to the agent's metrics listener, holds hundreds of connections open, tries
to read, lock, write and replace the agent's files, and to talk to its control socket. Then the agent is killed while
the attack goes on, and root restores what it had set. All of this twice: the agent serves its metrics itself, and then
a process without privileges does, as with the agent's unit (`agent.network`).
"""

import json
from typing import Any

from thermolab import node, programs
from thermolab.guest import Guest
from thermolab.lab import Lab
from thermolab.qemu import MIB

KERNELS = ("6.12", "7.2")
MORE_IS_BETTER = ("connections", "sent_bytes")

USER = 65534
NETWORK_USER = 65533
"""The user of the process that has the agent's connections."""
NETWORK = "/run/network"
ADDRESS = "127.0.0.1:9180"
JOB = "/job"
ATTACK_SECONDS = 40
KILLED_AFTER_SECONDS = 20
PATHS = [
    node.RUNTIME,
    f"{node.RUNTIME}/agent.pid",
    f"{node.RUNTIME}/agent.sock",
    f"{node.RUNTIME}/undo.json",
    node.STATE,
    f"{node.STATE}/journal",
    "/etc/thermocline/thermocline.toml",
    f"/sys/fs/cgroup{JOB}/memory.reclaim",
    f"{NETWORK}/socket",
]

RSS_MAX_BYTES = 50 * MIB
SCRAPE_MAX_SECONDS = 5
_REPORT = "/run/attack.json"
_READ_BY_ALL = {"read /etc/thermocline/thermocline.toml", "lock /etc/thermocline/thermocline.toml"}
"""The configuration is no secret, and nothing locks it."""


def run(lab: Lab) -> dict[str, Any]:
    """Attacks the agent that serves its metrics itself, and then the one that has another process for that."""
    return {**_attacked(lab, network=False), "network": _attacked(lab, network=True)}


def _attacked(lab: Lab, *, network: bool) -> dict[str, Any]:
    """Attacks a running agent, then one that dies."""
    settings: dict[str, str | int | bool] = {"agent.metrics_listen": ADDRESS, "cold_age.warmup": "5s"}
    with lab.guest() as guest:
        guest.run(["ip", "link", "set", "lo", "up"])
        servers = [_network(guest)] if network else []
        if network:
            settings["agent.network"] = f"{NETWORK}/socket"
        programs.workload(guest, JOB, [programs.idle("idle", 32 * MIB), programs.hot("hot", 8 * MIB)])
        low = f"/sys/fs/cgroup{JOB}/memory.low"
        low_before = guest.number(low)
        node.configure(guest, [node.Job(JOB)], settings)
        agent = node.start(guest)
        node.until("the agent sets memory.low", lambda: guest.number(low) != low_before)
        rss_before = _rss(guest, agent.pid)
        _scrape(guest)
        attack = _attack(guest)
        begin = _uptime(guest)
        during = []
        while _uptime(guest) < begin + KILLED_AFTER_SECONDS:
            during.append(_scrape(guest))
        rss_max = max(_rss(guest, pid) for pid in (agent.pid, *servers))
        answered = agent.job(JOB)["job"] == JOB
        guest.kill(agent.pid, 9)
        guest.wait_exit(agent.pid)
        left = guest.number(low)
        restore = guest.run(["thermocline", "agent", "--restore"], check=False)
        restored = restore.status == 0 and guest.number(low) == low_before
        again = node.start(guest)
        end = guest.wait_exit(attack, timeout_s=120)
        after = _scrape(guest)
        again.stop()
        report = json.loads(guest.read(_REPORT) or '{"succeeded": [], "connections": 0, "sent_bytes": 0}')
        attacked = f"the attack ended with {end}: {guest.read('/run/attack.log')}"
        owned = guest.run(["busybox", "find", "/run", "/var", "/etc", "-xdev", "-user", str(USER)]).stdout.split()
    succeeded = sorted(set(report["succeeded"]) - _READ_BY_ALL)
    what = "network." if network else ""
    lab.holds(f"{what}attack", end.status == 0, attacked)
    lab.holds(f"{what}succeeded", not succeeded, f"the user could: {', '.join(succeeded)}")
    lab.holds(f"{what}owned", not owned, f"files of the user: {', '.join(owned)}")
    lab.holds(f"{what}left", left != low_before, "the killed agent had set nothing: --restore was not tested")
    lab.holds(f"{what}restored", restored, f"--restore ended with {restore.status}: {restore.stdout}{restore.stderr}")
    lab.holds(f"{what}answered", answered, "the control socket did not answer during the attack")
    lab.at_most(f"{what}rss_max_bytes", rss_max, RSS_MAX_BYTES)
    # After a restart the agent offers its metrics to the other process at once.
    lab.at_most(f"{what}scrape_seconds", after, SCRAPE_MAX_SECONDS)
    lab.at_least(f"{what}connections", report["connections"], 1000)
    return {
        "connections": report["connections"],
        "sent_bytes": report["sent_bytes"],
        "succeeded": len(succeeded),
        "rss_before_bytes": rss_before,
        "rss_max_bytes": rss_max,
        "scrape_seconds": after,
        "scrapes_during_attack": len(during),
        "slowest_scrape_during_attack_seconds": max(during),
        "restored": restored,
    }


def _as(user: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


def _attack(guest: Guest) -> int:
    """Starts the attack; returns its pid."""
    guest.write(_REPORT, "")
    paths = [word for path in PATHS for word in ("--path", path)]
    command = [*_as(USER), "labguest", "attack", "--address", ADDRESS, "--seconds", str(ATTACK_SECONDS), *paths]
    return guest.spawn(command, stdout=_REPORT, stderr="/run/attack.log")


def _network(guest: Guest) -> int:
    """Starts the process that has the agent's connections; returns its pid."""
    guest.run(["busybox", "install", "-d", "-o", str(NETWORK_USER), "-m", "0700", NETWORK])
    command = [*_as(NETWORK_USER), "thermocline", "network", "--listen", f"{NETWORK}/socket"]
    pid = guest.spawn(command, stdout="/run/network.log", stderr="/run/network.log")
    node.until("the network process listens", lambda: guest.exists(f"{NETWORK}/socket"))
    return pid


def _uptime(guest: Guest) -> float:
    return float(guest.read("/proc/uptime").split()[0])


def _rss(guest: Guest, pid: int) -> int:
    """Returns the most memory that a process has had resident."""
    line = next(line for line in guest.read(f"/proc/{pid}/status").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def _scrape(guest: Guest) -> float:
    """Returns the seconds until a scrape succeeds, up to ten times the permitted ones."""
    begin = _uptime(guest)
    while _uptime(guest) < begin + 10 * SCRAPE_MAX_SECONDS:
        done = guest.run(["busybox", "wget", "-q", "-O", "-", "-T", "2", f"http://{ADDRESS}/metrics"], check=False)
        if done.status == 0 and "thermocline_agent_scans_total" in done.stdout:
            break
    return _uptime(guest) - begin
