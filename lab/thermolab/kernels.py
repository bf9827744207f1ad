"""The kernels that the lab boots: two stock Debian kernels, and a small one with idle page tracking.

Debian's kernels lack CONFIG_IDLE_PAGE_TRACKING, which Ubuntu, Fedora and RHEL enable. The small kernel enables it, has
no modules, and boots fastest.
"""

import lzma
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .cache import call, digest, is_made, made, say
from .debian import Archive, newest
from .errors import LabError
from .paths import LAB, TREE, cache

NAMES = ("6.12-idle", "6.12", "7.2")
"""Names of kernels for scenarios; the first is the default."""

IDLE = "6.12-idle"
IDLE_VARIABLE = "THERMOCLINE_IDLE_KERNEL"

# Regular expressions of package names; the newest match of each is used. They exclude the cloud flavour, which lacks
# zswap, the real-time flavour and debug symbols.
_PACKAGES = {
    "6.12": (r"linux-image-6\.12\.[0-9.]+\+deb[0-9]+-amd64",),
    "7.2": (r"linux-binary-7\.2\.[0-9.]+\+deb[0-9]+-amd64", r"linux-modules-7\.2\.[0-9.]+\+deb[0-9]+-amd64"),
}

_IDLE_CANDIDATES = ("../shared/lab/bzImage-6.12-idle",)
"""Prebuilt kernels beside the checkout, relative to it."""

BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "ext4")
"""Modules loaded before the root file system is mounted, unless the kernel has them built in."""

_EXTRA_MODULES = (
    # Compressors for zswap and zram, and checksums for ext4.
    *("lz4", "lz4hc", "zstd", "842", "deflate", "crc32c_generic", "crc32c_cryptoapi"),
    # Memory and block devices for topologies.
    *("zsmalloc", "zram", "null_blk", "loop", "dm-delay"),
    *("virtio_net", "virtio_balloon", "virtio_mem", "9pnet_virtio", "9p", "overlay", "virtiofs"),
)


# Kernels with additional modules, fetched only by scenarios that name them: base kernel, additional modules.
VARIANTS = {
    "6.12-cxl": ("6.12", ("cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_core", "dax_cxl", "device_dax", "kmem")),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel ready to boot."""

    name: str
    """One of `NAMES` or of `VARIANTS`."""
    image: Path
    """The bzImage."""
    release: str
    """Output of `uname -r` in the guest."""
    modules: Path | None
    """Directory with `modules.dep` and the uncompressed modules; `None` if everything is built in."""


def kernel(name: str) -> Kernel:
    """Returns the kernel `name`, fetched or built if necessary.

    Raises:
        LabError: there is no such name, or the kernel cannot be fetched or built.
    """
    if name == IDLE:
        image = _idle_image()
        return Kernel(name, image, release_of(image.read_bytes()), None)
    if name not in (*_PACKAGES, *VARIANTS):
        raise LabError(f"no kernel is named {name!r}: choose one of {', '.join((*NAMES, *VARIANTS))}")
    directory = cache() / "kernels" / f"{name}-{_recipe(name)}"
    made(directory, f"fetching Debian's kernel {name}", lambda into: _fetch(name, into))
    image = directory / "vmlinuz"
    return Kernel(name, image, release_of(image.read_bytes()), directory / "modules")


def is_ready(name: str) -> bool:
    """Returns whether `kernel(name)` needs neither network nor compiler."""
    if name == IDLE:
        return _ready_idle_image() is not None
    return is_made(cache() / "kernels" / f"{name}-{_recipe(name)}")


def release_of(image: bytes) -> str:
    """Returns `uname -r` of a bzImage, from the version string in its setup header (boot.rst, kernel_version).

    Raises:
        LabError: `image` is not an x86 kernel.
    """
    if image[0x202:0x206] != b"HdrS":
        raise LabError("not an x86 bzImage: the setup header's magic number HdrS is missing at offset 0x202")
    start = int.from_bytes(image[0x20E:0x210], "little") + 0x200
    words = image[start : start + 128].split(b"\0", 1)[0].decode("ascii", "replace").split()
    if not words:
        raise LabError(f"the bzImage has no version: its setup header points to an empty string, offset {start:#x}")
    return words[0]


def closure(dependencies: str, names: tuple[str, ...]) -> list[str]:
    """Returns the paths of the modules `names` and of all modules that they need, in load order.

    `dependencies` is the text of `modules.dep`: `path: path path ...`, where dependencies are listed last to first.
    Modules that are built in or unknown are not listed there and are skipped.
    """
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {module_name(path): path for path in needs}
    order: list[str] = []
    for name in names:
        found = by_name.get(name.replace("-", "_"))
        if found is None:
            continue
        for path in [*reversed(needs[found]), found]:
            if path not in order:
                order.append(path)
    return order


def module_name(path: str) -> str:
    """Returns the kernel's name for the module file `path`."""
    return Path(path).name.split(".", 1)[0].replace("-", "_")


def _recipe(name: str) -> str:
    more = [repr(VARIANTS[name])] if name in VARIANTS else []
    return digest(repr(_PACKAGES), repr(BOOT_MODULES), repr(_EXTRA_MODULES), *more)


def _fetch(name: str, into: Path) -> None:
    archive = Archive(cache() / "apt")
    unpacked = into / "unpacked"
    of, more = VARIANTS.get(name, (name, ()))
    for pattern in _PACKAGES[of]:
        package = newest(archive.names(pattern))
        if package is None:
            raise LabError(
                f"the Debian archive has no package {pattern}: choose another mirror, or update this file's _PACKAGES"
            )
        archive.unpack(package, unpacked)
    images = [path for path in unpacked.rglob("vmlinuz*") if path.is_file()]
    if len(images) != 1:
        raise LabError(f"the packages of kernel {name} hold {len(images)} images, not one: {images}")
    shutil.copyfile(images[0], into / "vmlinuz")
    release = release_of(images[0].read_bytes())
    _keep_modules(unpacked, release, more, into / "modules")
    shutil.rmtree(unpacked)


def _keep_modules(unpacked: Path, release: str, more: tuple[str, ...], into: Path) -> None:
    """Copies the modules that guests may load, uncompressed, with their dependencies and aliases for modprobe."""
    call(["depmod", "-b", unpacked / "usr", release])
    tree = unpacked / "usr" / "lib" / "modules" / release
    dependencies = (tree / "modules.dep").read_text()
    kept = closure(dependencies, (*BOOT_MODULES, *_EXTRA_MODULES, *more))
    for path in kept:
        target = into / plain(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_uncompressed(tree / path))
    lines = [line for line in dependencies.splitlines() if line.partition(":")[0] in set(kept)]
    (into / "modules.dep").write_text("".join(plain(line) + "\n" for line in lines))
    names = {module_name(path) for path in kept}
    aliases = (tree / "modules.alias").read_text().splitlines()
    used = [line for line in aliases if line.rpartition(" ")[2].replace("-", "_") in names]
    (into / "modules.alias").write_text("".join(line + "\n" for line in used))


def plain(text: str) -> str:
    """Replaces the file names of compressed modules in `text` by those of uncompressed ones."""
    return text.replace(".ko.xz", ".ko").replace(".ko.zst", ".ko")


def _uncompressed(path: Path) -> bytes:
    match path.suffix:
        case ".xz":
            return lzma.decompress(path.read_bytes())
        case ".ko":
            return path.read_bytes()
        case other:
            raise LabError(f"{path}: modules compressed as {other} are not supported, only .xz and uncompressed ones")


def _ready_idle_image() -> Path | None:
    named = os.environ.get(IDLE_VARIABLE)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise LabError(f"{IDLE_VARIABLE}={named}: no such file; unset the variable to build the kernel")
        return path
    built = _idle_directory()
    candidates = [built / "bzImage"] if is_made(built) else []
    candidates += [(TREE / candidate).resolve() for candidate in _IDLE_CANDIDATES]
    return next((path for path in candidates if path.is_file()), None)


def _idle_directory() -> Path:
    config = (LAB / "kernel" / "config").read_bytes()
    return cache() / "kernels" / f"{IDLE}-{digest(config)}"


def _idle_image() -> Path:
    ready = _ready_idle_image()
    if ready is not None:
        return ready
    directory = made(_idle_directory(), "building the kernel 6.12-idle (about 20 minutes on 2 cores)", _build_idle)
    return directory / "bzImage"


def _build_idle(into: Path) -> None:
    archive = Archive(cache() / "apt")
    archive.unpack("linux-source-6.12", into / "package")
    (source,) = (into / "package" / "usr" / "src").glob("linux-source-6.12.tar.*")
    say("  compiling; log: " + str(into / "build.log"))
    call([LAB / "kernel" / "build", source, into / "bzImage", into / "build.log"])
    shutil.rmtree(into / "package")
