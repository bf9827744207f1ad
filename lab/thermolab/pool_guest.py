"""A guest that a pool host starts: its request, its start through the host, its control channel."""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import initrd, rootfs
from .channel import Channel
from .errors import LabError
from .guest import BOOT_SECONDS_MAX, Guest
from .pool import Host, Refused, kill_guest
from .qemu import MIB, Machine
from .ticks import Ticks, listen

_STOP_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Vm:
    """Request for a guest."""

    name: str
    local_mib: int
    pool_mib: int | None
    """Pool memory requested explicitly; `None`: the host predicts it, and `local_mib` is the total."""
    cmdline: str = "memhp_default_state=online"
    cpus: int = 2
    about: Mapping[str, object] = field(default_factory=dict)


class PoolGuest(Guest):
    """A guest started by a pool host."""

    def __init__(self, host: Host, vm: Vm) -> None:
        lab = host.pool.lab
        console = lab.directory / f"{lab.kernel.name}-{vm.name}-console.log"
        console.unlink(missing_ok=True)
        memory = (vm.local_mib + (vm.pool_mib or 0)) * MIB
        machine = Machine(memory_bytes=memory, cpus=vm.cpus, swap=None)
        binaries = {"labguest": lab.program("labguest")}
        super().__init__(lab.kernel, machine, root=rootfs.image(), binaries=binaries, console=console)
        self.host = host
        self.vm = vm
        self.ticks = Ticks()
        """Lines that the guest wrote to its second port, with their arrival times."""
        self._listener: socket.socket | None = None
        self._pid = 0
        host.pool.on_exit(self.destroy)

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        return self._pid

    def follow(self) -> None:
        """Connects the control channel to the process that the guest was moved to."""
        listener = self._listener
        if listener is None:
            raise LabError("the guest is not up: use it in a `with` block")
        if self._channel is not None:
            self._channel.close()
        self._channel = Channel(listener.accept()[0])
        self._pid = self.host.explain(self.vm.name)["process"]["pid"]

    def _start(self) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="thermolab-"))
        ramdisk = self._temporary / "initrd"
        ramdisk.write_bytes(initrd.base(self.kernel).read_bytes() + initrd.programs(self._binaries))
        # During a move two processes have the disk open, so it cannot be a QEMU snapshot of one process.
        root = self._temporary / "root"
        subprocess.run(["cp", "--sparse=always", str(self._root), str(root)], check=True)
        lab, ticks = self._temporary / "lab", self._temporary / "ticks"
        self._listener = listen(lab)
        self.ticks.listen(ticks)
        time_now = int(time.time())
        cmdline = (
            f"console=ttyS0 panic=-1 loglevel=4 mitigations=off no_timer_check lab.time={time_now} {self.vm.cmdline}"
        )
        argv = ["-no-reboot", "-kernel", str(self.kernel.image), "-initrd", str(ramdisk), "-append", cmdline]
        argv += ["-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"]
        argv += ["-device", "virtio-serial-pci", "-device", "virtio-rng-pci"]
        for name, path in (("lab", lab), ("ticks", ticks)):
            argv += [
                "-chardev",
                f"socket,id={name},path={path}",
                "-device",
                f"virtserialport,chardev={name},name={name}",
            ]
        argv += [
            "-drive",
            f"if=none,id=root,format=raw,file={root}",
            "-device",
            "virtio-blk-pci,drive=root,serial=root",
        ]
        written: dict[str, object] = {
            "name": self.vm.name,
            "cores": self.vm.cpus,
            "memory": f"{self.machine.memory_bytes // MIB}MiB",
        }
        if self.vm.pool_mib is not None:
            written["pool"] = f"{self.vm.pool_mib}MiB"
        written |= self._hypervisor(argv, self._temporary)
        lines = [f"{key} = {json.dumps(value)}" for key, value in written.items()]
        lines += ["[about]", *(f"{key} = {json.dumps(value)}" for key, value in self.vm.about.items())]
        file = self._temporary / "vm.toml"
        file.write_text("\n".join(lines) + "\n")
        begin = time.monotonic()
        started = self.host.vm("start", str(file))
        self.start_seconds = time.monotonic() - begin
        """From the start request until the guest runs: assignment and mapping of slices, without its boot."""
        self._pid = started["process"]["pid"]
        self._listener.settimeout(BOOT_SECONDS_MAX)
        self._channel = Channel(self._listener.accept()[0])
        ready = self._channel.event("boot", lambda event: event["event"] == "ready", BOOT_SECONDS_MAX)
        self.boot_seconds = time.monotonic() - begin
        self.release = str(ready["kernel"])

    def _hypervisor(self, argv: Sequence[str], directory: Path) -> dict[str, object]:
        """Returns the keys of the VM request that pass `argv` to QEMU; other files may be written to `directory`."""
        del directory
        return {"qemu.arguments": list(argv)}

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pid:
            with contextlib.suppress(Refused):
                self.host.vm("stop", self.vm.name, "--now", timeout_s=_STOP_SECONDS)
        self.destroy()

    def destroy(self) -> None:
        """Kills its processes even if its host cannot, and removes its files."""
        for file in self.host.home.glob(f"{self.vm.name}.*.pid"):
            kill_guest(file)
        self._pid = 0
        self.ticks.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._remove_temporary()
