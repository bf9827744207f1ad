"""A study on disk: what is searched, in `study.json`, and what was found, in `looks.jsonl`.

Every look is one line, appended and brought to the disk before the next one begins. A process that is killed at any
instruction loses the look at hand and nothing else: a line without its end is cut off by the next start. Nothing is
ever rewritten, so a study that is being written can be read, copied and reported on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from . import space as spaces
from .choose import Objective, Pair
from .designers import Done
from .program import Age, Fleet, Source
from .space import Space

VERSION = 1
"""Of both files. A newer one is refused by name; an older one will still be read."""

SPEC, LOOKS, LOCK = "study.json", "looks.jsonl", "lock"

Kind = Literal["base", "trial", "probe", "holdout"]
"""The parameters in effect; a designer's suggestion; a knob moved alone, for its sensitivity; the week not tuned on."""


class BadStudy(Exception):
    """A study that cannot be read, or not be gone on with, and what to do about it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """What a study is of. It never changes."""

    space: Space
    objective: Objective
    base: Mapping[str, float]
    """The point in effect when the study began."""
    base_pair: tuple[float, float] | None
    """K and S in effect; None where they do not matter: under another policy, or where a command measures."""
    source: Source | None
    """What the model replays; None where a command measures."""
    holdout: Source | None = None
    command: tuple[str, ...] = ()
    """What measures in the model's place; nothing for the model, or for looks that are told."""
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Settings that hold for every look."""
    class_limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Where classes get K and S of their own: what each has been promised, per minute, of those known to the configuration."""
    by_class: bool = False
    grid: tuple[str, ...] = ()
    policy: str = "cold_age"
    """What the model replays: `cold_age`, or `pressure` or `slowdown` by the time that far memory would cost."""
    tier_latency: str = ""
    """What the return of a page, or one access to slow memory, takes, for these two."""
    designer: str = "egobox"
    seed: int = 1
    program: str = ""
    """The version of the program that began it."""
    began_unix: float = 0.0
    after: str = ""
    """The study that this one follows, where it is a retune."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a look found."""

    value: float
    """Coverage of the best pair, or of the calmest where none holds; or what a command measured."""
    excess: float
    """The lowest rate to be had, above the limit, as a share of it; or what a command measured."""
    pair: Pair | None = None
    pairs: tuple[Pair, ...] = ()
    groups: Mapping[str, tuple[Pair, ...]] = dataclasses.field(default_factory=dict)
    fleet: Fleet | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line: a look, and what it found or why it failed."""

    number: int
    kind: Kind
    point: Mapping[str, float]
    outcome: Outcome | None
    failure: str = ""
    took_seconds: float = 0.0
    at_unix: float = 0.0

    @property
    def done(self) -> Done:
        """As designers see it."""
        return Done(self.point, self.outcome.value, self.outcome.excess) if self.outcome else Done(self.point)


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """A study as read: what it is of and all that was found so far."""

    directory: Path
    spec: Spec
    entries: tuple[Entry, ...]
    ages: tuple[Age, ...] = ()
    """The age of the memory that was tuned on, for telling drift."""

    def of(self, *kinds: Kind) -> list[Entry]:
        """The entries of these kinds, in order."""
        return [entry for entry in self.entries if entry.kind in kinds]

    def best(self) -> Entry | None:
        """Of all that was looked at on the tuning week, the feasible one of the most value; of equals, the first."""
        feasible = [entry for entry in self.of("base", "trial", "probe") if entry.done.feasible]
        return max(feasible, key=lambda entry: entry.outcome.value if entry.outcome else 0.0, default=None)


def create(directory: Path, spec: Spec, ages: list[Age]) -> None:
    """Begins a study. The directory must not hold one."""
    if (directory / SPEC).exists():
        raise BadStudy(f"{directory} holds a study already; go on with it (leave out what describes it), or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    told = {"version": VERSION, "spec": _plain(spec), "ages": _plain(ages)}
    told["spec"]["space"] = spaces.to_json(spec.space)
    partial = directory / (SPEC + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / SPEC)
    _sync(directory)


def read(directory: Path) -> Study:
    """Reads a study, also one that is being written."""
    try:
        told = json.loads((directory / SPEC).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadStudy(f"{directory} holds no study; begin one with `run --study {directory}` and what it is to be of") from error
    except ValueError as error:
        raise BadStudy(f"{directory / SPEC} is not JSON ({error}); restore it from a copy") from error
    _check_version(directory / SPEC, told)
    try:
        spec = _spec(told["spec"])
        ages = tuple(Age(**age) for age in told["ages"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadStudy(f"{directory / SPEC} is not a study's ({error!r}); restore it from a copy") from error
    return Study(directory, spec, tuple(_entries(directory / LOOKS)), ages)


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[Log]:
    """The right to add to a study; another process that has it is told of. What a killed one left half is cut off."""
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadStudy(f"another process is at work in {directory}; wait for it, or end it") from error
        path = directory / LOOKS
        path.touch()
        _cut(path)
        with path.open("ab") as file:
            yield Log(file.fileno())


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """Where entries go."""

    descriptor: int

    def add(self, entry: Entry) -> None:
        """Appends an entry; returns when it is on the disk."""
        line = json.dumps({"version": VERSION} | _entry_json(entry), separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self.descriptor, data) :]
        os.fsync(self.descriptor)


def entry(number: int, kind: Kind, point: Mapping[str, float], outcome: Outcome | None, failure: str, took: float) -> Entry:
    """An entry of now."""
    return Entry(number, kind, dict(point), outcome, failure, round(took, 3), round(time.time(), 3))


def _cut(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _entries(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            _check_version(path, told)
            yield _entry(told)
        except (ValueError, KeyError, TypeError) as error:
            raise BadStudy(f"{path}, line {number}: not a look ({error!r}); take the line out, or restore the file") from error


def _check_version(path: Path, told: Mapping[str, Any]) -> None:
    version = told.get("version") if isinstance(told, dict) else None
    if not isinstance(version, int) or version < 1:
        raise BadStudy(f"{path} tells no version; it was not written by this tuner")
    if version > VERSION:
        raise BadStudy(f"{path} is of version {version}, and this tuner knows {VERSION}; take a newer one")


_PAIR_FIELDS = [field.name for field in dataclasses.fields(Pair)]


def _pair_json(pair: Pair) -> list[float | None]:
    """A pair without its names: a look holds hundreds of them."""
    return [getattr(pair, name) for name in _PAIR_FIELDS]


def _pair(told: list[Any]) -> Pair:
    return Pair(*told)


def _entry_json(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {"number": entry.number, "kind": entry.kind, "point": dict(entry.point)}
    told |= {"took_seconds": entry.took_seconds, "at_unix": entry.at_unix}
    if entry.outcome is None:
        return told | {"failure": entry.failure}
    found = entry.outcome
    return told | {
        "value": found.value,
        "excess": found.excess,
        "pair": None if found.pair is None else _pair_json(found.pair),
        "pairs": [_pair_json(pair) for pair in found.pairs],
        "groups": {name: [_pair_json(pair) for pair in pairs] for name, pairs in found.groups.items()},
        "fleet": None if found.fleet is None else dataclasses.asdict(found.fleet),
    }


def _entry(told: Mapping[str, Any]) -> Entry:
    outcome = None
    if "failure" not in told:
        outcome = Outcome(
            value=float(told["value"]),
            excess=float(told["excess"]),
            pair=None if told["pair"] is None else _pair(told["pair"]),
            pairs=tuple(_pair(pair) for pair in told["pairs"]),
            groups={name: tuple(_pair(pair) for pair in pairs) for name, pairs in told["groups"].items()},
            fleet=None if told["fleet"] is None else Fleet(**told["fleet"]),
        )
    point = {str(key): float(value) for key, value in told["point"].items()}
    return Entry(
        int(told["number"]),
        told["kind"],
        point,
        outcome,
        str(told.get("failure", "")),
        told["took_seconds"],
        told["at_unix"],
    )


def _plain(value: Any) -> Any:
    """Dataclasses as what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _spec(told: Mapping[str, Any]) -> Spec:
    def source(of: Mapping[str, Any] | None) -> Source | None:
        return None if of is None else Source(**{**of, "trace": tuple(of["trace"])})

    pair = told["base_pair"]
    return Spec(
        **{
            **told,
            "space": spaces.from_json(told["space"]),
            "objective": Objective(**told["objective"]),
            "base_pair": None if pair is None else (pair[0], pair[1]),
            "source": source(told["source"]),
            "holdout": source(told["holdout"]),
            "command": tuple(told["command"]),
            "grid": tuple(told["grid"]),
        }
    )


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
