"""The root file system of guests: a minimal Debian with servers and tools, as an ext4 image.

Guests share one read-only image and write to snapshots. It contains no kernel and none of the project's programs,
which are in each guest's initial RAM disk, so that changes to them do not rebuild it.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .cache import call, digest, is_made, made, say
from .debian import source_line
from .paths import cache

POSTGRESQL = "17"
"""Version of PostgreSQL in the suite, which is part of many of its paths."""

CLASSES = "/opt/classes"
"""Directory of compiled Java classes in an image."""

_SUITE = "trixie"
_PACKAGES = ("dmsetup", "memcached", "nginx", f"postgresql-{POSTGRESQL}", "procps", "redis-server", "redis-tools")
_IMAGE_BYTES = 3 << 30
_INODES = 65536
# Scenarios read neither documentation nor translations.
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
# A guest's disk is discarded, so it needs no journal; checksums would need a module on some kernels.
_FEATURES = "^has_journal,^metadata_csum,^metadata_csum_seed,^orphan_file,^quota"
_MOUNT_POINTS = ("dev", "lab", "proc", "run", "sys", "tmp")


def image(packages: Sequence[str] = _PACKAGES, compiled: Path | None = None) -> Path:
    """Returns the ext4 image, made if necessary (about a minute, mostly for unpacking packages).

    `packages` replaces the default list for guests that need others. `compiled` is a Java source file whose classes
    are in the image's `CLASSES`: a guest would need a minute to compile it.
    """
    directory = _directory(packages, compiled)
    made(
        directory,
        f"making the root file system (Debian with {', '.join(packages)})",
        lambda into: _make(into, packages, compiled),
    )
    return directory / "root.ext4"


def is_ready() -> bool:
    """Returns whether `image()` needs no network."""
    return is_made(_directory(_PACKAGES, None))


def _directory(packages: Sequence[str], compiled: Path | None) -> Path:
    recipe: tuple[object, ...] = (_SUITE, tuple(packages), _IMAGE_BYTES, _INODES, _EXCLUDED, _FEATURES, _MOUNT_POINTS)
    if compiled is not None:
        recipe = (*recipe, compiled.read_text())
    return cache() / "rootfs" / f"{_SUITE}-{digest(repr(recipe))}"


def _make(into: Path, packages: Sequence[str], compiled: Path | None) -> None:
    archive = into / "root.tar"
    say("  unpacking Debian packages")
    call(
        [
            *("mmdebstrap", "--variant=essential", "--architectures=amd64", "--format=tar"),
            f"--include={','.join(packages)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED),
            *proxy_options(),
            *(() if compiled is None else _compile(compiled)),
            *(_SUITE, archive, source_line(_SUITE)),
        ]
    )
    say("  writing the ext4 image")
    tree = into / "tree"
    # One shell, because fakeroot keeps file ownership only for its own children.
    script = (
        'set -e; mkdir -p "$1"; tar --extract --numeric-owner --exclude="./dev/*" --file "$2" --directory "$1"; '
        f'cd "$1"; mkdir -p {" ".join(_MOUNT_POINTS)}; rm -rf var/cache/apt var/lib/apt/lists; '
        'echo lab > etc/hostname; cd /; truncate -s "$4" "$3"; '
        f'mkfs.ext4 -q -F -N {_INODES} -O "{_FEATURES}" -E lazy_itable_init=0 -m 0 -L lab -d "$1" "$3"'
    )
    as_root = [] if os.geteuid() == 0 else ["fakeroot"]
    call([*as_root, "sh", "-c", script, "sh", tree, archive, into / "root.ext4", str(_IMAGE_BYTES)])
    archive.unlink()
    # fakeroot and user namespaces leave directories that this user may not write to.
    call(["chmod", "-R", "u+rwX", tree])
    shutil.rmtree(tree)


def _compile(source: Path) -> Sequence[str]:
    """Returns the options that compile a Java file in the image."""
    return (
        # The JDK's alternatives link into this directory, which is excluded otherwise.
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
        f'--customize-hook=mkdir -p "$1{CLASSES}"',
        f"--customize-hook=upload {source} {CLASSES}/{source.name}",
        f'--customize-hook=chroot "$1" javac -d {CLASSES} {CLASSES}/{source.name}',
    )


def proxy_options() -> list[str]:
    """Returns apt's proxy settings as mmdebstrap options; mmdebstrap does not read apt.conf."""
    options = []
    for scheme in ("http", "https"):
        item = f"Acquire::{scheme}::Proxy"
        value = call(["apt-config", "dump", "--format", "%v", item]).strip()
        if value:
            options.append(f'--aptopt={item} "{value}"')
    return options
