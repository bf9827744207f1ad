"""Machines with CXL memory, and the names of slice files; without a guest."""

from pathlib import Path

import pytest

from thermolab import cxl, emulator, kernels
from thermolab.pool import slice_of


@pytest.mark.parametrize(
    ("dynamic_mib", "present", "absent"),
    [
        (0, "sn=0x7e4,volatile-memdev=static", "num-dc-regions"),
        (256, "volatile-memdev=static,volatile-dc-memdev=dynamic,num-dc-regions=1", "readonly=off"),
    ],
)
def test_qemu_arguments_of_an_expander(
    monkeypatch: pytest.MonkeyPatch, dynamic_mib: int, present: str, absent: str
) -> None:
    monkeypatch.setattr(emulator, "tree", lambda: Path("/a,tree"))
    machine = cxl.machine(1024, 512, dynamic_mib=dynamic_mib)
    line = " ".join(machine.qemu_args)
    assert present in line
    assert absent not in line
    for always in ("id=static,share=on,size=512M", "maxmem=5120M", "path=/a,,tree,security_model=none,readonly=on"):
        assert always in line
    assert machine.emulator[-5:] == (
        "/a,tree/usr/bin/qemu-system-x86_64",
        *("-L", "/a,tree/usr/share/qemu", "-L", "/a,tree/usr/share/seabios"),
    )
    assert "-hypervisor" in machine.cpu


def test_a_variant_is_a_separate_kernel() -> None:
    assert cxl.KERNEL in kernels.VARIANTS
    assert kernels._recipe(cxl.KERNEL) != kernels._recipe("6.12") == kernels._recipe("7.2")


@pytest.mark.parametrize("name", ["slice-000012.7", "slice-000012.7 (deleted)", "slice-000012.8.new"])
def test_all_files_of_a_slice_map_to_it(name: str) -> None:
    assert slice_of(Path("/dev/shm/p/slices/emc-3") / name) == (3, 12)
