"""Guests whose process 1 is systemd, for units and packages; the control program is one of its services."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from . import rootfs
from .guest import Guest
from .lab import Lab
from .qemu import GIB, Machine

PACKAGES = ("dbus", "man-db", "procps", "systemd-sysv")

_INIT = "lab.init=systemd"


def guest(lab: Lab, files: Mapping[str, Path], packages: Sequence[str] = (), memory_bytes: int = GIB) -> Guest:
    """Returns a guest with systemd, to be used in a `with` block.

    `files` (name in the guest to file on the host) lie under /lab, beside the control program. `thermocline` is not
    among them. `packages` are added to the image.
    """
    console = lab.directory / f"{lab.kernel.name}-console.log"
    console.unlink(missing_ok=True)
    return Guest(
        lab.kernel,
        Machine(cmdline=_INIT, memory_bytes=memory_bytes),
        root=rootfs.image((*PACKAGES, *packages)),
        binaries={"labguest": lab.program("labguest"), **files},
        console=console,
    )


def state(guest: Guest, unit: str) -> str:
    """Returns whether a unit is active: `active`, `inactive`, `failed` and so on."""
    return guest.run(["systemctl", "is-active", unit], check=False).stdout.strip()


def number(guest: Guest, unit: str, name: str) -> int:
    """Returns a property of a unit that is a number, such as `MainPID`."""
    return int(guest.run(["systemctl", "show", "--value", f"--property={name}", unit]).stdout)


def security(guest: Guest, unit: str) -> float:
    """Returns the exposure level of a unit by `systemd-analyze security`: 0 is the least, 10 the most."""
    lines = guest.run(
        ["systemd-analyze", "security", "--no-pager", unit], check=False, timeout_s=120
    ).stdout.splitlines()
    overall = next(line for line in lines if "Overall exposure level" in line)
    return float(overall.split(":", 1)[1].split()[0])
