"""What may fail round a pool: the way between a host and its manager, and the disk under its ledger. Needs root."""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from .cache import call
from .errors import LabError

_NEAR, _FAR = "198.18.77.1", "198.18.77.2"
"""Addresses for the wire's ends, of the range that is set apart for tests of networks."""

_PIECE = b"\0" * 4096


def need_root() -> None:
    """Says early what would fail late.

    Raises:
        LabError: this is not root.
    """
    if os.geteuid() != 0:
        raise LabError("this scenario mounts a small file system and makes a network namespace: run it as root")


class Wire:
    """A network namespace, and the one wire that leads there; both are gone after the `with` block."""

    near = _NEAR
    """The address by which this side is reached from there."""

    def __init__(self) -> None:
        self._name = f"thermolab-{os.getpid()}"
        # An interface's name has 15 characters at most.
        self._device = f"tl{os.getpid()}"

    def __enter__(self) -> Self:
        need_root()
        call(["ip", "netns", "add", self._name])
        try:
            self._lay()
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
        """What a command begins with that is to run at the far end."""
        return ("ip", "netns", "exec", self._name)

    def cut(self) -> None:
        """From now on packets are lost, both ways, and nobody is told."""
        call(["ip", "link", "set", self._device, "down"])

    def heal(self) -> None:
        """They arrive again."""
        call(["ip", "link", "set", self._device, "up"])

    def _lay(self) -> None:
        far = ("ip", "-n", self._name)
        call(["ip", "link", "add", self._device, "type", "veth", "peer", "name", "wire", "netns", self._name])
        call(["ip", "addr", "add", f"{_NEAR}/30", "dev", self._device])
        call([*far, "addr", "add", f"{_FAR}/30", "dev", "wire"])
        call([*far, "link", "set", "lo", "up"])
        call([*far, "link", "set", "wire", "up"])
        self.heal()

    def _remove(self) -> None:
        # The other end goes with it.
        with contextlib.suppress(LabError):
            call(["ip", "link", "del", self._device])
        with contextlib.suppress(LabError):
            call(["ip", "netns", "del", self._name])


class SmallDisk:
    """A file system that is soon full."""

    def __init__(self, directory: Path, mib: int) -> None:
        need_root()
        directory.mkdir()
        call(["mount", "-t", "tmpfs", "-o", f"size={mib}M", "thermolab", directory])
        self.directory = directory

    def fill(self) -> int:
        """Leaves no room; how many bytes that took."""
        with (self.directory / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(_PIECE) == len(_PIECE):
                pass
        return (self.directory / "filler").stat().st_size

    def make_room(self) -> None:
        """Gives it back."""
        (self.directory / "filler").unlink()

    def unmount(self) -> None:
        """Takes it away, also from those who still use it."""
        with contextlib.suppress(LabError):
            call(["umount", "--lazy", self.directory])
