"""A newer QEMU than the machine's, unpacked beside it with all of its libraries; nothing is installed.

Debian 12's takes no virtio-mem device away from a guest, and guests that it emulates lose writes when they are moved,
half of them. QEMU 10 and older emulate each access to CXL memory as one to a device, some two hundred times slower than
memory.
"""

from pathlib import Path

from .cache import call, digest, made
from .debian import SUITES, source_line
from .paths import cache
from .rootfs import proxy_options

_PACKAGES = ("qemu-system-x86", "cxl", "daxctl")
"""It, and the programs by which guests set CXL memory up."""
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def tree() -> Path:
    """Directory with the programs and all that they need, fetched if need be (about 50 MB)."""
    directory = cache() / "cxl" / digest(repr((SUITES, _PACKAGES, _LEFT_OUT)))

    def make(into: Path) -> None:
        archive = into / "tree.tar"
        sources = [source_line(suite) for suite in SUITES]
        options = ["--variant=extract", "--architectures=amd64", "--format=tar", f"--include={','.join(_PACKAGES)}"]
        # Backports are not taken unless they are asked for, each with all that it needs of them.
        options.append(f'--aptopt=APT::Default-Release "{SUITES[-1]}"')
        call(["mmdebstrap", *options, *proxy_options(), SUITES[0], archive, *sources])
        excluded = [f"--exclude=./{path}" for path in (*_LEFT_OUT, "dev")]
        call(["tar", "--extract", "--no-same-owner", *excluded, "--file", archive, "--directory", into])
        archive.unlink()

    return made(directory, "fetching a newer QEMU, and the tools for CXL memory", make)


def command(base: Path) -> list[str]:
    """What its command line begins with, of such a directory."""
    libraries, share = base / LIBRARIES, base / "usr" / "share"
    # By the tree's own loader and libraries: the machine's may be older than those that this QEMU was built with.
    argv = ["env", f"QEMU_MODULE_DIR={libraries / 'qemu'}", str(base / "usr/lib64/ld-linux-x86-64.so.2")]
    argv += ["--library-path", str(libraries), str(base / "usr/bin/qemu-system-x86_64")]
    return [*argv, "-L", str(share / "qemu"), "-L", str(share / "seabios")]


def program(file: Path) -> Path:
    """Makes `file` a program that is it, for those who take one word for QEMU."""
    words = " ".join(f"'{word}'" for word in command(tree()))
    file.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    file.chmod(0o755)
    return file


def section(file: Path, way: str = "dimm", *, threads: str = "multi") -> str:
    """The part of a pool host's configuration that names it, by a program `file`; guests get slices in this way."""
    accelerator = f'accelerator = "tcg,thread={threads}"\ncpu = "max,la57=off"\n'
    return f'[qemu]\nprogram = "{program(file)}"\n{accelerator}slices = "{way}"\n'
