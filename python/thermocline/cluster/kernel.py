"""The command `thermocline model` as functions of names and bytes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Refused(Exception):
    """The command said that it cannot do this; it would say so again."""


class Killed(Exception):
    """The command was killed (out of memory, machine going down); another try may succeed."""


@dataclass(frozen=True)
class Share:
    """What one task replays: all of some files, or row groups of one."""

    trace: tuple[str, ...]
    groups: str | None = None


@dataclass(frozen=True)
class Model:
    """The model with one question.

    `program` is the binary, by a name that is right on every machine of the cluster. `question` are arguments of `thermocline
    model` that all parts must share: `--percentiles`, `--what-if`, `--by`, `--set` and so on.
    """

    program: str = "thermocline"
    question: tuple[str, ...] = ()

    def plan(self, trace: list[str], workers: int) -> list[Share]:
        """At most so many shares of about the same size, none of which cuts a job."""
        shares = json.loads(self._run("--trace", *trace, "--plan", str(workers), "--format", "json"))
        return [Share(tuple(share["trace"]), share.get("groups")) for share in shares]

    def count(self, share: Share, threads: int = 1) -> bytes:
        """The tally of one share."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            tally = Path(name) / "part.tally"
            groups = ("--groups", share.groups) if share.groups else ()
            names = "\n".join(share.trace)
            arguments = ("--trace-list", "-", *groups, "--threads", str(threads), "--tally", str(tally))
            self._run(*arguments, *self.question, stdin=names)
            return tally.read_bytes()

    def add(self, *tallies: bytes) -> bytes:
        """The tally of several parts together."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            whole = Path(name) / "whole.tally"
            self._run("--merge", *_written(Path(name), tallies), "--tally", str(whole))
            return whole.read_bytes()

    def answer(self, tally: bytes, arguments: tuple[str, ...] = ()) -> str:
        """What the command says of a tally; `arguments` are those of `thermocline model --merge`, such as `--objective`."""
        with tempfile.TemporaryDirectory(prefix="thermocline-") as name:
            return self._run("--merge", *_written(Path(name), (tally,)), *arguments)

    def report(self, tally: bytes, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        """The same as values."""
        report: dict[str, Any] = json.loads(self.answer(tally, (*arguments, "--format", "json")))
        return report

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        return run(self.program, "model", *arguments, stdin=stdin)


def run(program: str, *arguments: str, stdin: str | None = None) -> str:
    """What a command prints.

    Raises:
        Killed: it was killed; another try may succeed.
        Refused: it ended with a complaint.
    """
    ran = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)
    told = ran.stderr.strip()
    if ran.returncode < 0:
        raise Killed(f"{program} was killed by signal {-ran.returncode}: {told}")
    if ran.returncode > 0:
        raise Refused(told or f"{program} ended with {ran.returncode}")
    return ran.stdout


def _written(directory: Path, tallies: tuple[bytes, ...]) -> list[str]:
    """The tallies as files of a directory."""
    paths = [directory / f"{index}.tally" for index in range(len(tallies))]
    for path, tally in zip(paths, tallies, strict=True):
        path.write_bytes(tally)
    return [str(path) for path in paths]
