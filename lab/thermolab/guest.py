"""A running guest: started, spoken to through its control channel, and ended on every way out."""

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
"""Patience with a boot on a loaded host; what a boot should take is for scenarios to say."""

CGROUP_ROOT = "/sys/fs/cgroup"

_ANSWER_SECONDS = 60.0
# Emulated time is slow: an operation's own limit must strike before the host loses patience.
_GRACE_SECONDS = 30.0
_CONSOLE_LINES = 25
_BOOTS = 3
"""Attempts to start a guest whose kernel the emulator lets down."""


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command in the guest ended, and what it printed."""

    argv: tuple[str, ...]
    status: int | None
    """Exit status; `None` if a signal ended it."""
    signal: int | None
    stdout: str
    stderr: str
    cpu_s: float
    """CPU time of the command and its children, in emulated seconds."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a spawned program ended: by a status or by a signal."""

    status: int | None
    signal: int | None


class Guest:
    """A guest that is up from `__enter__` to `__exit__`; QEMU is killed and reaped however the block is left."""

    def __init__(
        self, kernel: Kernel, machine: qemu.Machine, *, root: Path, binaries: Mapping[str, Path], console: Path
    ) -> None:
        self.kernel = kernel
        self.machine = machine
        self.console = console
        self.boot_seconds = 0.0
        """From QEMU's start to the control program's greeting; set once the guest is up."""
        self.release = ""
        """`uname -r`, as the guest says it."""
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
        """Whether the kernel died of a breakpoint of its own making.

        Linux changes its code while it runs, behind a breakpoint that other CPUs may run into. An emulated CPU that was
        held up for long may do so when it is gone already, and the kernel does not know what to make of it. On a busy
        host that ends some boots, and says nothing about what runs in the guest.
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
        """Run a command to its end, in the cgroup directory `cgroup` if one is named.

        Raises:
            CommandFailed: its status is not 0, and `check` was asked for.
            Refused: it could not be started, or outlived `timeout_s` and was killed.
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
            raise CommandFailed(f"`{' '.join(argv)}` ended with {how} in the guest: {output or 'no output'}")
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
        """Start a program and return its pid; its output goes to files in the guest, or nowhere."""
        fields = _given(env=None if env is None else dict(env), cgroup=cgroup, stdout=stdout, stderr=stderr)
        pid: int = self._ask("spawn", {"argv": list(argv), **fields})["pid"]
        return pid

    def wait_exit(self, pid: int, timeout_s: float = 60.0) -> Exit:
        """Wait for the end of a spawned program; once per pid."""

        def is_its_end(event: Message) -> bool:
            return bool(event["event"] == "exit" and event["pid"] == pid)

        event = self._up().event(f"exit of process {pid}", is_its_end, timeout_s)
        return Exit(event["status"], event["signal"])

    def kill(self, pid: int, number: int = signal.SIGTERM) -> None:
        """Send a signal to a process in the guest."""
        self._ask("kill", {"pid": pid, "signal": int(number)})

    def read(self, path: str) -> str:
        """The text of a file in the guest."""
        data: str = self._ask("read", {"path": path})["data"]
        return data

    def number(self, path: str) -> int:
        """The only number in a file, such as memory.current."""
        return int(self.read(path))

    def flat_keyed(self, path: str) -> dict[str, int]:
        """A file of lines `key number`, such as memory.stat or /proc/vmstat."""
        pairs = (line.split() for line in self.read(path).splitlines())
        return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) >= 2}

    def write(self, path: str, data: str, *, append: bool = False) -> None:
        """Write a file in the guest, a kernel file in one system call."""
        self._ask("write", {"path": path, "data": data, "append": append})

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        return self.run(["test", "-e", path], check=False).status == 0

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""
        self._ask("mkdir", {"path": path})

    def cgroup(self, name: str) -> str:
        """Make the cgroup `name` (relative to the root, may have parents) and return its directory."""
        path = f"{CGROUP_ROOT}/{name}"
        self.mkdir(path)
        return path

    def expect(self, path: str, contains: str, timeout_s: float = 60.0) -> str:
        """The first line of a growing file that contains a text; the file need not exist yet."""
        fields = {"path": path, "contains": contains, "timeout_s": timeout_s}
        reply = self._ask("expect", fields, timeout_s + _GRACE_SECONDS)
        line: str = reply["line"]
        return line

    def keep(self, path: str) -> Path:
        """Copy a text file of the guest, a log for instance, to the host beside the console's log."""
        target = self.console.with_name(f"{self.console.stem.removesuffix('-console')}-{Path(path).name}")
        target.write_text(self.read(path))
        return target

    def _ask(self, op: str, fields: Mapping[str, object], wait_s: float = _ANSWER_SECONDS) -> Message:
        try:
            return self._up().request(op, fields, wait_s)
        except GuestGone as error:
            raise GuestGone(f"{error}\n{self._last_words()}") from error

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
            # A harness that is killed takes its guest along.
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
            raise type(error)(f"kernel {self.kernel.name}: {error}\n{self._last_words()}") from error
        self.boot_seconds = time.monotonic() - begin
        self.release = str(ready["kernel"])
        # QEMU holds what it still needs open, so that nothing is left even if this process is killed.
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

    def _last_words(self) -> str:
        """What QEMU and the guest's console said last."""
        logs = [path.read_text(errors="replace") for path in (self._qemu_log, self.console) if path.exists()]
        said = [line for log in logs for line in log.splitlines()[-_CONSOLE_LINES:]]
        return f"last lines of {self.console}:\n  " + "\n  ".join(said)


def _given(**fields: object) -> dict[str, object]:
    """The fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}
