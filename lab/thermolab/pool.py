"""A memory pool on this machine: its manager, hosts, and guests that the hosts start.

All of it is as users have it, but for the slices, which are small, and for the guests' processors, which are emulated.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import initrd, rootfs
from .channel import Channel
from .errors import GuestTimeout, LabError
from .guest import BOOT_SECONDS_MAX, Guest
from .lab import Lab
from .outages import SmallDisk, Wire
from .qemu import MIB, Machine

SLICE_MIB = 128
"""The smallest slice there is: a block of memory that Linux brings online."""

LEASE_SECONDS = 5
"""How long a host may be silent."""

_MEMORY = Path("/dev/shm")  # noqa: S108 -- a memory file system is what it is about
_UP_SECONDS = 30.0
_STOP_SECONDS = 90.0
_LOOK_SECONDS = 0.05


class Refused(LabError):
    """A command of the pool's ended with an error; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How a host judges its guests."""

    period: str = "2s"
    touched: str = "5%"
    accessed: str = "0.5%"
    budget: str = "1%"
    attempts: int = 3
    """None: guests are looked at, and never moved."""


@dataclass(frozen=True, slots=True)
class Vm:
    """A guest to be started."""

    name: str
    local_mib: int
    pool_mib: int | None
    """As asked; `None`: as predicted, of `local_mib` in all."""
    cmdline: str = "memhp_default_state=online"
    cpus: int = 2
    about: Mapping[str, object] = field(default_factory=dict)


class Pool:
    """A pool that is up within a `with` block; all its processes are gone, however the block is left."""

    def __init__(
        self, lab: Lab, slices: int, hosts: Sequence[str] = ("host-a",), *, wire: Wire | None = None, disk_mib: int = 0
    ) -> None:
        self.lab = lab
        self.slices = slices
        self._names = tuple(hosts)
        self._wire = wire
        """By which some hosts reach the manager; the others are on its side."""
        self._disk_mib = disk_mib
        """Of a disk for the ledger alone; 0: it has none of its own."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = contextlib.ExitStack()
        self.directory = Path()
        """Where slices are: `emc-0`; and certificates, configurations, logs."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="thermolab-pool-", dir=_MEMORY))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        ledger = self.directory
        if self._disk_mib:
            self.disk = SmallDisk(self.directory / "disk", self._disk_mib)
            self._stack.callback(self.disk.unmount)
            ledger = self.disk.directory
        named = [f"--host={name}" for name in self._names]
        addresses = ["127.0.0.1"] + ([self._wire.near] if self._wire else [])
        named += [f"--server={address}" for address in addresses]
        self.command("pool", "certificates", str(self.directory / "tls"), *named)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        tls = self.directory / "tls"
        self._write(
            "manager.toml",
            {
                "listen": f"{'0.0.0.0' if self._wire else '127.0.0.1'}:{self._port}",  # noqa: S104 -- with certificates
                "ledger": str(ledger / "ledger.redb"),
                "pool_dir": str(self.directory / "slices"),
                "slice_size": f"{SLICE_MIB}MiB",
                "hosts": list(self._names),
                "operators": ["operator"],
                "lease": f"{LEASE_SECONDS}s",
                "answer_within": "40s",
                "ask_again_after": "5s",
            },
            f'[tls]\ncert = "{tls}/manager.pem"\nkey = "{tls}/manager.key"\nclient_ca = "{tls}/ca.pem"\n'
            f"[[emcs]]\nslices = {self.slices}\n",
        )
        self.command("pool", "manager", "init", "--config", str(self.directory / "manager.toml"))
        self.start_manager()

    def start_manager(self) -> None:
        """Starts the manager, again if need be, and waits until it answers."""
        self.manager = self.spawn("manager", "pool", "manager", "--config", str(self.directory / "manager.toml"))
        self.until("the manager answers", self._answers)

    def kill_manager(self) -> None:
        """Ends the manager as a fault would."""
        self.manager.kill()
        self.manager.wait()

    def host(
        self,
        name: str,
        watch: Watch = Watch(),  # noqa: B008 -- frozen
        *,
        local_mib: int = 4096,
        threads: str = "multi",
        afar: bool = False,
        hypervisor: str = "",
        more: str = "",
    ) -> "Host":
        """Starts a host; it ends with the pool.

        `threads` is `single` where its guests are to be moved. A host that is `afar` lives behind the pool's wire.
        `hypervisor` is the part of its configuration about that; QEMU, if it is not told. `more` are other parts.
        """
        near = self._wire.near if afar and self._wire else "127.0.0.1"
        hypervisor = hypervisor or f'[qemu]\naccelerator = "tcg,thread={threads}"\ncpu = "max,la57=off"\n'
        home = self.directory / name
        home.mkdir()
        tls = self.directory / "tls"
        top = {"name": name, "local_memory": f"{local_mib}MiB", "least_local_memory": "128MiB"}
        top |= {"state": str(home / "state"), "runtime": str(home)}
        self._write(
            f"{name}.toml",
            top,
            f'[manager]\nurl = "https://{near}:{self._port}"\nidentity = "{tls}/{name}"\n'
            f"{hypervisor}"
            f'[monitor]\nperiod = "{watch.period}"\ntouched = "{watch.touched}"\naccessed = "{watch.accessed}"\n'
            f'budget = "{watch.budget}"\nrest = "1s"\nattempts = {watch.attempts}\n'
            f'[release]\nleast_margin = "32MiB"\nwithin = "60s"\n{more}',
        )
        return Host(self, name, home, self._wire.prefix if afar and self._wire else ())

    def command(self, *argv: str, timeout_s: float = 120.0) -> str:
        """What a command of the program prints.

        Raises:
            Refused: it failed.
        """
        program = str(self.lab.program("thermocline"))
        done = subprocess.run([program, *argv], capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise Refused(f"`thermocline {' '.join(argv)}`: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def spawn(self, log: str, *argv: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Starts a daemon that ends with the pool, and with this process."""
        program = str(self.lab.program("thermocline"))
        line = ["setpriv", "--pdeathsig", "KILL", *prefix, program, *argv]
        with (self.lab.directory / f"{log}.log").open("ab") as out:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.on_end(end_process, process)
        return process

    def on_end(self, end: Callable[[subprocess.Popen[bytes]], None], process: subprocess.Popen[bytes]) -> None:
        """Ends a process with the pool, before all that was there when it started."""
        self._stack.callback(end, process)

    def on_exit(self, guest: "PoolGuest") -> None:
        """Ends a guest with the pool, at the latest."""
        self._stack.callback(guest.destroy)

    def status(self) -> dict[str, Any]:
        """The pool, as its manager tells."""
        told: dict[str, Any] = json.loads(self._status())
        return told

    def counts(self) -> dict[str, int]:
        """Slices by state."""
        counts: dict[str, int] = self.status()["slices"]
        return counts

    def slices_by_state(self) -> list[dict[str, Any]]:
        """Every slice, as the manager's API tells."""
        tls = self.directory / "tls"
        context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        context.load_cert_chain(str(tls / "operator.pem"), str(tls / "operator.key"))
        with urllib.request.urlopen(f"https://127.0.0.1:{self._port}/v1/slices", context=context) as answer:
            told: list[dict[str, Any]] = json.load(answer)["slices"]
        return told

    def until_free(self, slices: int, timeout_s: float = 60.0) -> float:
        """Waits until so many slices are free, and tells how long that took."""
        begin = time.monotonic()
        self.until(f"{slices} slices are free", lambda: self.counts()["free"] == slices, timeout_s)
        return time.monotonic() - begin

    def free_files(self) -> list[Path]:
        """Files of the slices that are free."""
        free = {(slice_["emc"], slice_["index"]) for slice_ in self.slices_by_state() if slice_["state"] == "free"}
        return [file for file in self.files() if slice_of(file) in free]

    def files(self) -> list[Path]:
        """Files of all slices."""
        return sorted((self.directory / "slices").glob("emc-*/slice-*"))

    def _status(self) -> str:
        reach = ("--manager", f"https://127.0.0.1:{self._port}", "--identity", str(self.directory / "tls" / "operator"))
        return self.command("pool", "status", *reach, "--format", "json")

    def _answers(self) -> bool:
        if self.manager.poll() is not None:
            raise LabError(f"the pool's manager has ended; see {self.lab.directory}/manager.log")
        with contextlib.suppress(Refused):
            self._status()
            return True
        return False

    def _write(self, name: str, values: Mapping[str, object], more: str) -> None:
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        (self.directory / name).write_text("\n".join(lines) + "\n" + more)

    def until(self, what: str, holds: Callable[[], bool], timeout_s: float = _UP_SECONDS) -> None:
        """Waits until something holds.

        Raises:
            LabError: it did not in time.
        """
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise LabError(f"{what}: not within {timeout_s:g} s")
            time.sleep(_LOOK_SECONDS)


class Host:
    """A host's daemon."""

    def __init__(self, pool: Pool, name: str, home: Path, prefix: Sequence[str] = ()) -> None:
        self.pool = pool
        self.name = name
        self.home = home
        self._prefix = tuple(prefix)
        self.start()

    def start(self) -> None:
        """Starts it, again if need be, and waits until it has a lease."""
        config = str(self.pool.directory / f"{self.name}.toml")
        self.process = self.pool.spawn(self.name, "pool", "host", "--config", config, prefix=self._prefix)
        self.until_up()

    def until_up(self, timeout_s: float = _UP_SECONDS) -> None:
        """Waits until it has a lease, and knows of no trouble."""
        self.pool.until(f"{self.name} is up", self._is_up, timeout_s)

    def kill(self) -> None:
        """Ends the daemon as a fault would; its guests go on."""
        self.process.kill()
        self.process.wait()

    def vm(self, *argv: str, timeout_s: float = 300.0) -> Any:
        """What a command about guests answers.

        Raises:
            Refused: the host will not.
        """
        runtime = ("--runtime", str(self.home), "--format", "json")
        return json.loads(self.pool.command("pool", "vm", *argv, *runtime, timeout_s=timeout_s))

    def explain(self, name: str) -> dict[str, Any]:
        """All about a guest."""
        told: dict[str, Any] = self.vm("explain", name)
        return told

    def start_bare(self, name: str, local_mib: int, pool_mib: int) -> None:
        """Starts a guest without anything to boot, which has its memory all the same.

        Raises:
            Refused: it does not start, or nobody was left to say so.
        """
        file = self.home / f"{name}.toml"
        file.write_text(f'name = "{name}"\ncores = 1\nmemory = "{local_mib + pool_mib}MiB"\npool = "{pool_mib}MiB"\n')
        self.vm("start", str(file))

    def names(self) -> list[str]:
        """Its guests."""
        return [line["name"] for line in self.vm("list")["guests"]]

    def guest_pids(self) -> Iterator[int]:
        """Processes of its guests, of those too that it does not know any more."""
        for file in self.home.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                if not file.name.startswith("pool-host"):
                    yield int(file.read_text())

    def kill_guest(self, name: str) -> bool:
        """Ends a guest's process as a fault would; whether there was one."""
        files = list(self.home.glob(f"{name}.*.pid"))
        for file in files:
            _kill_guest(file)
        return bool(files)

    def event(self, name: str, text: str, timeout_s: float) -> dict[str, Any]:
        """The first event of a guest that contains a text.

        Raises:
            GuestTimeout: none came in time.
        """
        return first_event(lambda: self.explain(name), text, timeout_s, _LOOK_SECONDS)

    def looks(self, name: str, count: int, timeout_s: float = 120.0) -> dict[str, int]:
        """What so many more looks of the monitor saw, summed."""
        before = self.explain(name)["looks"]
        deadline = time.monotonic() + timeout_s
        while (now := self.explain(name)["looks"])["count"] < before["count"] + count:
            if time.monotonic() > deadline:
                raise GuestTimeout(f"guest {name} was not looked at {count} times within {timeout_s:g} s")
            time.sleep(_LOOK_SECONDS)
        return {key: now[key] - before[key] for key in now}

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise LabError(f"{self.name} has ended; see {self.pool.lab.directory}/{self.name}.log")
        hosts = {host["host"]: host for host in self.pool.status()["hosts"]}
        leased = hosts.get(self.name, {}).get("lease_left_seconds") is not None
        with contextlib.suppress(Refused):
            return leased and self.vm("list")["trouble"] is None
        return False


class PoolGuest(Guest):
    """A guest that a host of a pool starts."""

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
        """Lines that the guest wrote to its second port, with the time when they came."""
        self._listener: socket.socket | None = None
        self._pid = 0
        host.pool.on_exit(self)

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        return self._pid

    def follow(self) -> None:
        """Speaks to the process that the guest was moved to."""
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
        # A guest that moves has its disk open twice, so that it cannot be a snapshot of one process.
        root = self._temporary / "root"
        subprocess.run(["cp", "--sparse=always", str(self._root), str(root)], check=True)
        lab, ticks = self._temporary / "lab", self._temporary / "ticks"
        self._listener = _listener(lab)
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
        """From the request to a guest that runs: slices and all, but for its boot."""
        self._pid = started["process"]["pid"]
        self._listener.settimeout(BOOT_SECONDS_MAX)
        self._channel = Channel(self._listener.accept()[0])
        ready = self._channel.event("boot", lambda event: event["event"] == "ready", BOOT_SECONDS_MAX)
        self.boot_seconds = time.monotonic() - begin
        self.release = str(ready["kernel"])

    def _hypervisor(self, argv: Sequence[str], directory: Path) -> dict[str, object]:
        """What a guest's file says so that QEMU gets such arguments; other files go into `directory`, where it is."""
        del directory
        return {"arguments": list(argv)}

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pid:
            with contextlib.suppress(Refused):
                self.host.vm("stop", self.vm.name, "--now", timeout_s=_STOP_SECONDS)
        self.destroy()

    def destroy(self) -> None:
        """Ends its processes even where its host cannot."""
        for file in self.host.home.glob(f"{self.vm.name}.*.pid"):
            _kill_guest(file)
        self._pid = 0
        self.ticks.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._remove_temporary()


def first_event(explain: Callable[[], dict[str, Any]], text: str, timeout_s: float, every_s: float) -> dict[str, Any]:
    """The first event that contains a text, of a guest that is explained by that.

    Raises:
        GuestTimeout: none came in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        record = explain()
        for event in record["events"]:
            if text in event["what"]:
                found: dict[str, Any] = event
                return found
        if time.monotonic() > deadline:
            name = record["request"]["name"]
            raise GuestTimeout(f"guest {name}: {text!r} did not happen within {timeout_s:g} s")
        time.sleep(every_s)


def slice_of(file: Path) -> tuple[int, int]:
    """EMC and index of the slice that a file is, or was, of; the turn, which changes with the owner, is left out."""
    return int(file.parent.name.removeprefix("emc-")), int(file.name.removeprefix("slice-").split(".")[0])


class Ticks:
    """Lines from a guest with the times when they came, over all the processes that it is ever in."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self._listener: socket.socket | None = None

    def listen(self, path: Path) -> None:
        """Takes lines at a socket."""
        self._listener = listener = _listener(path)
        threading.Thread(target=self._accept, args=(listener,), name="ticks", daemon=True).start()

    def close(self) -> None:
        """Takes no more."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def gap_seconds(self, begin: float, end: float) -> float:
        """The longest time without a line between two times of `time.monotonic`."""
        at = [when for when, _ in self.lines if begin <= when <= end]
        return max((after - before for before, after in pairwise(at)), default=end - begin)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._read, args=(connection,), name="ticks", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("r", errors="replace") as lines:
            for line in lines:
                self.lines.append((time.monotonic(), line.strip()))


def _kill_guest(file: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        # The number may be another process's by now.
        if str(file).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, kindly at first."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(4)
    return listener
