"""The nested guest: its program, and the parser of its host's memory mappings."""

import struct
from pathlib import Path

from thermolab import nested

MAPS = """\
7f0000000000 bind:1 file=/memfd:memory-backend-memfd\\040(deleted) dirty=3 active=0 N0=1 N1=2 kernelpagesize_kB=4
7f0000100000 prefer (many)=static:0 file=/memfd:memory-backend-memfd\\040(deleted)
7f0000200000 default heap anon=3 dirty=3 N0=3 kernelpagesize_kB=4
"""


def test_guest_memory_is_listed_by_policy_and_node() -> None:
    found = nested.mappings(MAPS)
    assert found == {
        "7f0000000000": nested.Mapping("bind:1", {0: 4096, 1: 8192}),
        "7f0000100000": nested.Mapping("prefer (many)=static:0", {}),
    }
    assert found["7f0000000000"].on(1) == 8192
    assert found["7f0000000000"].on(7) == 0


def test_the_program_boots_by_multiboot(tmp_path: Path) -> None:
    program = tmp_path / "inner"
    nested.build(program)
    image = program.read_bytes()
    # A 32-bit executable for the 386, with the Multiboot header where loaders search for it.
    assert image[:5] == b"\x7fELF\x01"
    assert struct.unpack_from("<H", image, 18) == (3,)
    at = image.index(struct.pack("<I", 0x1BADB002))
    assert at % 4 == 0
    assert at < 8192 - 12
    assert sum(struct.unpack_from("<3I", image, at)) % (1 << 32) == 0
