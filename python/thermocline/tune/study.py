"""A study on disk: its description in `study.json`, and its evaluations in `evaluations.jsonl`.

Every evaluation is one line, which is appended and synced before the next evaluation begins. A process that is killed loses
only the evaluation in progress: the next start removes an incomplete line. Files are only appended to, so a study can be
read, copied and reported on while it is being written.
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
from .program import Age, Fleet, Source
from .sampling import Evaluation
from .space import Space

VERSION = 1
"""Version of both files. A newer version is refused; older versions remain readable."""

SPEC, EVALUATIONS, LOCK = "study.json", "evaluations.jsonl", "lock"

Kind = Literal["base", "trial", "probe", "holdout"]
"""The parameters in effect; a designer's suggestion; one knob changed, for its sensitivity; the held-out trace."""


class BadStudy(Exception):
    """A study that cannot be read or continued; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """The description of a study. It never changes."""

    space: Space
    objective: Objective
    base: Mapping[str, float]
    """The point in effect when the study began."""
    base_pair: tuple[float, float] | None
    """K and S in effect; `None` under another policy, or if a command evaluates."""
    source: Source | None
    """The model's input; `None` if a command evaluates, or evaluations are external."""
    holdout: Source | None = None
    stress: Source | None = None
    """Another week in which parameters must hold, one with many bursts: rates are those of the worse of both weeks."""
    command: tuple[str, ...] = ()
    """The command that evaluates instead of the model; empty for the model and for external evaluations."""
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Settings of every evaluation."""
    class_limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The objective of each class in the configuration, per minute."""
    by_class: bool = False
    grid: tuple[str, ...] = ()
    policy: str = "cold_age"
    """The policy that the model replays: `cold_age`, or `pressure` or `slowdown` by the time that far memory would cost."""
    tier_latency: str = ""
    """For `pressure` and `slowdown`: latency of a page's return, or of one access to slow memory."""
    designer: str = "egobox"
    seed: int = 1
    program: str = ""
    """Version of the program that began the study."""
    began_unix: float = 0.0
    after: str = ""
    """The study that this one follows, if it is a retune."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an evaluation."""

    value: float
    """Coverage of the best pair, or of the pair of the lowest rate if none holds; or the value of a command."""
    excess: float
    """The lowest rate above the limit, as a share of the limit; or the excess of a command."""
    pair: Pair | None = None
    pairs: tuple[Pair, ...] = ()
    groups: Mapping[str, tuple[Pair, ...]] = dataclasses.field(default_factory=dict)
    fleet: Fleet | None = None
    warnings: tuple[str, ...] = ()
    """What the model cannot be sure of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line: an evaluation, with its result or the reason of its failure."""

    number: int
    kind: Kind
    point: Mapping[str, float]
    outcome: Outcome | None
    failure: str = ""
    took_seconds: float = 0.0
    at_unix: float = 0.0

    @property
    def done(self) -> Evaluation:
        """The evaluation as designers see it."""
        return Evaluation(self.point, self.outcome.value, self.outcome.excess) if self.outcome else Evaluation(self.point)


@dataclasses.dataclass(frozen=True, slots=True)
class Study:
    """A study as read from disk: its description and all evaluations so far."""

    directory: Path
    spec: Spec
    entries: tuple[Entry, ...]
    ages: tuple[Age, ...] = ()
    """The age distribution of the tuning trace, for detecting drift."""

    def of(self, *kinds: Kind) -> list[Entry]:
        """Returns the entries of these kinds, in order."""
        return [entry for entry in self.entries if entry.kind in kinds]

    def best(self) -> Entry | None:
        """Returns the feasible entry of the highest value on the tuning trace, the first in case of a tie."""
        feasible = [entry for entry in self.of("base", "trial", "probe") if entry.done.feasible]
        return max(feasible, key=lambda entry: entry.outcome.value if entry.outcome else 0.0, default=None)


def create(directory: Path, spec: Spec, ages: list[Age]) -> None:
    """Creates a study. The directory must not hold one."""
    if (directory / SPEC).exists():
        raise BadStudy(f"{directory} holds a study; continue it (without the arguments that describe it), or use another directory")
    directory.mkdir(parents=True, exist_ok=True)
    data = {"version": VERSION, "spec": _plain(spec), "ages": _plain(ages)}
    data["spec"]["space"] = spaces.to_json(spec.space)
    partial = directory / (SPEC + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / SPEC)
    _sync(directory)


def read(directory: Path) -> Study:
    """Reads a study, even while it is being written."""
    try:
        data = json.loads((directory / SPEC).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadStudy(f"{directory} holds no study; begin one with `run --study {directory}` and its description") from error
    except ValueError as error:
        raise BadStudy(f"{directory / SPEC} is not JSON ({error}); restore it from a copy") from error
    _check_version(directory / SPEC, data)
    try:
        spec = _spec(data["spec"])
        ages = tuple(Age(**age) for age in data["ages"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadStudy(f"{directory / SPEC} does not describe a study ({error!r}); restore it from a copy") from error
    return Study(directory, spec, tuple(_entries(directory / EVALUATIONS)), ages)


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[Log]:
    """Locks a study for appending. Removes the incomplete line of a process that was killed."""
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadStudy(f"another process is writing to {directory}; wait for it or stop it") from error
        path = directory / EVALUATIONS
        path.touch()
        _cut(path)
        with path.open("ab") as file:
            yield Log(file.fileno())


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """Appends entries to a study."""

    descriptor: int

    def add(self, entry: Entry) -> None:
        """Appends an entry and syncs it to disk."""
        line = json.dumps({"version": VERSION} | _entry_json(entry), separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self.descriptor, data) :]
        os.fsync(self.descriptor)


def entry(number: int, kind: Kind, point: Mapping[str, float], outcome: Outcome | None, failure: str, took: float) -> Entry:
    """Creates an entry with the current time."""
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
            data = json.loads(line)
            _check_version(path, data)
            yield _entry(data)
        except (ValueError, KeyError, TypeError) as error:
            raise BadStudy(f"{path}, line {number}: not an evaluation ({error!r}); remove the line, or restore the file") from error


def _check_version(path: Path, data: Mapping[str, Any]) -> None:
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int) or version < 1:
        raise BadStudy(f"{path} has no version; it was not written by this tuner")
    if version > VERSION:
        raise BadStudy(f"{path} has version {version}, and this tuner supports {VERSION}; use a newer one")


_PAIR_FIELDS = [field.name for field in dataclasses.fields(Pair)]


def _pair_json(pair: Pair) -> list[float | None]:
    """Returns a pair as a list without field names: an evaluation has hundreds of pairs."""
    return [getattr(pair, name) for name in _PAIR_FIELDS]


def _pair(data: list[Any]) -> Pair:
    return Pair(*data)


def _entry_json(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = {"number": entry.number, "kind": entry.kind, "point": dict(entry.point)}
    data |= {"took_seconds": entry.took_seconds, "at_unix": entry.at_unix}
    if entry.outcome is None:
        return data | {"failure": entry.failure}
    found = entry.outcome
    return data | {
        "value": found.value,
        "excess": found.excess,
        "pair": None if found.pair is None else _pair_json(found.pair),
        "pairs": [_pair_json(pair) for pair in found.pairs],
        "groups": {name: [_pair_json(pair) for pair in pairs] for name, pairs in found.groups.items()},
        "fleet": None if found.fleet is None else dataclasses.asdict(found.fleet),
        "warnings": list(found.warnings),
    }


def _entry(data: Mapping[str, Any]) -> Entry:
    outcome = None
    if "failure" not in data:
        outcome = Outcome(
            value=float(data["value"]),
            excess=float(data["excess"]),
            pair=None if data["pair"] is None else _pair(data["pair"]),
            pairs=tuple(_pair(pair) for pair in data["pairs"]),
            groups={name: tuple(_pair(pair) for pair in pairs) for name, pairs in data["groups"].items()},
            fleet=None if data["fleet"] is None else Fleet(**data["fleet"]),
            warnings=tuple(data.get("warnings", ())),
        )
    point = {str(key): float(value) for key, value in data["point"].items()}
    return Entry(
        int(data["number"]),
        data["kind"],
        point,
        outcome,
        str(data.get("failure", "")),
        data["took_seconds"],
        data["at_unix"],
    )


def _plain(value: Any) -> Any:
    """Converts dataclasses to JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _spec(data: Mapping[str, Any]) -> Spec:
    def source(of: Mapping[str, Any] | None) -> Source | None:
        return None if of is None else Source(**{**of, "trace": tuple(of["trace"])})

    pair = data["base_pair"]
    return Spec(
        **{
            **data,
            "space": spaces.from_json(data["space"]),
            "objective": Objective(**data["objective"]),
            "base_pair": None if pair is None else (pair[0], pair[1]),
            "source": source(data["source"]),
            "holdout": source(data["holdout"]),
            "stress": source(data.get("stress")),
            "command": tuple(data["command"]),
            "grid": tuple(data["grid"]),
        }
    )


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
