"""Guests that get their slices as virtio-mem devices, by a QEMU that takes such devices away again."""

import contextlib
import time
from collections.abc import Iterator

from . import emulator, znuma
from .errors import GuestTimeout
from .pool import Host, Pool, PoolGuest, Watch
from .qemu import MIB
from .qmp import Qmp

WAYS = ("dimm", "virtio-mem")
"""As a host's configuration has them, `qemu.slices`."""

_ONLINE_SECONDS = 120.0


def host(pool: Pool, name: str, watch: Watch, way: str, *, threads: str = "multi") -> Host:
    """Starts a host whose guests get slices in this way, both by the newer QEMU."""
    return pool.host(name, watch, hypervisor=emulator.section(pool.directory / f"{name}-qemu", way, threads=threads))


def restart(host: Host, way: str, *, within: str = "60s") -> None:
    """Kills a host's daemon and starts it with another way, for new guests, and another patience with a slice."""
    file = host.pool.directory / f"{host.name}.toml"
    lines = []
    for line in file.read_text().splitlines():
        key = line.partition(" = ")[0]
        lines.append({"slices": f'slices = "{way}"', "within": f'within = "{within}"'}.get(key, line))
    host.kill()
    file.write_text("\n".join(lines) + "\n")
    host.start()


def drive(guest: PoolGuest) -> float:
    """Loads the guest's driver; seconds until its kernel has all of its slices."""
    begin = time.monotonic()
    guest.run(["modprobe", "virtio_mem"])
    until_online(guest)
    return time.monotonic() - begin


def until_online(guest: PoolGuest) -> None:
    """Waits until the guest's kernel has all of its slices."""
    deadline = time.monotonic() + _ONLINE_SECONDS
    wanted = (guest.vm.pool_mib or 0) * MIB
    while znuma.node_bytes(guest, 1) < wanted:
        if time.monotonic() > deadline:
            raise GuestTimeout(f"{znuma.node_bytes(guest, 1)} of {wanted} B are online after {_ONLINE_SECONDS:g} s")


@contextlib.contextmanager
def paused(host: Host, guest: PoolGuest) -> Iterator[None]:
    """Stops the guest's processors within a `with` block, so that it gives nothing, whatever it is asked for."""
    path = host.home / f"{guest.vm.name}.1.qmp"
    with Qmp(path) as qmp:
        qmp.ask("stop", {})
    yield
    with Qmp(path) as qmp:
        qmp.ask("cont", {})


def leave_request(host: Host, guest: PoolGuest) -> None:
    """Asks the guest for its first slice, as a daemon that dies right after that."""
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        device = qmp.ask("query-memory-devices", {})[0]["data"]
        path = f"/machine/peripheral/{device['id']}"
        qmp.ask("qom-set", {"path": path, "property": "requested-size", "value": 0})


def asked_bytes(host: Host, guest: PoolGuest) -> int:
    """How much of its slices the guest is to give."""
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        devices = [device["data"] for device in qmp.ask("query-memory-devices", {})]
    return sum(device["max-size"] - device["requested-size"] for device in devices)
