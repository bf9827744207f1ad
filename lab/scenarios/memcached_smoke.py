"""Memcached runs in its own cgroup and serves, and the kernel charges its memory to that cgroup."""

from typing import Any

from thermolab import services
from thermolab.lab import Lab


def run(lab: Lab) -> dict[str, Any]:
    """Starts it, checks that it listens, and ends it by SIGTERM."""
    with lab.guest() as guest:
        server = services.memcached(guest)
        listening = f":{int(server.address):04X} "
        found = any(listening in line for line in guest.read("/proc/net/tcp").splitlines())
        started = server.memory_current()
        lab.say(f"memory.current {started} B once up")
        end = server.stop()
    lab.holds("listening", found, f"/proc/net/tcp lists no socket on port {server.address}")
    lab.at_least("memory_started_bytes", started, 1)
    lab.holds("exit", end.status == 0, f"memcached exited with {end}")
    return {"memory_started_bytes": started}
