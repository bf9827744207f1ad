"""Faults around a pool: the network between a host and its manager, and the disk of its ledger. Requires root."""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from .cache import call
from .errors import LabError

_NEAR, _FAR = "198.18.77.1", "198.18.77.2"
"""Addresses of the wire's ends, from the range reserved for network tests (RFC 2544)."""

_PIECE = b"\0" * 4096


def need_root() -> None:
    """Fails early with a clear message.

    Raises:
        LabError: the process does not run as root.
    """
    if os.geteuid() != 0:
        raise LabError("this scenario mounts a small file system and creates a network namespace: run it as root")


class Wire:
    """A network namespace connected by one virtual Ethernet pair; both are removed after the `with` block."""

    near = _NEAR
    """Address of the near end, as seen from the namespace."""

    def __init__(self) -> None:
        self._name = f"thermolab-{os.getpid()}"
        # Linux limits interface names to 15 characters.
        self._device = f"tl{os.getpid()}"

    def __enter__(self) -> Self:
        need_root()
        call(["ip", "netns", "add", self._name])
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix that runs a command in the namespace."""
        return ("ip", "netns", "exec", self._name)

    def cut(self) -> None:
        """Drops all packets in both directions from now on, without an error at either end."""
        call(["ip", "link", "set", self._device, "down"])

    def heal(self) -> None:
        """Delivers packets again."""
        call(["ip", "link", "set", self._device, "up"])

    def _create(self) -> None:
        far = ("ip", "-n", self._name)
        call(["ip", "link", "add", self._device, "type", "veth", "peer", "name", "wire", "netns", self._name])
        call(["ip", "addr", "add", f"{_NEAR}/30", "dev", self._device])
        call([*far, "addr", "add", f"{_FAR}/30", "dev", "wire"])
        call([*far, "link", "set", "lo", "up"])
        call([*far, "link", "set", "wire", "up"])
        self.heal()

    def _remove(self) -> None:
        # Deleting one end of the pair deletes the other.
        with contextlib.suppress(LabError):
            call(["ip", "link", "del", self._device])
        with contextlib.suppress(LabError):
            call(["ip", "netns", "del", self._name])


class SmallDisk:
    """A small file system that can be filled up."""

    def __init__(self, directory: Path, mib: int) -> None:
        need_root()
        directory.mkdir()
        call(["mount", "-t", "tmpfs", "-o", f"size={mib}M", "thermolab", directory])
        self.directory = directory

    def fill(self) -> int:
        """Fills the file system; returns the bytes written."""
        with (self.directory / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(_PIECE) == len(_PIECE):
                pass
        return (self.directory / "filler").stat().st_size

    def make_room(self) -> None:
        """Frees the space used by `fill`."""
        (self.directory / "filler").unlink()

    def unmount(self) -> None:
        """Unmounts it lazily, even while it is in use."""
        with contextlib.suppress(LabError):
            call(["umount", "--lazy", self.directory])
