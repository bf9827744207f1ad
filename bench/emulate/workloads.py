"""The programs that run on emulated slow memory, and their loads."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, AnyStr

_PROGRAMS = Path(__file__).with_name("programs.py")
_START_SECONDS = 60.0


class BenchError(Exception):
    """An error of the benchmark; the message names the object."""


@dataclass(frozen=True, slots=True)
class Second:
    """Operations of one second."""

    ended_at: float
    """Unix time of its end."""
    operations: float


@dataclass(slots=True)
class Done:
    """Operations of a load by second."""

    seconds: list[Second] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Workload:
    """A program of one process with private memory, and its load."""

    name: str
    argv: Sequence[str]
    """Command line of the program; `{socket}` is the socket to listen on."""
    fill: Sequence[str] = ()
    """Command line that fills it once it listens; empty if it fills itself."""
    load: Sequence[str] = ()
    """Command line of its load; `{seconds}` is the duration. Empty if it generates its own load."""


def all_of(load: Path) -> list[Workload]:
    """Redis with a hotspot, memcached with Zipf's law, and two that are their own load. `load` is `labguest`."""
    redis = [str(load), "load", "redis", "--socket", "{socket}"]
    memcached = [str(load), "load", "memcached", "--socket", "{socket}"]
    keys, seconds = ["--keys", "200000"], ["--seconds", "{seconds}"]
    # The path must not be a link to the interpreter, which would re-execute itself and end the emulation.
    python = str(Path(sys.executable).resolve())
    return [
        Workload(
            "redis",
            ["redis-server", "--port", "0", "--unixsocket", "{socket}", "--save", "", "--appendonly", "no"],
            [*redis, "fill", *keys],
            [*redis, "run", *keys, *seconds, "--hot-fraction", "0.01", "--hot-share", "0.9", "--write-share", "0.1"],
        ),
        Workload(
            "memcached",
            ["memcached", "-s", "{socket}", "-m", "1024", "-t", "1", "-u", "root", "-o", "no_lru_crawler"],
            [*memcached, "fill", *keys],
            [*memcached, "run", *keys, *seconds, "--zipf", "1"],
        ),
        Workload("tpcb", [python, str(_PROGRAMS), "tpcb", "600000"]),
        Workload("analytics", [python, str(_PROGRAMS), "analytics", "600000"]),
    ]


class Running:
    """A program that was started, possibly by the emulator."""

    def __init__(self, workload: Workload, before: Sequence[str], directory: Path) -> None:
        self._workload = workload
        self._socket = str(directory / "socket")
        argv = [*before, *self._with(workload.argv)]
        pipe = None if workload.fill else subprocess.PIPE
        # A session of its own: only this process handles Ctrl-C.
        self._log = (directory / f"{workload.name}.log").open("wb")
        self._process = subprocess.Popen(
            argv, stdin=pipe or subprocess.DEVNULL, stdout=pipe or self._log, stderr=self._log, start_new_session=True
        )

    def fill(self) -> None:
        """Waits until all data is stored."""
        if not self._workload.fill:
            self._await_ready()
            return
        until = time.monotonic() + _START_SECONDS
        while not Path(self._socket).exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise self._failed("does not listen")
            time.sleep(0.05)
        done = subprocess.run(self._with(self._workload.fill), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{self._workload.name} could not be filled: {done.stderr.strip()}")

    def work(self, seconds: float) -> Done:
        """Runs the load for `seconds`; returns its operations."""
        done = Done()
        if self._workload.load:
            argv = [word.format(seconds=f"{seconds:g}", socket=self._socket) for word in self._workload.load]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as load:
                _take(_opened(load.stdout), done)
            if load.returncode != 0:
                raise BenchError(f"the load of {self._workload.name} exited with status {load.returncode}")
            return done
        stdin = self._process.stdin
        if stdin is None:
            raise self._failed("has no standard input")
        stdin.write(f"{seconds:g}\n".encode())
        stdin.flush()
        _take((line.decode() for line in _opened(self._process.stdout)), done)
        return done

    def stop(self) -> None:
        """Ends it. The emulator forwards the signal, writes its report and exits with the program."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise self._failed("does not exit") from None
        finally:
            self._log.close()

    def _await_ready(self) -> None:
        line = _opened(self._process.stdout).readline()
        if json.loads(line or "{}").get("ready") is not True:
            raise self._failed("exited before it was ready")

    def _with(self, words: Sequence[str]) -> list[str]:
        return [word.format(socket=self._socket) for word in words]

    def _failed(self, what: str) -> BenchError:
        output = Path(self._log.name).read_text(errors="replace").strip()
        return BenchError(f"{self._workload.name} {what}: {output[-2000:]}")


@contextmanager
def running(workload: Workload, before: Sequence[str], directory: Path) -> Iterator[Running]:
    """Runs the program within a `with` block, and stops it when the block is left."""
    program = Running(workload, before, directory)
    try:
        yield program
    finally:
        program.stop()


def _opened(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    if stream is None:
        raise BenchError("a pipe is missing")
    return stream


def _take(lines: Iterable[str], done: Done) -> None:
    for line in lines:
        record = json.loads(line)
        if "ops" in record and "ops_per_s" not in record:
            done.seconds.append(Second(time.time(), record["ops"]))
