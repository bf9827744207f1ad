"""Artefacts that are made once: locked while being made, and either complete or absent."""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import LabError

_STAMP = "complete"
_TAIL_LINES = 15
_TIDY_SECONDS = 30.0


def say(text: str) -> None:
    """Prints progress for the user."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def digest(*parts: str | bytes) -> str:
    """Returns a short name for a set of inputs; equal inputs give equal names."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks `path` against other processes; the kernel releases the lock if this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_made(directory: Path) -> bool:
    """Returns whether an earlier call of `made` completed `directory`."""
    return (directory / _STAMP).exists()


def made(directory: Path, what: str, make: Callable[[Path], None]) -> Path:
    """Returns `directory`, filled by `make` unless an earlier call did; `what` describes it to the user.

    `make` fills a temporary directory that is renamed when it is complete: if the process dies, no incomplete
    directory is left under the final name.
    """
    if is_made(directory):
        return directory
    with locked(directory.with_name(directory.name + ".lock")):
        if is_made(directory):
            return directory
        partial = directory.with_name(directory.name + ".partial")
        for stale in (partial, directory):
            if stale.exists():
                shutil.rmtree(stale)
        partial.mkdir(parents=True)
        say(f"{what} ...")
        begin = time.monotonic()
        try:
            make(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        (partial / _STAMP).touch()
        partial.rename(directory)
        say(f"{what}: done in {time.monotonic() - begin:.0f} s, kept in {directory}")
    return directory


def call(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Runs a command on the host and returns its standard output.

    Raises:
        LabError: the command is missing, or exited with a status other than 0; the message has its last lines.
    """
    words = [str(word) for word in argv]
    whole_env = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    # mkfs and depmod are in directories that are often missing from a user's PATH.
    whole_env["PATH"] = whole_env.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    try:
        # A session of its own: on an interrupt, all of the command's processes get SIGTERM and can clean up.
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=whole_env,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed: run lab/setup") from error
    with process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            _end_session(process)
            raise
    if process.returncode != 0:
        tail = "\n  ".join((stderr or stdout).splitlines()[-_TAIL_LINES:])
        raise LabError(f"`{' '.join(words)}` exited with status {process.returncode}:\n  {tail}")
    return stdout


def _end_session(leader: subprocess.Popen[str]) -> None:
    """Ends a command and its children by SIGTERM, then SIGKILL."""
    os.killpg(leader.pid, signal.SIGTERM)
    try:
        leader.wait(_TIDY_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
