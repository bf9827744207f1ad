"""QEMU's command line for a guest, from values."""

import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SwapDisk:
    """A virtio disk that the guest swaps on, backed by a sparse temporary file."""

    size_bytes: int
    iops_total: int | None = None
    """Operations per second that QEMU lets through, for a slow device; `None` for no limit. Short bursts pass."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a guest, and what its kernel is told."""

    memory_bytes: int = GIB
    cpus: int = 2
    swap: SwapDisk | None = SwapDisk(GIB)
    cmdline: str = ""
    """Added to the kernel's command line."""
    qemu_args: tuple[str, ...] = ()
    """Added to QEMU's command line, for topologies (NUMA nodes, HMAT)."""
    emulator: tuple[str, ...] = ("qemu-system-x86_64",)
    """QEMU itself, and what its command line begins with."""
    cpu: str = "max,la57=off"
    """5-level page tables (`la57`) would cost a memory access more per emulated page walk."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 256 * MIB or self.memory_bytes % MIB:
            raise ValueError(f"memory_bytes={self.memory_bytes}: at least 256 MiB, in whole MiB")
        if not 1 <= self.cpus <= 16:
            raise ValueError(f"cpus={self.cpus}: from 1 to 16, the lab's small kernel is built for no more")


def command(
    machine: Machine, *, image: Path, initrd: Path, root: Path, swap: Path | None, console: Path, channel_fd: int
) -> list[str]:
    """QEMU's arguments. The guest is emulated on any host, so that what it shows does not depend on KVM.

    `channel_fd` is an inherited socket that becomes the guest's virtio-serial port "lab"; `console` receives the
    serial console; writes to `root` go to a temporary file that QEMU unlinks at once.
    """
    # panic=-1 with -no-reboot ends QEMU when the guest's kernel dies, so that nobody waits for it.
    cmdline = f"console=ttyS0 panic=-1 loglevel=4 mitigations=off no_timer_check lab.time={int(time.time())}"
    argv = [*machine.emulator, "-accel", "tcg,thread=multi", "-cpu", machine.cpu, "-smp", str(machine.cpus)]
    argv += ["-m", f"{machine.memory_bytes // MIB}M"]
    argv += ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"]
    argv += ["-kernel", str(image), "-initrd", str(initrd), "-append", f"{cmdline} {machine.cmdline}".strip()]
    argv += ["-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console"]
    argv += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=lab,fd={channel_fd}"]
    argv += ["-device", "virtserialport,chardev=lab,name=lab", "-device", "virtio-rng-pci"]
    argv += _disk("root", root, ",snapshot=on")
    if machine.swap is not None and swap is not None:
        limit = machine.swap.iops_total
        argv += _disk("swap", swap, "" if limit is None else f",throttling.iops-total={limit}")
    return [*argv, *machine.qemu_args]


def _disk(name: str, path: Path, options: str) -> list[str]:
    # cache=unsafe: nothing on these disks outlives the guest, so nothing need reach the host's disk.
    drive = f"if=none,id={name},format=raw,cache=unsafe,file={_escaped(path)}{options}"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},serial={name}"]


def _escaped(path: Path) -> str:
    """A path within a comma-separated list of QEMU options."""
    return str(path).replace(",", ",,")
