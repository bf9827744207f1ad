"""The parameters for the agents: a fragment of a configuration file, and its provenance.

`thermocline rollout` publishes both as a bundle; a single machine reads the fragment from `conf.d/`.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import choose
from .choose import Pair
from .space import Knob, Point
from .study import Entry, Study

PERCENTILE, WARMUP, RATE = "cold_age.percentile", "cold_age.warmup", "cold_age.promotion_rate"
CLASSES = ("conservative", "standard", "aggressive")
"""Classes with parameters; `standard` has the general ones."""

PROVENANCE_VERSION = 1

BUNDLE_SCHEMA = 1
"""Version of the bundle format."""

_ID_BYTES_MAX = 128
"""The largest length of a bundle's id that readers accept."""

_K = Knob(PERCENTILE, "percentile", 0.0, 1.0)
_S = Knob(WARMUP, "duration", 0.0, 86_400.0)
_P = Knob(RATE, "ratio per minute", 0.0, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassParameters:
    """The best parameters of a class of jobs."""

    name: str
    limit: float
    """Limit of the class's rate, including the margin."""
    rate: float | None
    """P, if it is searched; `None` if all classes keep theirs."""
    pair: Pair
    at_fleets: Pair | None
    """Result of the fleet's pair in this class."""
    known: bool
    """Whether the configuration has this class; the parameters of other classes are only reported."""
    point: Point
    """The point of this result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """Settings by key, as in a configuration file."""

    values: Mapping[str, str]
    before: Mapping[str, str]
    """The previous values of the same keys."""

    def toml(self, head: str) -> str:
        """Returns the fragment, with `head` as its comment."""
        lines = [f"# {line}".rstrip() for line in head.splitlines()]
        return "\n".join([*lines, *self._tables("")]) + "\n"

    def bundle(self, info: BundleInfo) -> str:
        """Returns a bundle of these parameters in the format of `thermocline rollout publish`."""
        lines = [
            f"schema = {BUNDLE_SCHEMA}",
            f"version = {info.version}",
            f"id = {json.dumps(info.id)}",
            f"created = {_rfc3339(info.created_unix)}",
            f"expires = {_rfc3339(info.expires_unix)}",
            "",
            "[provenance]",
            f"study = {json.dumps(info.id)}",
            f"trace = {json.dumps(info.trace)}",
            f"margin = {json.dumps(info.margin)}",
        ]
        return "\n".join([*lines, *self._tables("knobs.")]) + "\n"

    def _tables(self, prefix: str) -> list[str]:
        tables: dict[str, list[str]] = {}
        for key, text in self.values.items():
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {_toml(text)}")
        return [line for table, settings in sorted(tables.items()) for line in ("", f"[{prefix}{table}]", *settings)]


@dataclasses.dataclass(frozen=True, slots=True)
class BundleInfo:
    """Metadata of a bundle."""

    version: int
    """A number above those of all earlier bundles."""
    id: str
    created_unix: float
    expires_unix: float
    """Machines return to their configuration file at this time."""
    trace: str
    """Fingerprint of the trace that was tuned on."""
    margin: str
    """The margin left under the objective."""

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ValueError(f"version {self.version}; give a number above that of the last bundle, 1 for the first")
        if not 1 <= len(self.id.encode()) <= _ID_BYTES_MAX or not self.id.isprintable():
            raise ValueError(f"id {self.id!r}; give 1 to {_ID_BYTES_MAX} bytes on one line")
        if self.expires_unix <= self.created_unix:
            raise ValueError("the bundle would expire before it is created; give a duration above 0")


def bundle_info(found: Mapping[str, Any], version: int, name: str, now_unix: float, lasts_seconds: float) -> BundleInfo:
    """Returns the metadata of a bundle of these findings."""
    week = (found["holdout"] or found)["after"]
    margin = "unknown" if week["margin_left"] is None else f"{week['margin_left']:.1%} of the objective"
    # The model's counts identify a trace wherever its files are stored.
    fingerprint = hashlib.sha256(json.dumps([found["source"], found["fleet"]]).encode()).hexdigest()[:16]
    return BundleInfo(version, name, now_unix, now_unix + lasts_seconds, fingerprint, margin)


def _rfc3339(unix: float) -> str:
    return datetime.datetime.fromtimestamp(int(unix), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _toml(text: str) -> str:
    """Returns a TOML value: integers and booleans unchanged, all else in quotes, as the agent's reader requires."""
    return text if text.isdigit() or text in ("true", "false") else json.dumps(text)


def pair_texts(percentile: float, warmup_seconds: float) -> dict[str, str]:
    """Returns K and S in the notation of a configuration file."""
    return {PERCENTILE: _K.text(percentile), WARMUP: _S.text(warmup_seconds)}


def chosen(study: Study) -> Parameters | None:
    """Returns the parameters that the study found, or `None` if nothing holds the objective."""
    winner = study.best()
    if winner is None or winner.outcome is None:
        return None
    spec = study.spec
    values, before = spec.space.texts(winner.point), spec.space.texts(spec.base)
    if winner.outcome.pair is not None and spec.base_pair is not None:
        values |= pair_texts(winner.outcome.pair.percentile, winner.outcome.pair.warmup_seconds)
        before |= pair_texts(*spec.base_pair)
    for one in classes(study):
        if one.known:
            values |= _of_class(one)
    return Parameters(values, before)


def _of_class(one: ClassParameters) -> dict[str, str]:
    table = "cold_age" if one.name == "standard" else f"class.{one.name}"
    values = {f"{table}.percentile": _K.text(one.pair.percentile), f"{table}.warmup": _S.text(one.pair.warmup_seconds)}
    return values if one.rate is None else values | {f"{table}.promotion_rate": _P.text(one.rate)}


def classes(study: Study) -> list[ClassParameters]:
    """Returns the best parameters of each class within the objective of that class.

    Jobs are independent, so the stored memory of a class does not depend on the parameters of other classes. Only K, S and P
    can differ by class in the configuration, so only evaluations that differ from the winner in P alone are considered.
    """
    winner = study.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None or not study.spec.by_class:
        return []
    found = []
    for name, at_winner in sorted(winner.outcome.groups.items()):
        limit = study.spec.class_limits.get(name, study.spec.objective.rate_max) * (1 - study.spec.objective.margin)
        fleets = choose.at(at_winner, winner.outcome.pair.percentile, winner.outcome.pair.warmup_seconds)
        among = [(entry, entry.outcome.groups.get(name, ())) for entry in _same_but_p(study, winner) if entry.outcome]
        options = [(entry, choose.best(pairs, study.spec.objective, limit)) for entry, pairs in among]
        holding = [(entry, pair) for entry, pair in options if pair is not None]
        if holding:
            entry, pair = max(holding, key=lambda option: option[1].stored_bytes)
            found.append(ClassParameters(name, limit, entry.point.get(RATE), pair, fleets, name in CLASSES, entry.point))
    return found


def _same_but_p(study: Study, winner: Entry) -> list[Entry]:
    def rest(entry: Entry) -> dict[str, float]:
        return {key: value for key, value in entry.point.items() if key != RATE}

    return [entry for entry in study.of("base", "trial", "probe") if rest(entry) == rest(winner)]


def write(study: Study, given: Parameters, findings: Mapping[str, Any], to: Path) -> tuple[Path, Path]:
    """Writes the fragment `to` and its provenance beside it. Each file is replaced atomically."""
    week = findings["holdout"] or findings
    after = week["after"]
    head = f"Found by `thermocline-tune` on {study.spec.source or 'measurements'}.\n"
    if after.get("coverage") is not None:
        trace = "the held-out trace" if findings["holdout"] else "the tuning trace"
        head += f"Coverage {after['coverage']:.1%} at {after['rate']:.3%} of the working set per minute on {trace}.\n"
    fragment = given.toml(head)
    provenance = {
        "version": PROVENANCE_VERSION,
        "study": str(study.directory),
        "parameters": dict(given.values),
        "before": dict(given.before),
        "parameters_sha256": hashlib.sha256(fragment.encode()).hexdigest(),
        "findings": {key: findings[key] for key in _KEPT},
    }
    beside = to.with_suffix(".json")
    if beside == to:
        raise ValueError(f"{to}: the provenance is written beside the fragment as .json; name a .toml file")
    write_whole(to, fragment)
    write_whole(beside, json.dumps(provenance, indent=1) + "\n")
    return to, beside


_KEPT = (
    "source", "source_of_holdout", "objective", "designer", "seed", "program", "evaluations", "before", "after", "gain", "holdout",
)  # fmt: skip


def write_whole(path: Path, text: str) -> None:
    """Replaces a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
