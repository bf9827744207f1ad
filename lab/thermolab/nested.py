"""A pool host inside a guest, for scenarios that need a host with a second NUMA node.

The guest's node 1 has no CPUs and is the pool. The guest runs the pool manager, the host daemon, a libvirtd and QEMU,
which emulates a nested guest: a freestanding program without an operating system (`lab/inner`).
"""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import numa, rootfs
from .cache import call
from .errors import CommandFailed, GuestTimeout, LabError
from .guest import Guest
from .lab import Lab
from .libvirt import QEMU_CONF
from .paths import LAB
from .pool import LEASE_SECONDS, SLICE_MIB, Watch, first_event

PACKAGES = ("libvirt-clients", "libvirt-daemon", "libvirt-daemon-driver-qemu", "procps", "qemu-system-x86")

HOST = "host-a"
_DIRECTORY = "/run/pool"
_INNER = "/run/inner"
_URI = "qemu+unix:///system?socket=/run/libvirt/libvirt-sock"
_PORT = 7443
_PAGE_BYTES = 4096
_UP_SECONDS = 240.0
"""Time limit for a daemon's start. libvirtd first probes QEMU's capabilities, for which it starts it several times."""
_POLL_SECONDS = 0.5
_BOOT_SECONDS = 240.0
_USER = "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n"

_SOURCE = LAB / "inner" / "program.c"
_CFLAGS = ("-m32", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pie", "-fno-stack-protector")
_LDFLAGS = (
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,-Ttext-segment=0x100000",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
)


def build(program: Path) -> None:
    """Builds the program that the nested guest runs."""
    call(["cc", *_CFLAGS, *_LDFLAGS, "-o", program, _SOURCE])


def outer(lab: Lab, local_mib: int, pool_mib: int) -> Guest:
    """Returns a guest that can act as a pool host, to be used in a `with` block."""
    program = lab.directory / "inner"
    build(program)
    programs = {name: lab.program(name) for name in ("labguest", "thermocline")}
    console = lab.directory / f"{lab.kernel.name}-console.log"
    console.unlink(missing_ok=True)
    return Guest(
        lab.kernel,
        numa.two_nodes(local_mib, pool_mib, hmat=False),
        root=rootfs.image(PACKAGES),
        binaries={**programs, "inner": program},
        console=console,
    )


class Host:
    """The host daemon in a guest, with its pool manager and libvirt."""

    def __init__(self, guest: Guest, slices: int, watch: Watch, local_mib: int) -> None:
        self.guest = guest
        self.logs: list[str] = []
        """Names of the daemon's logs, one per start."""
        self.consoles: list[str] = []
        """Console files of its guests."""
        guest.mkdir(_DIRECTORY)
        self._libvirt()
        self._manager(slices)
        self._top = {"name": HOST, "local_memory": f"{local_mib}MiB", "least_local_memory": "128MiB"}
        self._top |= {"state": f"{_DIRECTORY}/state", "runtime": _DIRECTORY}
        self._watch = watch
        self.configure()
        self.start()

    def configure(self, local_nodes: str | None = None) -> None:
        """Writes the configuration for the daemon's next start; `local_nodes`: NUMA nodes of local memory, if set."""
        watch = self._watch
        lines = [f"{key} = {json.dumps(value)}" for key, value in self._top.items()]
        lines += ["[manager]", f'url = "https://127.0.0.1:{_PORT}"', f'identity = "{_DIRECTORY}/tls/{HOST}"']
        lines += ["[libvirt]", f"pool_node = {numa.SLOW}", f'uri = "{_URI}"', "balloon = false"]
        if local_nodes is not None:
            lines.append(f'local_nodes = "{local_nodes}"')
        lines += ["[monitor]", f'period = "{watch.period}"', f'touched = "{watch.touched}"']
        lines += [f'accessed = "{watch.accessed}"', f'budget = "{watch.budget}"', 'rest = "1s"']
        lines += [f"attempts = {watch.attempts}", 'within = "60s"']
        self.guest.write(f"{_DIRECTORY}/host.toml", "\n".join(lines) + "\n")

    def start(self) -> None:
        """Starts or restarts the daemon and waits until it has a lease."""
        self.logs.append(f"host-{len(self.logs) + 1}")
        self._pid = self._spawn(self.logs[-1], "thermocline", "pool", "host", "--config", f"{_DIRECTORY}/host.toml")
        self.guest.expect(f"{_DIRECTORY}/{self.logs[-1]}.log", "has a lease", _UP_SECONDS)

    def kill(self) -> None:
        """Kills the daemon with SIGKILL, as in a crash; its guests keep running."""
        self.guest.kill(self._pid, 9)
        self.guest.wait_exit(self._pid)

    def vm(self, *argv: str) -> Any:
        """Returns the output of a `thermocline pool vm` command.

        Raises:
            CommandFailed: the command failed.
        """
        line = ["thermocline", "pool", "vm", *argv, "--runtime", _DIRECTORY, "--format", "json"]
        return json.loads(self.guest.run(line, timeout_s=300).stdout)

    def explain(self, name: str) -> dict[str, Any]:
        """Returns the host's record of a guest."""
        record: dict[str, Any] = self.vm("explain", name)
        return record

    def event(self, name: str, text: str, timeout_s: float) -> str:
        """Returns the text of the first event of a guest that contains `text`.

        Raises:
            GuestTimeout: no such event within `timeout_s`.
        """
        return str(first_event(lambda: self.explain(name), text, timeout_s, _POLL_SECONDS)["what"])

    def free_slices(self) -> int:
        """Returns the number of free slices, whose locks no process holds."""
        reach = ("--manager", f"https://127.0.0.1:{_PORT}", "--identity", f"{_DIRECTORY}/tls/operator")
        status = self.guest.run(["thermocline", "pool", "status", *reach, "--format", "json"]).stdout
        free: int = json.loads(status)["slices"]["free"]
        return free

    def until_free(self, slices: int, timeout_s: float = 60.0) -> None:
        """Waits until exactly `slices` slices are free."""
        self._until(f"{slices} slices are free", lambda: self.free_slices() == slices, timeout_s)

    def uptime(self) -> float:
        """Returns the guest's time since boot, in seconds."""
        return float(self.guest.read("/proc/uptime").split()[0])

    def keep_logs(self) -> None:
        """Copies the logs of all daemons and the consoles of nested guests to the results."""
        for name in (*self.logs, "manager", "libvirtd"):
            self.guest.keep(f"{_DIRECTORY}/{name}.log")
        for console in self.consoles:
            self.guest.keep(console)

    def log_line(self, text: str) -> str:
        """Returns the first line of the daemon's logs that contains `text`.

        Raises:
            LabError: there is none.
        """
        for name in self.logs:
            for line in self.guest.read(f"{_DIRECTORY}/{name}.log").splitlines():
                if text in line:
                    return line
        raise LabError(f"no line of the host daemon's logs contains {text!r}")

    def virsh(self, *words: str, timeout_s: float = 60.0) -> str:
        """Returns the output of a virsh command."""
        return self.guest.run(["virsh", "-q", "-c", _URI, *words], timeout_s=timeout_s).stdout

    def _libvirt(self) -> None:
        guest = self.guest
        for file in ("/etc/passwd", "/etc/group"):
            line = _USER if file.endswith("passwd") else "libvirt-qemu:x:64055:\n"
            guest.write(file, line, append=True)
        # There is no udev, which would create this link.
        guest.run(["ln", "-sf", "/proc/self/fd/0", "/dev/stdin"])
        guest.mkdir("/etc/libvirt")
        guest.write("/etc/libvirt/qemu.conf", QEMU_CONF)
        guest.write(f"{_DIRECTORY}/libvirtd.conf", 'auth_unix_rw = "none"\nauth_unix_ro = "none"\n')
        self._spawn("libvirtd", "libvirtd", "-f", f"{_DIRECTORY}/libvirtd.conf")
        self._until("libvirt answers", lambda: "QEMU" in self.virsh("version", timeout_s=_UP_SECONDS))

    def _manager(self, slices: int) -> None:
        guest, tls = self.guest, f"{_DIRECTORY}/tls"
        guest.run(["thermocline", "pool", "certificates", tls, f"--host={HOST}", "--server=127.0.0.1"])
        top = {"listen": f"127.0.0.1:{_PORT}", "ledger": f"{_DIRECTORY}/ledger.redb"}
        top |= {"pool_dir": f"{_DIRECTORY}/slices", "slice_size": f"{SLICE_MIB}MiB", "lease": f"{LEASE_SECONDS}s"}
        lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
        lines += [f'hosts = ["{HOST}"]', 'operators = ["operator"]', "[tls]", f'cert = "{tls}/manager.pem"']
        lines += [f'key = "{tls}/manager.key"', f'client_ca = "{tls}/ca.pem"', "[[emcs]]", f"slices = {slices}"]
        config = f"{_DIRECTORY}/manager.toml"
        guest.write(config, "\n".join(lines) + "\n")
        guest.run(["thermocline", "pool", "manager", "init", "--config", config])
        self._spawn("manager", "thermocline", "pool", "manager", "--config", config)
        self._until("the manager answers", lambda: self.free_slices() == slices)

    def _spawn(self, name: str, *argv: str) -> int:
        log = f"{_DIRECTORY}/{name}.log"
        return self.guest.spawn(argv, env={"THERMOCLINE_LOG": "debug"}, stdout=log, stderr=log)

    def _until(self, what: str, holds: Callable[[], bool], timeout_s: float = _UP_SECONDS) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(CommandFailed):
                if holds():
                    return
            if time.monotonic() > deadline:
                raise LabError(f"{what}: not within {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A memory mapping of a process, from numa_maps."""

    policy: str
    bytes_on: dict[int, int]
    """Bytes by NUMA node."""

    def on(self, node: int) -> int:
        """Returns the bytes on a node."""
        return self.bytes_on.get(node, 0)


def mappings(numa_maps: str) -> dict[str, Mapping]:
    """Returns the mappings of QEMU's guest memory by address."""
    found = {}
    for line in numa_maps.splitlines():
        if "memory-backend-memfd" in line:
            start, rest = line.split(" ", 1)
            policy, _, rest = rest.partition(" file=")
            nodes = {int(node): int(pages) * _PAGE_BYTES for node, pages in re.findall(r" N(\d+)=(\d+)", rest)}
            found[start] = Mapping(policy, nodes)
    return found


class Inner:
    """A nested guest with one memory module per slice."""

    def __init__(self, host: Host, name: str, local_mib: int, pool_mib: int) -> None:
        self.host = host
        self.name = name
        self._guest = guest = host.guest
        directory = f"{_INNER}/{name}"
        guest.mkdir(directory)
        self._port, self.console = f"{directory}/port", f"{directory}/{name}-console"
        for way in ("in", "out"):
            guest.run(["mkfifo", f"{self._port}.{way}"])
        # Prefixes each line with its time. The pipe is also open for writing: otherwise reading would end when the
        # first writer, libvirt, closes it.
        line = 'while read -r line; do read -r now rest </proc/uptime; echo "$now $line"; done'
        guest.spawn(["sh", "-c", f"{line} <>{self._port}.out"], stdout=self.console)
        host.consoles.append(self.console)
        guest.write(
            f"{directory}/domain.xml",
            "<domain type='qemu'>\n<os><type arch='x86_64' machine='q35'>hvm</type>"
            "<kernel>/lab/inner</kernel></os>\n"
            "<cpu mode='custom'><model>qemu64</model></cpu>\n<devices>\n<controller type='usb' model='none'/>\n"
            f"<serial type='pipe'><source path='{self._port}'/></serial>\n</devices>\n</domain>\n",
        )
        values = {"name": name, "cores": 1, "memory": f"{local_mib + pool_mib}MiB", "pool": f"{pool_mib}MiB"}
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**values, "libvirt.domain": "domain.xml"}.items()]
        guest.write(f"{directory}/vm.toml", "\n".join(lines) + "\n")
        begin = time.monotonic()
        self.pid: int = host.vm("start", f"{directory}/vm.toml")["process"]["pid"]
        """QEMU's process id in the outer guest."""
        self.start_seconds = time.monotonic() - begin

    def until_up(self) -> float:
        """Waits until its program runs; returns the seconds waited."""
        begin = time.monotonic()
        self._guest.expect(self.console, "inner: up", _BOOT_SECONDS)
        return time.monotonic() - begin

    def hold(self, mib: int, timeout_s: float = 120.0) -> None:
        """Has the program fill `mib` more MiB of its modules with marks and check all of them continuously."""
        held = len(self._reported("held_bytes"))
        self._guest.run(["sh", "-c", f"echo {mib} >{self._port}.in"])
        deadline = time.monotonic() + timeout_s
        while len(self._reported("held_bytes")) == held:
            if time.monotonic() > deadline:
                raise GuestTimeout(f"guest {self.name} did not fill {mib} MiB within {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)

    def checks(self) -> int:
        """Returns how many times the program has checked 4 MiB of its marks."""
        return len(self._reported("damaged_bytes"))

    def until_checks(self, more: int, timeout_s: float = 60.0) -> None:
        """Waits for `more` further checks."""
        target, deadline = self.checks() + more, time.monotonic() + timeout_s
        while self.checks() < target:
            if time.monotonic() > deadline:
                raise GuestTimeout(f"guest {self.name} did not make {more} checks within {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)

    def gap_seconds(self, begin: float, end: float) -> float:
        """Returns the longest time between two checks; `begin` and `end` are seconds since the outer guest's boot."""
        lines = (line.split() for line in self._guest.read(self.console).splitlines())
        times = [float(words[0]) for words in lines if "damaged_bytes" in words[-1]]
        at = [begin, *(time for time in times if begin <= time <= end), end]
        return max(after - before for before, after in pairwise(at))

    def damaged_bytes(self) -> int:
        """Returns the largest number of damaged bytes that any check found."""
        return max(self._reported("damaged_bytes"), default=0)

    def modules(self) -> dict[str, Mapping]:
        """Returns policy and node placement of its memory, by address."""
        return mappings(self._guest.read(f"/proc/{self.pid}/numa_maps"))

    def locks(self) -> int:
        """Returns the number of slice files that its process has open."""
        listed = self._guest.run(["sh", "-c", f"ls -l /proc/{self.pid}/fd"]).stdout
        return listed.count(f"{_DIRECTORY}/slices/")

    def _reported(self, key: str) -> list[int]:
        lines = self._guest.read(self.console).splitlines() if self._guest.exists(self.console) else []
        return [int(number) for line in lines for number in re.findall(rf'"{key}":(\d+)', line)]
