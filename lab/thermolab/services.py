"""Servers (Redis, memcached, nginx, PostgreSQL), each started in its own cgroup; functions return once it serves."""

from collections.abc import Sequence
from dataclasses import dataclass

from .guest import Exit, Guest
from .rootfs import POSTGRESQL


@dataclass(frozen=True, slots=True)
class Service:
    """A server that runs in a guest."""

    guest: Guest
    pid: int
    cgroup: str
    """Directory of its cgroup in the guest."""
    address: str
    """Path of its Unix socket, or a TCP port on loopback; for PostgreSQL the socket's directory."""
    log: str
    """File with its standard output and error, in the guest."""

    def memory_current(self) -> int:
        """Returns the bytes charged to its cgroup, including its share of the compressed pool."""
        return self.guest.number(f"{self.cgroup}/memory.current")

    def stop(self, timeout_s: float = 60.0) -> Exit:
        """Ends it by SIGTERM and waits for its exit; its log is copied to the host."""
        self.guest.kill(self.pid)
        end = self.guest.wait_exit(self.pid, timeout_s)
        self.guest.keep(self.log)
        return end


def redis(guest: Guest, name: str = "redis", *, options: Sequence[str] = ()) -> Service:
    """Starts Redis on a Unix socket, without persistence; `options` are appended to its command line."""
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
    """Starts memcached on a loopback TCP port, limited to `memory_mib`; `options` are appended to its command line."""
    cgroup = guest.cgroup(name)
    log, ports = f"/run/{name}.log", f"/run/{name}.ports"
    argv = ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-m", str(memory_mib), "-t", "1", *options]
    # memcached writes this file once it listens; it logs nothing at that point.
    pid = guest.spawn(argv, cgroup=cgroup, stdout=log, stderr=log, env={"MEMCACHED_PORT_FILENAME": ports})
    guest.expect(ports, f"INET: {port}")
    return Service(guest, pid, cgroup, str(port), log)


def nginx(guest: Guest, name: str = "nginx") -> Service:
    """Starts nginx on a Unix socket; it serves static files and stores files by PUT.

    Its memory is page cache: the files that it stores and reads are charged to its cgroup.
    """
    cgroup = guest.cgroup(name)
    address, log, files = f"/run/{name}.sock", f"/run/{name}.log", f"/srv/{name}"
    configuration = f"/run/{name}.conf"
    guest.mkdir(f"{files}/root")
    guest.write(
        configuration,
        f"""
        daemon off; user root; worker_processes 1; pid /run/{name}.pid; error_log stderr notice;
        events {{ worker_connections 64; }}
        http {{
            access_log off; sendfile on; keepalive_timeout 1d; keepalive_requests 1000000000;
            client_max_body_size 2m; client_body_temp_path {files}/partial;
            server {{
                listen unix:{address}; root {files}/root;
                location / {{ dav_methods PUT; }}
            }}
        }}
        """,
    )
    pid = guest.spawn(["nginx", "-c", configuration], cgroup=cgroup, stdout=log, stderr=log)
    guest.expect(log, "start worker process ")
    return Service(guest, pid, cgroup, address, log)


def postgres(
    guest: Guest, name: str = "postgres", *, shared_buffers_mib: int = 64, options: Sequence[str] = ()
) -> Service:
    """Starts PostgreSQL on a Unix socket, with the empty database `postgres` open to all users; one per guest.

    The address is the socket's directory, as libpq expects. `options` are appended to its command line. The database
    cluster is the one that the package creates, on the guest's disk.
    """
    cgroup = guest.cgroup(name)
    address, log = f"/run/{name}", f"/run/{name}.log"
    guest.mkdir(address)
    guest.run(["chown", "postgres", address])
    guest.write(f"{address}/hba", "local all all trust\n")
    guest.write(f"{address}/conf", "")
    settings = {
        "config_file": f"{address}/conf",
        "hba_file": f"{address}/hba",
        "ident_file": f"{address}/conf",
        "unix_socket_directories": address,
        "listen_addresses": "",
        "shared_buffers": f"{shared_buffers_mib}MB",
        # The guest's disk does not outlive the guest.
        "fsync": "off",
        "max_wal_size": "256MB",
    }
    # The server refuses to run as root.
    argv = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    argv += [f"/usr/lib/postgresql/{POSTGRESQL}/bin/postgres", "-D", f"/var/lib/postgresql/{POSTGRESQL}/main"]
    for key, value in settings.items():
        argv += ["-c", f"{key}={value}"]
    pid = guest.spawn([*argv, *options], cgroup=cgroup, stdout=log, stderr=log)
    guest.expect(log, "ready to accept connections")
    return Service(guest, pid, cgroup, address, log)
