"""Archives in cpio's "newc" format, which the kernel unpacks as its initial file system.

Format: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's source. A cpio program would need
privileges for device nodes and root's ownership; this module does not, and equal inputs give equal bytes.
"""

import stat
from pathlib import Path

_ALIGN = 4


class Cpio:
    """An archive under construction; the parents of each entry are added before it."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._names: set[str] = set()

    def directory(self, name: str) -> None:
        """Adds the directory `name` (relative, no leading slash) and its parents."""
        if name in self._names or name in ("", "."):
            return
        self.directory(str(Path(name).parent))
        self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, *, executable: bool = False) -> None:
        """Adds a regular file that contains `data`."""
        self.directory(str(Path(name).parent))
        self._entry(name, stat.S_IFREG | (0o755 if executable else 0o644), data)

    def symlink(self, name: str, target: str) -> None:
        """Adds a symbolic link."""
        self.directory(str(Path(name).parent))
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def character_device(self, name: str, major: int, minor: int) -> None:
        """Adds a character device node."""
        self.directory(str(Path(name).parent))
        self._entry(name, stat.S_IFCHR | 0o600, b"", device=(major, minor))

    def finish(self) -> bytes:
        """Returns the whole archive; another one may follow it directly."""
        return b"".join([*self._chunks, _record("TRAILER!!!", 0, 0, b"", (0, 0))])

    def _entry(self, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
        if name in self._names:
            raise ValueError(f"cpio entry {name!r} is added twice")
        self._names.add(name)
        self._chunks.append(_record(name, len(self._names), mode, data, device))


def _record(name: str, inode: int, mode: int, data: bytes, device: tuple[int, int]) -> bytes:
    path = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    # inode, mode, uid, gid, links, mtime, size, dev major/minor, rdev major/minor, name size, check
    fields = (inode, mode, 0, 0, links, 0, len(data), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return _padded(header) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGN)
