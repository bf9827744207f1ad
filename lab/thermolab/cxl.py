"""CXL memory in a guest: a QEMU that emulates it at a usable speed, and the programs that set it up.

QEMU 10 and older emulate each access to CXL memory as one to a device, some two hundred times slower than memory. A
newer one is unpacked beside the machine's, with all of its libraries, and nothing is installed.
"""

from pathlib import Path

from .cache import call, digest, made
from .debian import SUITES, source_line
from .guest import Guest
from .paths import cache
from .qemu import MIB, Machine
from .rootfs import proxy_options

KERNEL = "6.12-cxl"
"""Debian's 6.12 with its modules for CXL, which other guests need not carry."""

_PACKAGES = ("qemu-system-x86", "cxl", "daxctl")
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAMS = ("cxl", "daxctl")
_TAG = "programs"


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

    return made(directory, "fetching a QEMU that emulates CXL memory, and the tools for it", make)


def machine(memory_mib: int, cxl_mib: int, *, dynamic_mib: int = 0) -> Machine:
    """A guest's hardware: memory beside its CPUs, and one expander, of which `dynamic_mib` more is dynamic capacity."""
    base = tree()
    libraries, share = base / _LIBRARIES, base / "usr" / "share"
    # By the tree's own loader and libraries: the machine's may be older than those that this QEMU was built with.
    emulator = ["env", f"QEMU_MODULE_DIR={libraries / 'qemu'}", str(base / "usr/lib64/ld-linux-x86-64.so.2")]
    emulator += ["--library-path", str(libraries), str(base / "usr/bin/qemu-system-x86_64")]
    emulator += ["-L", str(share / "qemu"), "-L", str(share / "seabios")]
    window = 4096
    argv = ["-machine", "q35,cxl=on", "-m", f"maxmem={memory_mib + window}M,slots=8"]
    argv += ["-object", f"memory-backend-ram,id=static,share=on,size={cxl_mib}M"]
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
    # Linux makes no region where it knows that it is in a virtual machine: it could not flush the real caches.
    cpu = "max,la57=off,-hypervisor"
    return Machine(memory_bytes=memory_mib * MIB, swap=None, cpu=cpu, emulator=tuple(emulator), qemu_args=tuple(argv))


def give_programs(guest: Guest) -> None:
    """Makes `cxl`, `daxctl` and what else their users need programs of the guest, for `shell`."""
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
            f'#!/bin/sh\nLD_LIBRARY_PATH=/run/tree/{_LIBRARIES} exec /run/tree/usr/bin/{name} "$@"\n',
        )
        guest.run(["chmod", "755", f"/run/bin/{name}"])


def shell(guest: Guest, command: str) -> str:
    """What a command line prints in the guest, which finds `cxl` and `daxctl` in it.

    Raises:
        CommandFailed: it ended with another status than 0.
    """
    return guest.run(["sh", "-c", f"PATH=/run/bin:$PATH; {command}"], timeout_s=120.0).stdout
