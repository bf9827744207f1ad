"""The command `thermocline model` as functions of file names and bytes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The command failed with a message; it would fail again."""


class Killed(Exception):
    """The command was killed (out of memory, machine failure); a retry may succeed."""


@dataclass(frozen=True)
class Share:
    """The input of one task: whole files, or row groups of one file."""

    trace: tuple[str, ...]
    groups: str | None = None


@dataclass(frozen=True)
class Model:
    """The model with the arguments of one question.

    `program` is the path of the binary on every machine of the cluster. `question` are the arguments of `thermocline model`
    that all tasks share: `--percentiles`, `--what-if`, `--by`, `--set` and so on.
    """

    program: str = "thermocline"
    question: tuple[str, ...] = ()

    def plan(self, trace: list[str], workers: int) -> list[Share]:
        """Returns at most `workers` shares of similar size, none of which splits a job."""
        shares = json.loads(self._run("--trace", *trace, "--plan", str(workers), "--format", "json"))
        return [Share(tuple(share["trace"]), share.get("groups")) for share in shares]

    def count(self, share: Share, threads: int = 1) -> bytes:
        """Returns the tally of one share."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            tally = Path(name) / "part.tally"
            groups = ("--groups", share.groups) if share.groups else ()
            names = "\n".join(share.trace)
            arguments = ("--trace-list", "-", *groups, "--threads", str(threads), "--tally", str(tally))
            self._run(*arguments, *self.question, stdin=names)
            return tally.read_bytes()

    def add(self, *tallies: bytes) -> bytes:
        """Returns the sum of several tallies."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            whole = Path(name) / "whole.tally"
            self._run("--merge", *_written(Path(name), tallies), "--tally", str(whole))
            return whole.read_bytes()

    def answer(self, tally: bytes, arguments: tuple[str, ...] = ()) -> str:
        """Returns the model's output for a tally; `arguments` are those of `thermocline model --merge`, such as `--objective`."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            return self._run("--merge", *_written(Path(name), (tally,)), *arguments)

    def report(self, tally: bytes, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        """Returns the model's output as data."""
        report: dict[str, Any] = json.loads(self.answer(tally, (*arguments, "--format", "json")))
        return report

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        return run(self.program, "model", *arguments, stdin=stdin)


def run(program: str, *arguments: str, stdin: str | None = None) -> str:
    """Returns the standard output of a command.

    Raises:
        Killed: the command was killed; a retry may succeed.
        Refused: the command failed.
    """
    ran = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)
    message = ran.stderr.strip()
    if ran.returncode < 0:
        raise Killed(f"{program} was killed by signal {-ran.returncode}: {message}")
    if ran.returncode > 0:
        raise Refused(message or f"{program} exited with {ran.returncode}")
    return ran.stdout


def _written(directory: Path, tallies: tuple[bytes, ...]) -> list[str]:
    """Writes the tallies to files of a directory."""
    paths = [directory / f"{index}.tally" for index in range(len(tallies))]
    for path, tally in zip(paths, tallies, strict=True):
        path.write_bytes(tally)
    return [str(path) for path in paths]
