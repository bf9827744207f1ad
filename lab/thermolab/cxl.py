"""CXL memory in a guest: a QEMU that emulates it at a usable speed, and the programs that configure it."""

from pathlib import Path

from . import emulator
from .guest import Guest
from .qemu import MIB, Machine

KERNEL = "6.12-cxl"
"""Debian's 6.12 with its CXL modules, which other guests do not load."""

_PROGRAMS = ("cxl", "daxctl")
_TAG = "programs"


def machine(
    memory_mib: int,
    cxl_mib: int,
    *,
    dynamic_mib: int = 0,
    backing: Path | None = None,
    cmdline: str = "",
    qemu_args: tuple[str, ...] = (),
) -> Machine:
    """Returns a machine with local memory and one CXL expander, which has `dynamic_mib` more as dynamic capacity.

    The expander's memory is that of the file `backing`, which other machines may have as well.
    """
    base = emulator.tree()
    window = 4096
    argv = ["-machine", "q35,cxl=on", "-m", f"maxmem={memory_mib + window}M,slots=8"]
    backend = f"memory-backend-file,mem-path={backing}" if backing else "memory-backend-ram"
    argv += ["-object", f"{backend},id=static,share=on,size={cxl_mib}M"]
    argv += ["-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=host-bridge"]
    argv += ["-device", "cxl-rp,port=0,bus=host-bridge,id=root-port,chassis=0,slot=2"]
    dynamic = ""
    if dynamic_mib:
        argv += ["-object", f"memory-backend-ram,id=dynamic,share=on,size={dynamic_mib}M"]
        dynamic = ",volatile-dc-memdev=dynamic,num-dc-regions=1"
    argv += ["-device", f"cxl-type3,bus=root-port,id=expander,sn=0x7e4,volatile-memdev=static{dynamic}"]
    argv += ["-machine", f"cxl-fmw.0.targets.0=host-bridge,cxl-fmw.0.size={window}M"]
    argv += ["-fsdev", f"local,id=tree,path={str(base).replace(',', ',,')},security_model=none,readonly=on"]
    argv += ["-device", f"virtio-9p-pci,bus=pcie.0,fsdev=tree,mount_tag={_TAG}"]
    # Linux creates no CXL region if the CPU reports a hypervisor, because a guest cannot flush the CPU's caches.
    cpu = "max,la57=off,-hypervisor"
    return Machine(
        memory_bytes=memory_mib * MIB,
        swap=None,
        cmdline=cmdline,
        cpu=cpu,
        emulator=tuple(emulator.command(base)),
        qemu_args=(*argv, *qemu_args),
    )


def give_programs(guest: Guest) -> None:
    """Makes `cxl`, `daxctl` and the programs that they need available in the guest, for `shell`."""
    guest.mkdir("/run/tree")
    guest.mkdir("/run/bin")
    for module in ("9pnet_virtio", "9p"):
        guest.run(["modprobe", module])
    # The root file system has no mount(8).
    for applet in ("mount", "umount"):
        guest.run(["ln", "-s", "/lab/busybox", f"/run/bin/{applet}"])
    shell(guest, f"mount -t 9p -o trans=virtio,version=9p2000.L,ro {_TAG} /run/tree")
    for name in _PROGRAMS:
        guest.write(
            f"/run/bin/{name}",
            f'#!/bin/sh\nLD_LIBRARY_PATH=/run/tree/{emulator.LIBRARIES} exec /run/tree/usr/bin/{name} "$@"\n',
        )
        guest.run(["chmod", "755", f"/run/bin/{name}"])


def shell(guest: Guest, command: str) -> str:
    """Returns the output of a shell command in the guest, with `cxl` and `daxctl` in its PATH.

    Raises:
        CommandFailed: it exited with a status other than 0.
    """
    return guest.run(["sh", "-c", f"PATH=/run/bin:$PATH; {command}"], timeout_s=120.0).stdout
