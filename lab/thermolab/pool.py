"""A memory pool on this machine: the pool manager and hosts, run as in production.

Two things differ from production: slices are small, and the guests' processors are emulated.
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
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import GuestTimeout, LabError
from .lab import Lab
from .outages import SmallDisk, Wire

SLICE_MIB = 128
"""The smallest possible slice: one memory block that Linux can bring online."""

GUEST_ADDRESS = "10.0.2.100"
"""The manager's address for hosts that are guests themselves."""

LEASE_SECONDS = 5
"""Lease of a host: how long it may stay silent before the manager considers it lost."""

_MEMORY = Path("/dev/shm")  # noqa: S108 -- a memory file system is the point here
_UP_SECONDS = 30.0
_POLL_SECONDS = 0.05


class Refused(LabError):
    """A `thermocline pool` command failed; the text is its error output."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Monitor settings of a host: limits above which a guest is mitigated."""

    period: str = "2s"
    touched: str = "5%"
    accessed: str = "0.5%"
    budget: str = "1%"
    attempts: int = 3
    """Mitigation attempts before giving up; 0: guests are monitored and never moved."""


class Pool:
    """A pool that runs within a `with` block; all its processes are gone when the block is left."""

    def __init__(
        self,
        lab: Lab,
        slices: int,
        hosts: Sequence[str] = ("host-a",),
        *,
        wire: Wire | None = None,
        disk_mib: int = 0,
        shared: bool = False,
    ) -> None:
        self.lab = lab
        self.slices = slices
        self._names = tuple(hosts)
        self._wire = wire
        """Connects hosts in another network namespace to the manager; other hosts use loopback."""
        self._disk_mib = disk_mib
        """Size of a separate disk for the ledger; 0: the ledger is in the pool's directory."""
        self._shared = shared
        """Whether the slices are parts of one file, `device`, that guests see as a device; otherwise each is a file."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = contextlib.ExitStack()
        self.directory = Path()
        """Holds slice files (`slices/emc-0`), certificates, configurations and logs."""

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
        addresses = ["127.0.0.1", GUEST_ADDRESS] + ([self._wire.near] if self._wire else [])
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
            f"[[emcs]]\nslices = {self.slices}\n" + (f'device = "{self.device}"\n' if self._shared else ""),
        )
        if self._shared:
            with self.device.open("wb") as file:
                file.truncate(self.slices * SLICE_MIB << 20)
        self.command("pool", "manager", "init", "--config", str(self.directory / "manager.toml"))
        self.start_manager()

    @property
    def device(self) -> Path:
        """The file behind a shared device."""
        return self.directory / "device"

    @property
    def port(self) -> int:
        """The manager's port on this machine."""
        return self._port

    def start_manager(self) -> None:
        """Starts or restarts the manager and waits until it answers."""
        self.manager = self.spawn("manager", "pool", "manager", "--config", str(self.directory / "manager.toml"))
        self.until("the manager answers", self._answers)

    def kill_manager(self) -> None:
        """Kills the manager with SIGKILL, as in a crash."""
        self.manager.kill()
        self.manager.wait()

    def host(
        self,
        name: str,
        watch: Watch = Watch(),  # noqa: B008 -- frozen
        *,
        local_mib: int = 4096,
        threads: str = "multi",
        remote: bool = False,
        hypervisor: str = "",
        more: str = "",
    ) -> "Host":
        """Starts a host, which is stopped with the pool.

        `threads` must be `single` if its guests are moved between processes. A `remote` host runs behind the pool's
        wire. `hypervisor` replaces the hypervisor section of its configuration (default: QEMU); `more` is appended.
        """
        near = self._wire.near if remote and self._wire else "127.0.0.1"
        # Not as root everywhere, and the machine's cgroups are never changed: scenario `confined` has the other case.
        emulated = f'accelerator = "tcg,thread={threads}"\ncpu = "max,la57=off"\nconfine = false\n'
        hypervisor = hypervisor or f"[qemu]\n{emulated}"
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
        return Host(self, name, home, self._wire.prefix if remote and self._wire else ())

    def command(self, *argv: str, timeout_s: float = 120.0) -> str:
        """Returns the standard output of a `thermocline` command.

        Raises:
            Refused: the command failed.
        """
        program = str(self.lab.program("thermocline"))
        done = subprocess.run([program, *argv], capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise Refused(f"`thermocline {' '.join(argv)}`: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def spawn(self, log: str, *argv: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Starts a daemon that is stopped with the pool and killed with this process."""
        program = str(self.lab.program("thermocline"))
        line = ["setpriv", "--pdeathsig", "KILL", *prefix, program, *argv]
        with (self.lab.directory / f"{log}.log").open("ab") as out:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.on_end(end_process, process)
        return process

    def on_end(self, end: Callable[[subprocess.Popen[bytes]], None], process: subprocess.Popen[bytes]) -> None:
        """Calls `end(process)` when the pool is closed, before everything registered earlier."""
        self._stack.callback(end, process)

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the pool is closed, at the latest."""
        self._stack.callback(callback)

    def status(self) -> dict[str, Any]:
        """Returns the pool's status as reported by its manager."""
        status: dict[str, Any] = json.loads(self._status())
        return status

    def counts(self) -> dict[str, int]:
        """Returns the number of slices in each state."""
        counts: dict[str, int] = self.status()["slices"]
        return counts

    def slices_by_state(self) -> list[dict[str, Any]]:
        """Returns all slices as listed by the manager's API."""
        tls = self.directory / "tls"
        context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        context.load_cert_chain(str(tls / "operator.pem"), str(tls / "operator.key"))
        with urllib.request.urlopen(f"https://127.0.0.1:{self._port}/v1/slices", context=context) as answer:
            listed: list[dict[str, Any]] = json.load(answer)["slices"]
        return listed

    def until_free(self, slices: int, timeout_s: float = 60.0) -> float:
        """Waits until exactly `slices` slices are free; returns the seconds waited."""
        begin = time.monotonic()
        self.until(f"{slices} slices are free", lambda: self.counts()["free"] == slices, timeout_s)
        return time.monotonic() - begin

    def free_files(self) -> list[Path]:
        """Returns the files of free slices."""
        free = {(slice_["emc"], slice_["index"]) for slice_ in self.slices_by_state() if slice_["state"] == "free"}
        return [file for file in self.files() if slice_of(file) in free]

    def files(self) -> list[Path]:
        """Returns the files of all slices."""
        return sorted((self.directory / "slices").glob("emc-*/slice-*"))

    def _status(self) -> str:
        reach = ("--manager", f"https://127.0.0.1:{self._port}", "--identity", str(self.directory / "tls" / "operator"))
        return self.command("pool", "status", *reach, "--format", "json")

    def _answers(self) -> bool:
        if self.manager.poll() is not None:
            raise LabError(f"the pool's manager exited; see {self.lab.directory}/manager.log")
        with contextlib.suppress(Refused):
            self._status()
            return True
        return False

    def _write(self, name: str, values: Mapping[str, object], more: str) -> None:
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        (self.directory / name).write_text("\n".join(lines) + "\n" + more)

    def until(self, what: str, holds: Callable[[], bool], timeout_s: float = _UP_SECONDS) -> None:
        """Waits until `holds()` is true.

        Raises:
            LabError: it was not true within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise LabError(f"{what}: not within {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)


class Host:
    """The daemon of one pool host."""

    def __init__(self, pool: Pool, name: str, home: Path, prefix: Sequence[str] = ()) -> None:
        self.pool = pool
        self.name = name
        self.home = home
        self._prefix = tuple(prefix)
        self.start()

    def start(self) -> None:
        """Starts or restarts the daemon and waits until it has a lease."""
        config = str(self.pool.directory / f"{self.name}.toml")
        self.process = self.pool.spawn(self.name, "pool", "host", "--config", config, prefix=self._prefix)
        self.until_up()

    def until_up(self, timeout_s: float = _UP_SECONDS) -> None:
        """Waits until the daemon has a lease and reports no error."""
        self.pool.until(f"{self.name} is up", self._is_up, timeout_s)

    def kill(self) -> None:
        """Kills the daemon with SIGKILL, as in a crash; its guests keep running."""
        self.process.kill()
        self.process.wait()

    def vm(self, *argv: str, timeout_s: float = 300.0) -> Any:
        """Returns the output of a `thermocline pool vm` command.

        Raises:
            Refused: the command failed.
        """
        runtime = ("--runtime", str(self.home), "--format", "json")
        return json.loads(self.pool.command("pool", "vm", *argv, *runtime, timeout_s=timeout_s))

    def explain(self, name: str) -> dict[str, Any]:
        """Returns the host's record of a guest."""
        record: dict[str, Any] = self.vm("explain", name)
        return record

    def start_bare(self, name: str, local_mib: int, pool_mib: int) -> None:
        """Starts a guest with memory and nothing to boot.

        Raises:
            Refused: it did not start, or the host exited before it answered.
        """
        file = self.home / f"{name}.toml"
        file.write_text(f'name = "{name}"\ncores = 1\nmemory = "{local_mib + pool_mib}MiB"\npool = "{pool_mib}MiB"\n')
        self.vm("start", str(file))

    def names(self) -> list[str]:
        """Returns the names of its guests."""
        return [line["name"] for line in self.vm("list")["guests"]]

    def guest_pids(self) -> Iterator[int]:
        """Yields process ids of its guests, including guests that the daemon no longer knows."""
        for file in self.home.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                if not file.name.startswith("pool-host"):
                    yield int(file.read_text())

    def kill_guest(self, name: str) -> bool:
        """Kills a guest's processes with SIGKILL, as in a crash; returns whether there were any."""
        files = list(self.home.glob(f"{name}.*.pid"))
        for file in files:
            kill_guest(file)
        return bool(files)

    def event(self, name: str, text: str, timeout_s: float) -> dict[str, Any]:
        """Returns the first event of a guest whose text contains `text`.

        Raises:
            GuestTimeout: no such event within `timeout_s`.
        """
        return first_event(lambda: self.explain(name), text, timeout_s, _POLL_SECONDS)

    def samples(self, name: str, count: int, timeout_s: float = 120.0) -> dict[str, int]:
        """Returns the sums over the monitor's next `count` samples of a guest."""
        before = self.explain(name)["samples"]
        deadline = time.monotonic() + timeout_s
        while (now := self.explain(name)["samples"])["count"] < before["count"] + count:
            if time.monotonic() > deadline:
                raise GuestTimeout(f"guest {name}: the monitor did not take {count} samples within {timeout_s:g} s")
            time.sleep(_POLL_SECONDS)
        return {key: now[key] - before[key] for key in now}

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise LabError(f"{self.name} exited; see {self.pool.lab.directory}/{self.name}.log")
        hosts = {host["host"]: host for host in self.pool.status()["hosts"]}
        leased = hosts.get(self.name, {}).get("lease_left_seconds") is not None
        with contextlib.suppress(Refused):
            return leased and self.vm("list")["pool_error"] is None
        return False


def first_event(explain: Callable[[], dict[str, Any]], text: str, timeout_s: float, every_s: float) -> dict[str, Any]:
    """Returns the first event whose text contains `text`, polling `explain` every `every_s` seconds.

    Raises:
        GuestTimeout: no such event within `timeout_s`.
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
            raise GuestTimeout(f"guest {name}: no event contains {text!r} within {timeout_s:g} s")
        time.sleep(every_s)


def slice_of(file: Path) -> tuple[int, int]:
    """Returns EMC and index of the slice of `file`, which may be deleted; the generation in its name is ignored."""
    return int(file.parent.name.removeprefix("emc-")), int(file.name.removeprefix("slice-").split(".")[0])


def kill_guest(file: Path) -> None:
    """Kills the guest process with the pid in `file`, unless the pid was reused."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        # The pid may belong to another process by now.
        if str(file).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends a process by SIGTERM, and by SIGKILL after 10 s."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
