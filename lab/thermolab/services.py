"""Real servers, each started in a cgroup of its own and waited for until it serves."""

from collections.abc import Sequence
from dataclasses import dataclass

from .guest import Exit, Guest


@dataclass(frozen=True, slots=True)
class Service:
    """A server that runs in a guest."""

    guest: Guest
    pid: int
    cgroup: str
    """Directory of its cgroup."""
    address: str
    """Path of its Unix socket, or a TCP port on loopback."""
    log: str
    """Its standard output and error, in the guest."""

    def memory_current(self) -> int:
        """Bytes that the kernel charges to its cgroup, the compressed pool's share included."""
        return self.guest.number(f"{self.cgroup}/memory.current")

    def stop(self, timeout_s: float = 60.0) -> Exit:
        """End it by SIGTERM and wait for it; its log is kept on the host."""
        self.guest.kill(self.pid)
        end = self.guest.wait_exit(self.pid, timeout_s)
        self.guest.keep(self.log)
        return end


def redis(guest: Guest, name: str = "redis", *, options: Sequence[str] = ()) -> Service:
    """Redis on a Unix socket, keeping nothing on disk; `options` are added to its command line."""
    cgroup = guest.cgroup(name)
    address, log = f"/run/{name}.sock", f"/run/{name}.log"
    argv = ["redis-server", "--port", "0", "--unixsocket", address, "--save", "", "--appendonly", "no", *options]
    pid = guest.spawn(argv, cgroup=cgroup, stdout=log, stderr=log)
    guest.expect(log, "eady to accept connections")
    return Service(guest, pid, cgroup, address, log)


def memcached(
    guest: Guest,
    name: str = "memcached",
    *,
    memory_mib: int = 256,
    port: int = 11211,
    options: Sequence[str] = (),
) -> Service:
    """Memcached on a TCP port of loopback, with room for `memory_mib` MiB; `options` are added to its command line."""
    cgroup = guest.cgroup(name)
    log, ports = f"/run/{name}.log", f"/run/{name}.ports"
    argv = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-m", str(memory_mib), "-t", "1", *options]
    # It writes this file once it listens, which is the only sign that it gives.
    pid = guest.spawn(argv, cgroup=cgroup, stdout=log, stderr=log, env={"MEMCACHED_PORT_FILENAME": ports})
    guest.expect(ports, f"INET: {port}")
    return Service(guest, pid, cgroup, str(port), log)
