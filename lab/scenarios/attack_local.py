"""A local user without privileges cannot exhaust, blind, lock out or direct the agent.

The user sends request heads without an end to the agent's metrics listener, holds hundreds of connections open, tries
to read, lock, write and replace the agent's files, and to talk to its control socket. Then the agent is killed while
the attack goes on, and root restores what it had set.
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
_AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
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
]

RSS_MAX_BYTES = 50 * MIB
SCRAPE_MAX_SECONDS = 5
_REPORT = "/run/attack.json"
_READ_BY_ALL = {"read /etc/thermocline/thermocline.toml", "lock /etc/thermocline/thermocline.toml"}
"""The configuration is no secret, and nothing locks it."""


def run(lab: Lab) -> dict[str, Any]:
    """Attacks a running agent, then one that dies."""
    with lab.guest() as guest:
        guest.run(["ip", "link", "set", "lo", "up"])
        programs.workload(guest, JOB, [programs.idle("idle", 32 * MIB), programs.hot("hot", 8 * MIB)])
        low = f"/sys/fs/cgroup{JOB}/memory.low"
        low_before = guest.number(low)
        node.configure(guest, [node.Job(JOB)], {"agent.metrics_listen": ADDRESS, "cold_age.warmup": "5s"})
        agent = node.start(guest)
        node.until("the agent sets memory.low", lambda: guest.number(low) != low_before)
        rss_before = _rss(guest, agent.pid)
        guest.write(_REPORT, "")
        paths = [word for path in PATHS for word in ("--path", path)]
        command = [*_AS_USER, "labguest", "attack", "--address", ADDRESS, "--seconds", str(ATTACK_SECONDS), *paths]
        attack = guest.spawn(command, stdout=_REPORT, stderr="/run/attack.log")
        begin = _uptime(guest)
        during = []
        while _uptime(guest) < begin + KILLED_AFTER_SECONDS:
            during.append(_scrape(guest))
        rss_max = _rss(guest, agent.pid)
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
        log = guest.read("/run/attack.log")
        lab.holds("attack", end.status == 0, f"the attack ended with {end}: {log}")
        report = json.loads(guest.read(_REPORT))
        owned = guest.run(["busybox", "find", "/run", "/var", "/etc", "-xdev", "-user", str(USER)]).stdout.split()
    succeeded = sorted(set(report["succeeded"]) - _READ_BY_ALL)
    lab.holds("succeeded", not succeeded, f"the user could: {', '.join(succeeded)}")
    lab.holds("owned", not owned, f"files of the user: {', '.join(owned)}")
    lab.holds("left", left != low_before, "the killed agent had set nothing: the test of --restore would say nothing")
    lab.holds("restored", restored, f"--restore ended with {restore.status}: {restore.stdout}{restore.stderr}")
    lab.holds("answered", answered, "the control socket did not answer during the attack")
    lab.at_most("rss_max_bytes", rss_max, RSS_MAX_BYTES)
    lab.at_most("scrape_seconds", after, SCRAPE_MAX_SECONDS)
    lab.at_least("connections", report["connections"], 1000)
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
