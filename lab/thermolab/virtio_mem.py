"""Guests that get their slices as virtio-mem devices, by a QEMU that takes such devices away again."""

import time

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
    program = emulator.program(pool.directory / f"{name}-qemu")
    section = f'[qemu]\nprogram = "{program}"\naccelerator = "tcg,thread={threads}"\ncpu = "max,la57=off"\n'
    return pool.host(name, watch, hypervisor=f'{section}slices = "{way}"\n')


def restart(host: Host, way: str) -> None:
    """Kills a host's daemon and starts it with another way for the guests that it starts from now on."""
    file = host.pool.directory / f"{host.name}.toml"
    text = file.read_text()
    for other in WAYS:
        text = text.replace(f'slices = "{other}"', f'slices = "{way}"')
    host.kill()
    file.write_text(text)
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


def leave_request(host: Host, guest: PoolGuest) -> None:
    """Has the guest give half of its first slice: so far it may be when a daemon dies that has asked for all."""
    with Qmp(host.home / f"{guest.vm.name}.1.qmp") as qmp:
        device = qmp.ask("query-memory-devices", {})[0]["data"]
        path, half = f"/machine/peripheral/{device['id']}", device["max-size"] // 2
        qmp.ask("qom-set", {"path": path, "property": "requested-size", "value": half})
        deadline = time.monotonic() + _ONLINE_SECONDS
        while qmp.ask("query-memory-devices", {})[0]["data"]["size"] > half:
            if time.monotonic() > deadline:
                raise GuestTimeout(f"{device['id']} is not given after {_ONLINE_SECONDS:g} s")
