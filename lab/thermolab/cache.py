"""Artefacts made once: locked while made, complete or absent, never half there."""

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
    """Tell the user what happens now."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def digest(*parts: str | bytes) -> str:
    """Short name for a set of inputs: equal inputs, equal name."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big"))
        whole.update(data)
    return whole.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` against other processes; released by the kernel if this one dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_made(directory: Path) -> bool:
    """Whether an earlier call of `made` finished `directory`."""
    return (directory / _STAMP).exists()


def made(directory: Path, what: str, make: Callable[[Path], None]) -> Path:
    """`directory`, filled by `make` unless an earlier call did; `what` is told to the user.

    `make` works in a temporary directory beside it, which is renamed when all is there: a process that dies
    half-way leaves nothing that a later one would take for whole.
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
    """Standard output of a host command.

    Raises:
        LabError: the command is missing, or ended with a status other than 0; the text holds its last lines.
    """
    words = [str(word) for word in argv]
    whole_env = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    # mkfs and depmod live where a user's PATH often does not lead.
    whole_env["PATH"] = whole_env.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    try:
        # A session of its own: when this process is interrupted, the whole family is told, and may tidy up.
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
        raise LabError(f"`{' '.join(words)}` ended with status {process.returncode}:\n  {tail}")
    return stdout


def _end_session(leader: subprocess.Popen[str]) -> None:
    """End a command and its children, which get the time to remove what they made."""
    os.killpg(leader.pid, signal.SIGTERM)
    try:
        leader.wait(_TIDY_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
