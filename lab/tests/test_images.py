"""Kernels, packages and archives: selection and packing, without downloads."""

from pathlib import Path

import pytest

from thermolab import binaries, debian, kernels
from thermolab.cache import is_made, made
from thermolab.cpio import Cpio
from thermolab.errors import LabError

DEPENDENCIES = """\
kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz
kernel/fs/jbd2/jbd2.ko.xz: kernel/lib/crc16.ko.xz
kernel/fs/mbcache.ko.xz:
kernel/lib/crc16.ko.xz:
kernel/drivers/block/virtio_blk.ko.xz:
kernel/drivers/md/dm-delay.ko.xz: kernel/drivers/md/dm-mod.ko.xz
kernel/drivers/md/dm-mod.ko.xz:
"""


@pytest.mark.parametrize(
    ("modules", "names"),
    [
        (("virtio_blk",), ["virtio_blk"]),
        (("ext4",), ["mbcache", "crc16", "jbd2", "ext4"]),
        (("ext4", "jbd2", "crc16"), ["mbcache", "crc16", "jbd2", "ext4"]),
        (("dm-delay",), ["dm_mod", "dm_delay"]),
        (("dm_delay",), ["dm_mod", "dm_delay"]),
        (("built_in_here", "virtio_blk"), ["virtio_blk"]),
        ((), []),
    ],
)
def test_modules_load_after_their_dependencies(modules: tuple[str, ...], names: list[str]) -> None:
    assert [kernels.module_name(path) for path in kernels.closure(DEPENDENCIES, modules)] == names


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["linux-image-6.12.94+deb13-amd64", "linux-image-6.12.107+deb13-amd64"], "linux-image-6.12.107+deb13-amd64"),
        (["linux-binary-7.2.9+deb13-amd64", "linux-binary-7.2.12+deb13-amd64"], "linux-binary-7.2.12+deb13-amd64"),
        ([], None),
    ],
)
def test_the_newest_package_has_the_highest_number(names: list[str], chosen: str | None) -> None:
    assert debian.newest(names) == chosen


@pytest.mark.parametrize(
    ("targets", "archive"),
    [
        (
            "http://m/debian-security/|main|Debian|Debian-Security\nhttp://m/debian/|main|Debian|Debian\n",
            "http://m/debian/",
        ),
        ("http://m/debian/|non-free|Debian|Debian\n", None),
        ("http://m/ubuntu/|main|Ubuntu|Ubuntu\n", None),
        ("http://m/a|b/|main|Debian|Debian\n", None),
        ("", None),
    ],
)
def test_the_mirror_is_the_main_archive(targets: str, archive: str | None) -> None:
    assert debian.main_archive(targets) == archive


def bzimage(version: bytes) -> bytes:
    """Returns the start of a kernel image with its version string at offset 0x300."""
    image = bytearray(0x400)
    image[0x202:0x206] = b"HdrS"
    image[0x20E:0x210] = (0x300 - 0x200).to_bytes(2, "little")
    image[0x300 : 0x300 + len(version)] = version
    return bytes(image)


def test_the_release_is_read_from_the_image() -> None:
    assert kernels.release_of(bzimage(b"6.12.107+deb13-amd64 (builder) #1 SMP\0")) == "6.12.107+deb13-amd64"


@pytest.mark.parametrize("image", [b"", b"HdrS", bytes(0x400), bzimage(b"")[:0x210], bzimage(b"")])
def test_other_files_are_no_kernels(image: bytes) -> None:
    with pytest.raises(LabError, match="bzImage"):
        kernels.release_of(image)


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(LabError, match=r"6\.13.*choose one of 6\.12-idle"):
        kernels.kernel("6.13")


def test_a_missing_named_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(kernels.IDLE_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(LabError, match=kernels.IDLE_VARIABLE):
        kernels.kernel(kernels.IDLE)


def test_a_named_kernel_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage(b"6.12.1 x\0"))
    monkeypatch.setenv(kernels.IDLE_VARIABLE, str(image))
    assert kernels.kernel(kernels.IDLE) == kernels.Kernel(kernels.IDLE, image, "6.12.1", None)


def test_artefacts_are_made_completely_and_once(tmp_path: Path) -> None:
    directory = tmp_path / "artefact"
    calls: list[Path] = []

    def fail(into: Path) -> None:
        (into / "half").write_text("x")
        raise LabError("the network failed")

    def work(into: Path) -> None:
        calls.append(into)
        (into / "whole").write_text("x")

    with pytest.raises(LabError, match="network"):
        made(directory, "artefact", fail)
    assert not directory.exists()
    assert not is_made(directory)
    # The state left by a process that was killed while it made the artefact.
    partial = tmp_path / "artefact.partial"
    partial.mkdir()
    (partial / "half").write_text("x")
    for _ in range(2):
        assert made(directory, "artefact", work) == directory
    assert len(calls) == 1
    assert sorted(path.name for path in directory.iterdir()) == ["complete", "whole"]


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Parses an archive as the kernel does; returns mode and data by name."""
    found: dict[str, tuple[int, bytes]] = {}
    offset = 0
    while True:
        assert archive[offset : offset + 6] == b"070701"
        fields = [int(archive[offset + 6 + 8 * n : offset + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[offset + 110 : offset + 110 + name_size - 1].decode()
        offset = -(-(offset + 110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            assert offset == len(archive)
            return found
        found[name] = (mode, archive[offset : offset + size])
        offset = -(-(offset + size) // 4) * 4


@pytest.mark.parametrize("size", range(6))
def test_archives_are_parsed_back(size: int) -> None:
    archive = Cpio()
    archive.file("lab/deep/tool", b"x" * size, executable=True)
    archive.file("lab/text", b"y")
    archive.symlink("bin/sh", "busybox")
    archive.character_device("dev/console", 5, 1)
    assert entries(archive.finish()) == {
        "lab": (0o40755, b""),
        "lab/deep": (0o40755, b""),
        "lab/deep/tool": (0o100755, b"x" * size),
        "lab/text": (0o100644, b"y"),
        "bin": (0o40755, b""),
        "bin/sh": (0o120777, b"busybox"),
        "dev": (0o40755, b""),
        "dev/console": (0o20600, b""),
    }


def test_an_entry_cannot_be_added_twice() -> None:
    archive = Cpio()
    archive.file("init", b"")
    with pytest.raises(ValueError, match="init"):
        archive.file("init", b"")


def test_a_missing_cargo_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="cargo is not installed"):
        binaries.build()
