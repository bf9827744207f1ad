"""Initial RAM disks: one per kernel with busybox and modules, and a small one with the project's programs.

The kernel unpacks concatenated archives one after the other. The first is kept in the cache; the second is made for
each guest, because its programs may have been rebuilt.
"""

from pathlib import Path

from .cache import digest, made
from .cpio import Cpio
from .debian import Archive
from .kernels import BOOT_MODULES, Kernel, closure
from .paths import LAB, cache

_APPLETS = (
    *("cat", "cp", "date", "hostname", "insmod", "ip", "ln", "mkdir", "mkswap", "modprobe", "mount"),
    *("poweroff", "sh", "swapon", "switch_root", "uname"),
)
_MOUNT_POINTS = ("dev", "lab", "newroot", "proc", "sys")


def base(kernel: Kernel) -> Path:
    """Returns the archive that boots `kernel` up to the control program."""
    init = (LAB / "init").read_bytes()
    busybox = _busybox()
    modules = "" if kernel.modules is None else str(kernel.modules)
    name = digest(init, repr(_APPLETS), repr(BOOT_MODULES), busybox.read_bytes(), kernel.release, modules)
    directory = cache() / "initrd" / f"{kernel.name}-{name}"

    def make(into: Path) -> None:
        (into / "base.cpio").write_bytes(_base(kernel, init, busybox.read_bytes()))

    made(directory, f"packing the initial RAM disk of kernel {kernel.name}", make)
    return directory / "base.cpio"


def programs(binaries: dict[str, Path]) -> bytes:
    """Returns an archive with `binaries` (name in the guest to file on the host) under /lab."""
    archive = Cpio()
    for name, path in binaries.items():
        archive.file(f"lab/{name}", path.read_bytes(), executable=True)
    return archive.finish()


def _busybox() -> Path:
    def make(into: Path) -> None:
        Archive(cache() / "apt").unpack("busybox-static", into)

    directory = made(cache() / "busybox", "fetching a static busybox", make)
    return directory / "usr" / "bin" / "busybox"


def _base(kernel: Kernel, init: bytes, busybox: bytes) -> bytes:
    archive = Cpio()
    for name in _MOUNT_POINTS:
        archive.directory(name)
    # init's output needs a console before devtmpfs is mounted.
    archive.character_device("dev/console", 5, 1)
    archive.file("init", init, executable=True)
    archive.file("bin/busybox", busybox, executable=True)
    for applet in _APPLETS:
        archive.symlink(f"bin/{applet}", "busybox")
    # The kernel's module autoloader calls modprobe by this path.
    archive.symlink("sbin/modprobe", "../bin/busybox")
    directory = f"lib/modules/{kernel.release}"
    boot: list[str] = []
    if kernel.modules is None:
        archive.directory(directory)
    else:
        boot = closure((kernel.modules / "modules.dep").read_text(), BOOT_MODULES)
        for path in sorted(kernel.modules.rglob("*")):
            if path.is_file():
                archive.file(f"{directory}/{path.relative_to(kernel.modules)}", path.read_bytes())
    archive.file(f"{directory}/boot", "".join(path + "\n" for path in boot).encode())
    return archive.finish()
