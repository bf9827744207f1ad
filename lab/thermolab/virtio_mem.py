"""Guests that get slices as virtio-mem devices, by a newer QEMU that can unplug such devices."""

import contextlib
import time
from collections.abc import Iterator

from . import emulator, znuma
from .errors import GuestTimeout
from .pool import Host, Pool, Watch
from .pool_guest import PoolGuest
from .qemu import MIB
from .qmp import Qmp

WAYS = ("dimm", "virtio-mem")
"""Values of `qemu.slices` in a host's configuration."""

_ONLINE_SECONDS = 120.0


def host(pool: Pool, name: str, watch: Watch, way: str, *, threads: str = "multi") -> Host:
    """Starts a host whose guests get slices by `way`, with the newer QEMU for either way."""
    return pool.host(name, watch, hypervisor=emulator.section(pool.directory / f"{name}-qemu", way, threads=threads))


def restart(host: Host, way: str, *, within: str = "60s") -> None:
    """Kills a host's daemon and restarts it with another `way`, for new guests, and another release time limit."""
    file = host.pool.directory / f"{host.name}.toml"
    lines = []
    for line in file.read_text().splitlines():
        key = line.partition(" = ")[0]
        lines.append({"slices": f'slices = "{way}"', "within": f'within = "{within}"'}.get(key, line))
    host.kill()
    file.write_text("\n".join(lines) + "\n")
    host.start()


def drive(guest: PoolGuest) -> float:
    """Loads the guest's driver; returns the seconds until its kernel has onlined all slices."""
    begin = time.monotonic()
    guest.run(["modprobe", "virtio_mem"])
    until_online(guest)
    return time.monotonic() - begin


def until_online(guest: PoolGuest) -> None:
    """Waits until the guest's kernel has onlined all slices."""
    deadline = time.monotonic() + _ONLINE_SECONDS
    expected = (guest.vm.pool_mib or 0) * MIB
    while (online := znuma.node_bytes(guest, 1)) < expected:
        if time.monotonic() > deadline:
            raise GuestTimeout(f"{online} of {expected} B are online after {_ONLINE_SECONDS:g} s")


@contextlib.contextmanager
def paused(host: Host, guest: PoolGuest) -> Iterator[None]:
    """Stops the guest's CPUs within a `with` block, so that it releases no memory."""
    path = host.home / f"{guest.vm.name}.1.qmp"
    with Qmp(path) as qmp:
        qmp.ask("stop", {})
    yield
    with Qmp(path) as qmp:
        qmp.ask("cont", {})


def leave_request(host: Host, guest: PoolGuest) -> None:
    """Requests the first slice from the guest, as a daemon that crashes right after the request."""
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        device = qmp.ask("query-memory-devices", {})[0]["data"]
        path = f"/machine/peripheral/{device['id']}"
        qmp.ask("qom-set", {"path": path, "property": "requested-size", "value": 0})


def asked_bytes(host: Host, guest: PoolGuest) -> int:
    """Returns the bytes of slices that the guest is requested to release."""
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        devices = [device["data"] for device in qmp.ask("query-memory-devices", {})]
    return sum(device["max-size"] - device["requested-size"] for device in devices)
