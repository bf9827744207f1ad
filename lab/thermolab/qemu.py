"""QEMU's command line for a guest."""

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
    """Limit of requests per second in QEMU, for a slow device; `None`: no limit. Short bursts exceed it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A guest's hardware and kernel command line."""

    memory_bytes: int = GIB
    cpus: int = 2
    swap: SwapDisk | None = SwapDisk(GIB)
    cmdline: str = ""
    """Appended to the kernel's command line."""
    qemu_args: tuple[str, ...] = ()
    """Appended to QEMU's command line, for topologies (NUMA nodes, HMAT)."""
    emulator: tuple[str, ...] = ("qemu-system-x86_64",)
    """QEMU's program and its first arguments."""
    cpu: str = "max,la57=off"
    """5-level page tables (`la57`) would add a memory access to each emulated page walk."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 256 * MIB or self.memory_bytes % MIB:
            raise ValueError(f"memory_bytes={self.memory_bytes}: must be at least 256 MiB and a multiple of 1 MiB")
        if not 1 <= self.cpus <= 16:
            raise ValueError(f"cpus={self.cpus}: must be from 1 to 16, the limit of the lab's idle kernel")


def command(
    machine: Machine, *, image: Path, initrd: Path, root: Path, swap: Path | None, console: Path, channel_fd: int
) -> list[str]:
    """Returns QEMU's arguments. Guests are emulated even where KVM is available, so that results do not depend on it.

    `channel_fd` is an inherited socket that becomes the guest's virtio-serial port "lab"; `console` receives the
    serial console; writes to `root` go to a temporary file that QEMU unlinks at once.
    """
    # With panic=-1 and -no-reboot QEMU exits when the guest's kernel panics, which ends all waits for the guest.
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
    # cache=unsafe: these disks do not outlive the guest, so flushes to the host's disk are not needed.
    drive = f"if=none,id={name},format=raw,cache=unsafe,file={_escaped(path)}{options}"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},serial={name}"]


def _escaped(path: Path) -> str:
    """Escapes a path for a comma-separated list of QEMU options."""
    return str(path).replace(",", ",,")
