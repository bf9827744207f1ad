"""A running guest: its start, its operations through the control channel, and its end."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from . import initrd, qemu
from .channel import Channel, Message
from .errors import CommandFailed, GuestGone, LabError
from .kernels import Kernel

BOOT_SECONDS_MAX = 90.0
"""Time limit for a boot on a loaded host; scenarios check the time that a boot should take."""

CGROUP_ROOT = "/sys/fs/cgroup"

_ANSWER_SECONDS = 60.0
# Emulated time is slow: the guest's own time limit must expire before the host's.
_GRACE_SECONDS = 30.0
_CONSOLE_LINES = 25
_BOOTS = 3
"""Attempts to boot a guest when an emulator fault crashes its kernel."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command in the guest that has exited: its status and output."""

    argv: tuple[str, ...]
    status: int | None
    """Exit status; `None` if a signal killed it."""
    signal: int | None
    stdout: str
    stderr: str
    cpu_s: float
    """CPU time of the command and its children, in emulated seconds."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a spawned program exited: by a status or by a signal."""

    status: int | None
    signal: int | None


class Guest:
    """A guest that runs from `__enter__` to `__exit__`; QEMU is killed and reaped when the block is left."""

    def __init__(
        self, kernel: Kernel, machine: qemu.Machine, *, root: Path, binaries: Mapping[str, Path], console: Path
    ) -> None:
        self.kernel = kernel
        self.machine = machine
        self.console = console
        self.boot_seconds = 0.0
        """Seconds from QEMU's start to the control program's first message; set once the guest is up."""
        self.release = ""
        """Output of `uname -r` in the guest."""
        self._qemu_log = console.with_name(console.name.replace("console", "qemu"))
        self._root = root
        self._binaries = dict(binaries)
        self._temporary: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    def __enter__(self) -> Self:
        for left in reversed(range(_BOOTS)):
            try:
                self._start()
                break
            except BaseException as error:
                self._stop()
                if not (left and isinstance(error, GuestGone) and self._emulator_failed()):
                    raise
        return self

    def _emulator_failed(self) -> bool:
        """Returns whether an emulator fault crashed the kernel.

        Linux patches its code at run time and uses breakpoints to catch other CPUs in the patched code. An emulated CPU
        that was delayed for long may hit a breakpoint after its removal, which the kernel treats as fatal. This happens
        at some boots on a busy host and does not depend on the programs in the guest.
        """
        return self.console.exists() and "Oops: int3" in self.console.read_text(errors="replace")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """QEMU's process id on the host."""
        if self._process is None:
            raise LabError("the guest is not up: use it in a `with` block")
        return self._process.pid

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cgroup: str | None = None,
        stdin: str | None = None,
        check: bool = True,
    ) -> Completed:
        """Runs a command to completion, in the cgroup directory `cgroup` if given.

        Raises:
            CommandFailed: `check` is true and the status is not 0.
            Refused: it could not be started, or exceeded `timeout_s` and was killed.
        """
        fields = _given(env=None if env is None else dict(env), cgroup=cgroup, stdin=stdin)
        fields |= {"argv": list(argv), "timeout_s": timeout_s}
        reply = self._ask("run", fields, timeout_s + _GRACE_SECONDS)
        done = Completed(
            argv=tuple(argv),
            status=reply["status"],
            signal=reply["signal"],
            stdout=reply["stdout"],
            stderr=reply["stderr"],
            cpu_s=reply["cpu_s"],
        )
        if check and done.status != 0:
            how = f"signal {done.signal}" if done.status is None else f"status {done.status}"
            output = (done.stderr or done.stdout).strip()
            raise CommandFailed(f"`{' '.join(argv)}` exited with {how} in the guest: {output or 'no output'}")
        return done

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cgroup: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
    ) -> int:
        """Starts a program and returns its pid; its output goes to files in the guest or is discarded."""
        fields = _given(env=None if env is None else dict(env), cgroup=cgroup, stdout=stdout, stderr=stderr)
        pid: int = self._ask("spawn", {"argv": list(argv), **fields})["pid"]
        return pid

    def wait_exit(self, pid: int, timeout_s: float = 60.0) -> Exit:
        """Waits for the exit of a spawned program; once per pid."""

        def is_its_end(event: Message) -> bool:
            return bool(event["event"] == "exit" and event["pid"] == pid)

        event = self._up().event(f"exit of process {pid}", is_its_end, timeout_s)
        return Exit(event["status"], event["signal"])

    def kill(self, pid: int, number: int = signal.SIGTERM) -> None:
        """Sends a signal to a process in the guest."""
        self._ask("kill", {"pid": pid, "signal": int(number)})

    def read(self, path: str) -> str:
        """Returns the text of a file in the guest."""
        data: str = self._ask("read", {"path": path})["data"]
        return data

    def number(self, path: str) -> int:
        """Returns the only number in a file, such as memory.current."""
        return int(self.read(path))

    def flat_keyed(self, path: str) -> dict[str, int]:
        """Parses a file of lines `key number`, such as memory.stat or /proc/vmstat."""
        pairs = (line.split() for line in self.read(path).splitlines())
        return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) >= 2}

    def write(self, path: str, data: str, *, append: bool = False) -> None:
        """Writes a file in the guest, with a single system call."""
        self._ask("write", {"path": path, "data": data, "append": append})

    def exists(self, path: str) -> bool:
        """Returns whether a file or directory exists."""
        return self.run(["test", "-e", path], check=False).status == 0

    def mkdir(self, path: str) -> None:
        """Creates a directory and its parents; existing ones are not an error."""
        self._ask("mkdir", {"path": path})

    def cgroup(self, name: str) -> str:
        """Creates the cgroup `name` (relative to the root, may have parents) and returns its directory."""
        path = f"{CGROUP_ROOT}/{name}"
        self.mkdir(path)
        return path

    def expect(self, path: str, contains: str, timeout_s: float = 60.0) -> str:
        """Waits for the first line of a growing file that contains a text; the file may not exist yet."""
        fields = {"path": path, "contains": contains, "timeout_s": timeout_s}
        reply = self._ask("expect", fields, timeout_s + _GRACE_SECONDS)
        line: str = reply["line"]
        return line

    def keep(self, path: str) -> Path:
        """Copies a text file of the guest, such as a log, to the results directory on the host."""
        target = self.console.with_name(f"{self.console.stem.removesuffix('-console')}-{Path(path).name}")
        target.write_text(self.read(path))
        return target

    def _ask(self, op: str, fields: Mapping[str, object], wait_s: float = _ANSWER_SECONDS) -> Message:
        try:
            return self._up().request(op, fields, wait_s)
        except GuestGone as error:
            raise GuestGone(f"{error}\n{self._last_lines()}") from error

    def _up(self) -> Channel:
        if self._channel is None:
            raise LabError("the guest is not up: use it in a `with` block")
        return self._channel

    def _start(self) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="thermolab-"))
        ramdisk = self._temporary / "initrd"
        ramdisk.write_bytes(initrd.base(self.kernel).read_bytes() + initrd.programs(self._binaries))
        swap = None
        if self.machine.swap is not None:
            swap = self._temporary / "swap"
            with swap.open("wb") as file:
                file.truncate(self.machine.swap.size_bytes)
        self.console.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            argv = qemu.command(
                self.machine,
                image=self.kernel.image,
                initrd=ramdisk,
                root=self._root,
                swap=swap,
                console=self.console,
                channel_fd=theirs.fileno(),
            )
            begin = time.monotonic()
            # setpriv: QEMU is killed if this process dies.
            with self._qemu_log.open("wb") as log:
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *argv],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
        self._channel = Channel(ours)
        try:
            ready = self._channel.event("boot", lambda event: event["event"] == "ready", BOOT_SECONDS_MAX)
        except LabError as error:
            raise type(error)(f"kernel {self.kernel.name}: {error}\n{self._last_lines()}") from error
        self.boot_seconds = time.monotonic() - begin
        self.release = str(ready["kernel"])
        # QEMU has opened the files, so they can be deleted now and are gone even if this process is killed.
        self._remove_temporary()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _last_lines(self) -> str:
        """Returns the last lines of QEMU's log and of the guest's console."""
        logs = [path.read_text(errors="replace") for path in (self._qemu_log, self.console) if path.exists()]
        last = [line for log in logs for line in log.splitlines()[-_CONSOLE_LINES:]]
        return f"last lines of {self.console}:\n  " + "\n  ".join(last)


def _given(**fields: object) -> dict[str, object]:
    """Returns the fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}
