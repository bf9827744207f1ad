"""A libvirt of this lab's own: its configuration, state and sockets lie over the machine's, for its processes alone."""

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
from .pool import Host, Pool, PoolGuest, Vm, end_process

_DAEMON = Path("/usr/sbin/libvirtd")
_UP_SECONDS = 60.0
"""Its first answer takes a look at what QEMU can do: some ten seconds."""
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
"""Without the confinement that the lab cannot give: its guests are root's, and have no cgroups of their own."""


class Libvirt:
    """A libvirtd that ends with a pool."""

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
        """The part of a host's configuration that names it. The only node that every machine has is the pool."""
        return f'[libvirt]\nuri = "{self.uri}"\npids = "{self.pids}"\npool_node = 0\n'

    def virsh(self, *words: str) -> str:
        """What libvirt answers.

        Raises:
            LabError: it refuses.
        """
        argv = ["virsh", "-q", "-c", self.uri, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_UP_SECONDS, check=False)
        if done.returncode != 0:
            raise LabError(f"virsh {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


class LibvirtGuest(PoolGuest):
    """A guest that a host has libvirt start: what QEMU gets elsewhere is in its domain."""

    def __init__(self, host: Host, vm: Vm, libvirt: Libvirt) -> None:
        super().__init__(host, vm)
        self._libvirt = libvirt

    def _hypervisor(self, argv: Sequence[str], directory: Path) -> dict[str, object]:
        # libvirt has given the first places on the bus away, and does not know of these.
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
        return {"domain": domain.name}

    def destroy(self) -> None:
        """Ends its process even where its host and libvirt cannot."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self._libvirt.pids / f"{self.vm.name}.pid").read_text())
            # The number may be another process's by now.
            if f"guest={self.vm.name},".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        super().destroy()
