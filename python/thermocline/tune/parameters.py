"""What the agents are to be given: a fragment of a configuration file, and where it comes from.

`thermocline rollout` publishes the two as a bundle; a machine of its own takes the fragment into `conf.d/`.
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
"""Those that have parameters; `standard` has the general ones."""

PROVENANCE_VERSION = 1

BUNDLE_SCHEMA = 1
"""The version of the bundle format that is written."""

_WORD_MAX = 128
"""Bytes of a bundle's id, as its readers have it."""

_K = Knob(PERCENTILE, "percentile", 0.0, 1.0)
_S = Knob(WARMUP, "duration", 0.0, 86_400.0)
_P = Knob(RATE, "ratio per minute", 0.0, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class OfClass:
    """What a class of jobs would best be given."""

    name: str
    limit: float
    """What its rate may be planned for."""
    rate: float | None
    """P, where it is searched; None where all classes keep what they have."""
    pair: Pair
    at_fleets: Pair | None
    """What the fleet's own pair comes to in it."""
    known: bool
    """Whether the configuration has such a class; of others there is only to tell."""
    point: Point
    """Where that was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """Settings by key, as a configuration file has them."""

    values: Mapping[str, str]
    before: Mapping[str, str]
    """What was in effect, of the same keys."""

    def toml(self, head: str) -> str:
        """The fragment, with `head` as its comment."""
        lines = [f"# {line}".rstrip() for line in head.splitlines()]
        return "\n".join([*lines, *self._tables("")]) + "\n"

    def bundle(self, about: About) -> str:
        """A bundle of these parameters, as `thermocline rollout publish` takes it."""
        lines = [
            f"schema = {BUNDLE_SCHEMA}",
            f"version = {about.version}",
            f"id = {json.dumps(about.id)}",
            f"created = {_rfc3339(about.created_unix)}",
            f"expires = {_rfc3339(about.expires_unix)}",
            "",
            "[provenance]",
            f"study = {json.dumps(about.id)}",
            f"trace = {json.dumps(about.trace)}",
            f"margin = {json.dumps(about.margin)}",
        ]
        return "\n".join([*lines, *self._tables("knobs.")]) + "\n"

    def _tables(self, prefix: str) -> list[str]:
        tables: dict[str, list[str]] = {}
        for key, text in self.values.items():
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {_toml(text)}")
        return [line for table, settings in sorted(tables.items()) for line in ("", f"[{prefix}{table}]", *settings)]


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a bundle says of itself."""

    version: int
    """Above all that were published before."""
    id: str
    created_unix: float
    expires_unix: float
    """From then on machines go by their configuration file."""
    trace: str
    """Which memory was tuned on."""
    margin: str
    """What is left under the objective."""

    def __post_init__(self) -> None:
        if self.version < 1:
            raise ValueError(f"version {self.version}; give a number above that of the last bundle, 1 for the first")
        if not 1 <= len(self.id.encode()) <= _WORD_MAX or not self.id.isprintable():
            raise ValueError(f"id {self.id!r}; give 1 to {_WORD_MAX} bytes on one line")
        if self.expires_unix <= self.created_unix:
            raise ValueError("a bundle that has expired before it is made; give a time above 0")


def about(found: Mapping[str, Any], version: int, name: str, now_unix: float, lasts_seconds: float) -> About:
    """What a bundle of these findings says of itself."""
    week = (found["holdout"] or found)["after"]
    margin = "not known" if week["margin_left"] is None else f"{week['margin_left']:.1%} of the objective"
    # What the model counted tells one trace from another, wherever its files lie.
    fingerprint = hashlib.sha256(json.dumps([found["source"], found["fleet"]]).encode()).hexdigest()[:16]
    return About(version, name, now_unix, now_unix + lasts_seconds, fingerprint, margin)


def _rfc3339(unix: float) -> str:
    return datetime.datetime.fromtimestamp(int(unix), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _toml(text: str) -> str:
    """Whole numbers, true and false as they are, all else in quotes: what the agent's reader takes."""
    return text if text.isdigit() or text in ("true", "false") else json.dumps(text)


def pair_texts(percentile: float, warmup_seconds: float) -> dict[str, str]:
    """K and S as a configuration file has them."""
    return {PERCENTILE: _K.text(percentile), WARMUP: _S.text(warmup_seconds)}


def chosen(study: Study) -> Parameters | None:
    """What the study would give the agents; None where nothing holds the objective."""
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


def _of_class(one: OfClass) -> dict[str, str]:
    table = "cold_age" if one.name == "standard" else f"class.{one.name}"
    values = {f"{table}.percentile": _K.text(one.pair.percentile), f"{table}.warmup": _S.text(one.pair.warmup_seconds)}
    return values if one.rate is None else values | {f"{table}.promotion_rate": _P.text(one.rate)}


def classes(study: Study) -> list[OfClass]:
    """The best of each class on its own, within what that class was promised.

    Jobs do not know of each other, so what a class stores does not depend on what the others are given. Only K, S and
    P differ by class in the configuration; the looks that count are therefore those that differ from the winner in P alone.
    """
    winner = study.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None or not study.spec.by_class:
        return []
    found = []
    for name, at_winner in sorted(winner.outcome.groups.items()):
        limit = study.spec.class_limits.get(name, study.spec.objective.rate_max) * (1 - study.spec.objective.margin)
        fleets = choose.at(at_winner, winner.outcome.pair.percentile, winner.outcome.pair.warmup_seconds)
        options = [(entry, choose.best(entry.outcome.groups.get(name, ()), limit)) for entry in _same_but_p(study, winner) if entry.outcome]
        holding = [(entry, pair) for entry, pair in options if pair is not None]
        if holding:
            entry, pair = max(holding, key=lambda option: option[1].stored_bytes)
            found.append(OfClass(name, limit, entry.point.get(RATE), pair, fleets, name in CLASSES, entry.point))
    return found


def _same_but_p(study: Study, winner: Entry) -> list[Entry]:
    def rest(entry: Entry) -> dict[str, float]:
        return {key: value for key, value in entry.point.items() if key != RATE}

    return [entry for entry in study.of("base", "trial", "probe") if rest(entry) == rest(winner)]


def write(study: Study, given: Parameters, findings: Mapping[str, Any], to: Path) -> tuple[Path, Path]:
    """Writes `to` (the fragment) and, beside it, its provenance; each appears whole or not at all."""
    told = findings["holdout"] or findings
    after = told["after"]
    head = f"Found by `python -m thermocline.tune` on {study.spec.source or 'measurements'}.\n"
    if after.get("coverage") is not None:
        week = "the week that was not tuned on" if findings["holdout"] else "the week that was tuned on"
        head += f"Coverage {after['coverage']:.1%} at {after['rate']:.3%} of the working set a minute on {week}.\n"
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
        raise ValueError(f"{to}: the fragment is TOML and its provenance goes beside it as .json; name a .toml file")
    write_whole(to, fragment)
    write_whole(beside, json.dumps(provenance, indent=1) + "\n")
    return to, beside


_KEPT = (
    "source", "source_of_holdout", "objective", "designer", "seed", "program", "looks", "before", "after", "gain", "holdout",
)  # fmt: skip


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
