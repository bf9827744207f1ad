"""Redis runs in a cgroup of its own and answers, and the kernel accounts its memory to that cgroup."""

from typing import Any

from thermolab.lab import Lab
from thermolab.qemu import MIB

SOCKET = "/run/redis.sock"


def run(lab: Lab) -> dict[str, Any]:
    """Start, PING, fill with a little, and end by SIGTERM."""
    with lab.guest() as guest:
        job = guest.cgroup("redis")
        empty = guest.number(f"{job}/memory.current")
        server = ["redis-server", "--port", "0", "--unixsocket", SOCKET, "--save", "", "--appendonly", "no"]
        pid = guest.spawn(server, cgroup=job, stdout="/tmp/redis.log")
        guest.expect("/tmp/redis.log", "eady to accept connections", 60)
        client = ["redis-cli", "-s", SOCKET]
        pong = guest.run([*client, "PING"]).stdout.strip()
        started = guest.number(f"{job}/memory.current")
        guest.run([*client, "DEBUG", "POPULATE", "16000", "key", "1024"])
        filled = guest.number(f"{job}/memory.current")
        lab.say(f"memory.current {started} B once up, {filled} B with 16 MiB of values")
        guest.keep("/tmp/redis.log")
        guest.kill(pid)
        end = guest.wait_exit(pid)
    lab.holds("ping", pong == "PONG", f"redis-cli printed {pong!r}")
    lab.at_most("memory_empty_bytes", empty, 0)
    lab.at_least("memory_values_bytes", filled - started, 16 * MIB)
    lab.holds("exit", end.status == 0, f"redis-server ended with {end}")
    return {
        "memory_empty_bytes": empty,
        "memory_started_bytes": started,
        "memory_values_bytes": filled - started,
    }
