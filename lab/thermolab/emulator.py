"""A newer QEMU than the machine's, unpacked with all of its libraries; nothing is installed.

QEMU of Debian 12 cannot unplug virtio-mem devices, and half of its emulated guests lose writes when they are moved to
another process. QEMU 10 and older emulate CXL memory as a device, about two hundred times slower than memory.
"""

from pathlib import Path

from .cache import call, digest, made
from .debian import SUITES, source_line
from .paths import cache
from .rootfs import proxy_options

_PACKAGES = ("qemu-system-x86", "cxl", "daxctl")
"""QEMU, and the programs that configure CXL memory in guests."""
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def tree() -> Path:
    """Returns the directory with the programs and their libraries, fetched if necessary (about 50 MB)."""
    directory = cache() / "cxl" / digest(repr((SUITES, _PACKAGES, _LEFT_OUT)))

    def make(into: Path) -> None:
        archive = into / "tree.tar"
        sources = [source_line(suite) for suite in SUITES]
        options = ["--variant=extract", "--architectures=amd64", "--format=tar", f"--include={','.join(_PACKAGES)}"]
        # apt takes packages from backports only if that is the default release.
        options.append(f'--aptopt=APT::Default-Release "{SUITES[-1]}"')
        call(["mmdebstrap", *options, *proxy_options(), SUITES[0], archive, *sources])
        excluded = [f"--exclude=./{path}" for path in (*_LEFT_OUT, "dev")]
        call(["tar", "--extract", "--no-same-owner", *excluded, "--file", archive, "--directory", into])
        archive.unlink()

    return made(directory, "fetching a newer QEMU, and the tools for CXL memory", make)


def command(base: Path) -> list[str]:
    """Returns the start of its command line, for the directory returned by `tree`."""
    libraries, share = base / LIBRARIES, base / "usr" / "share"
    # Uses the tree's own loader and libraries: the machine's may be older than those that this QEMU needs.
    argv = ["env", f"QEMU_MODULE_DIR={libraries / 'qemu'}", str(base / "usr/lib64/ld-linux-x86-64.so.2")]
    argv += ["--library-path", str(libraries), str(base / "usr/bin/qemu-system-x86_64")]
    return [*argv, "-L", str(share / "qemu"), "-L", str(share / "seabios")]


def program(file: Path) -> Path:
    """Writes a script `file` that runs this QEMU, for callers that take a single path."""
    words = " ".join(f"'{word}'" for word in command(tree()))
    file.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    file.chmod(0o755)
    return file


def section(file: Path, way: str = "dimm", *, threads: str = "multi") -> str:
    """Returns the section of a pool host's configuration for it, by a script `file`; `way`: how guests get slices."""
    accelerator = f'accelerator = "tcg,thread={threads}"\ncpu = "max,la57=off"\nconfine = false\n'
    return f'[qemu]\nprogram = "{program(file)}"\n{accelerator}slices = "{way}"\n'
