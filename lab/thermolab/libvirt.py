"""A private libvirtd: its configuration, state and sockets are mounted over the machine's, only for its processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from xml.sax.saxutils import quoteattr

from .errors import LabError
from .pool import Host, Pool, end_process
from .pool_guest import PoolGuest, Vm

_DAEMON = Path("/usr/sbin/libvirtd")
_UP_SECONDS = 60.0
"""Time limit for an answer. The first one takes some ten seconds: libvirtd probes QEMU's capabilities."""
_PLACES = {
    "etc": "/etc/libvirt",
    "run": "/run/libvirt",
    "lib": "/var/lib/libvirt",
    "cache": "/var/cache/libvirt",
    "log": "/var/log/libvirt",
}
_FIRST_SLOT = 0x10
QEMU_CONF = """\
security_driver = "none"
user = "root"
group = "root"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""
"""Disables confinement: the lab's guests run as root and have no cgroups of their own."""


class Libvirt:
    """A libvirtd that is stopped with a pool."""

    def __init__(self, pool: Pool) -> None:
        if not _DAEMON.exists() or shutil.which("virsh") is None:
            raise LabError("libvirt is not installed: `make test-libvirt` installs it")
        self.directory = pool.directory / "libvirt"
        for place in _PLACES:
            (self.directory / place).mkdir(parents=True)
        socket_directory = self.directory / "sock"
        socket_directory.mkdir()
        (self.directory / "etc" / "qemu.conf").write_text(QEMU_CONF)
        (self.directory / "libvirtd.conf").write_text(
            f'unix_sock_dir = "{socket_directory}"\nauth_unix_rw = "none"\nauth_unix_ro = "none"\n'
        )
        self.uri = f"qemu+unix:///system?socket={socket_directory}/libvirt-sock"
        self.pids = self.directory / "run" / "qemu"
        over = "; ".join(
            f"mkdir -p {there} && mount --bind {self.directory / name} {there}" for name, there in _PLACES.items()
        )
        daemon = f"exec {_DAEMON} -f {self.directory}/libvirtd.conf -p {self.directory}/libvirtd.pid"
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-ec", f"{over}; {daemon}"]
        with (pool.lab.directory / "libvirtd.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        pool.on_end(end_process, process)
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            try:
                self.version = self.virsh("version").splitlines()[-1].strip()
                return
            except LabError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def host(self) -> str:
        """Returns the section of a host's configuration for it. Node 0, which every machine has, is the pool node."""
        return f'[libvirt]\nuri = "{self.uri}"\npids = "{self.pids}"\npool_node = 0\n'

    def virsh(self, *words: str) -> str:
        """Returns the output of a virsh command.

        Raises:
            LabError: the command failed.
        """
        argv = ["virsh", "-q", "-c", self.uri, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_UP_SECONDS, check=False)
        if done.returncode != 0:
            raise LabError(f"virsh {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


class LibvirtGuest(PoolGuest):
    """A guest that a host starts by libvirt: QEMU's arguments are in its domain."""

    def __init__(self, host: Host, vm: Vm, libvirt: Libvirt) -> None:
        super().__init__(host, vm)
        self._libvirt = libvirt

    def _hypervisor(self, argv: Sequence[str], directory: Path) -> dict[str, object]:
        # libvirt assigns the first slots of the bus itself and does not know of these devices.
        slots = count(_FIRST_SLOT)
        placed = (f"{word},addr={next(slots):#x}" if word.split(",")[0].endswith("-pci") else word for word in argv)
        arguments = "\n".join(f"<qemu:arg value={quoteattr(word)}/>" for word in placed)
        domain = directory / "domain.xml"
        domain.write_text(
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n"
            "<os><type arch='x86_64' machine='q35'>hvm</type></os>\n"
            "<cpu mode='maximum'><feature policy='disable' name='la57'/></cpu>\n"
            f"<qemu:commandline>\n{arguments}\n</qemu:commandline>\n</domain>\n"
        )
        return {"libvirt.domain": domain.name}

    def destroy(self) -> None:
        """Kills its process even if its host and libvirt cannot."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._libvirt.pids / f"{self.vm.name}.pid").read_text())
            # The pid may belong to another process by now.
            if f"guest={self.vm.name},".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        super().destroy()
