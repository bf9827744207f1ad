"""Redis runs in its own cgroup and answers, and the kernel charges its memory to that cgroup."""

from typing import Any

from thermolab import services
from thermolab.lab import Lab
from thermolab.qemu import MIB

_VALUES = 16000
_FILL = "for i = 1, ARGV[1] do redis.call('SET', 'key:' .. i, string.rep(i .. ' ', 1024)) end return ARGV[1]"


def run(lab: Lab) -> dict[str, Any]:
    """Starts it, sends PING, stores some values, and ends it by SIGTERM."""
    with lab.guest() as guest:
        server = services.redis(guest)
        client = ["redis-cli", "-s", server.address]
        pong = guest.run([*client, "PING"]).stdout.strip()
        started = server.memory_current()
        filled = guest.run([*client, "EVAL", _FILL, "0", str(_VALUES)]).stdout.strip()
        values = server.memory_current() - started
        lab.say(f"memory.current {started} B once up, {values} B more with {filled} values")
        end = server.stop()
    lab.holds("ping", pong == "PONG", f"redis-cli printed {pong!r}")
    lab.at_least("memory_values_bytes", values, 32 * MIB)
    lab.holds("exit", end.status == 0, f"redis-server exited with {end}")
    return {"memory_started_bytes": started, "memory_values_bytes": values}
