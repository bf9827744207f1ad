"""QEMU's command line."""

from pathlib import Path
from typing import Any

import pytest

from thermolab.qemu import GIB, MIB, Machine, SwapDisk, command


def argv(machine: Machine, console: str = "/out/console.log") -> str:
    swap = None if machine.swap is None else Path("/tmp/swap")
    paths = {"image": Path("/k"), "initrd": Path("/i"), "root": Path("/r"), "console": Path(console)}
    return " ".join(command(machine, swap=swap, channel_fd=7, **paths))


@pytest.mark.parametrize(
    ("machine", "present", "absent"),
    [
        (Machine(), "-m 1024M", "throttling"),
        (Machine(memory_bytes=2 * GIB, cpus=1), "-smp 1 -m 2048M", "throttling"),
        (Machine(swap=None), "serial=root", "serial=swap"),
        (
            Machine(swap=SwapDisk(GIB, iops_total=500)),
            "file=/tmp/swap,throttling.iops-total=500",
            "file=/tmp/swap,snapshot",
        ),
        (Machine(cmdline="numa=fake=2"), " numa=fake=2 -chardev", "serial=none"),
        (Machine(qemu_args=("-numa", "node,nodeid=1")), "-numa node,nodeid=1", "serial=none"),
        (Machine(emulator=("env", "A=b", "/t/qemu"), cpu="max"), "env A=b /t/qemu -accel tcg", "la57"),
    ],
)
def test_machine_options(machine: Machine, present: str, absent: str) -> None:
    line = argv(machine)
    assert present in line
    assert absent not in line
    # Every guest is emulated, writes to a snapshot, and uses the inherited socket.
    for always in ("-accel tcg", "file=/r,snapshot=on", "socket,id=lab,fd=7", "-no-reboot", "panic=-1"):
        assert always in line


def test_commas_in_paths_are_escaped() -> None:
    assert "path=/out/a,,b.log" in argv(Machine(), console="/out/a,b.log")


@pytest.mark.parametrize(
    "fields",
    [{"memory_bytes": 128 * MIB}, {"memory_bytes": GIB + 1}, {"cpus": 0}, {"cpus": 17}],
)
def test_invalid_machines_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))}="):
        Machine(**fields)
