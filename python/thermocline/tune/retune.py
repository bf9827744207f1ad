"""Tuning again: whether it is time, on schedule or because the fleet has changed; and what the new parameters change, and why.

What a change is worth is asked of the model, on the new trace: each parameter in turn is put back to what it was, the
others staying new, and the difference is what that parameter does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import choose, parameters, search, study
from .choose import Pair
from .drift import Drift
from .program import Age, Program, Source
from .search import Say
from .study import BadStudy, Spec, Study

FILE = "retune.json"
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Something that was looked at to decide whether to tune again."""

    what: str
    value: float
    limit: float
    due: bool
    text: str


def reasons(of: Study, drifted: Drift, rate: float | None, *, now_unix: float, every_seconds: float, drift_max: float) -> list[Reason]:
    """What speaks for tuning again: the schedule, a fleet that has changed, an objective that no longer holds.

    `rate` is what the parameters of `of` come to on the new trace.
    """
    age = now_unix - of.spec.began_unix
    most = of.spec.objective.rate_max
    felt = float("inf") if rate is None else rate
    return [
        Reason(
            "schedule", age, every_seconds, age >= every_seconds,
            f"tuned {age / 86_400:.1f} d ago; tuned again after {every_seconds / 86_400:.1f} d",
        ),
        Reason(
            "memory", drifted.memory, drift_max, drifted.memory > drift_max,
            f"{drifted.memory:.2%} of the memory lies in another age band than then; {drift_max:.2%} is tolerated",
        ),
        Reason(
            "accesses", drifted.accesses, drift_max, drifted.accesses > drift_max,
            f"{drifted.accesses:.2%} of the accesses to cold memory touch another age band than then; {drift_max:.2%} is tolerated",
        ),
        Reason(
            "objective", min(felt, search.EXCESS_MAX), most, felt > most,
            f"the parameters of then come to {felt:.3%} of the working set a minute now; {most:.3%} is the objective",
        ),
    ]  # fmt: skip


def in_effect(of: Study) -> tuple[dict[str, float], tuple[float, float]]:
    """The point, and the K and S, that a study gave the fleet: those before it where it found nothing that holds."""
    if of.spec.base_pair is None:
        raise BadStudy(f"{of.directory} is not of policy cold_age; only such studies are tuned again by themselves, begin a new one")
    winner = of.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None:
        return dict(of.spec.base), of.spec.base_pair
    pair = winner.outcome.pair
    return dict(winner.point), (pair.percentile, pair.warmup_seconds)


def follow(of: Study, source: Source, holdout: Source | None, began_unix: float) -> Spec:
    """A study like `of`, on another trace, that begins where that one ended."""
    point, (percentile, warmup) = in_effect(of)
    texts = parameters.pair_texts(percentile, warmup)
    return dataclasses.replace(
        of.spec,
        source=source,
        holdout=holdout,
        base=point,
        base_pair=(percentile, warmup),
        fixed={**of.spec.fixed, **texts},
        began_unix=began_unix,
        after=str(of.directory),
    )


def rate_now(of: Study, program: Program, source: Source) -> float | None:
    """What the parameters that `of` gave the fleet come to on another trace; None where there is no bound."""
    point, (percentile, warmup) = in_effect(of)
    settings = {**of.spec.fixed, **of.spec.space.texts(point), **parameters.pair_texts(percentile, warmup)}
    pair = program.look(source, settings, of.spec.objective, grid=of.spec.grid, by_class=False).configured
    return 0.0 if pair.stored_bytes == 0 else pair.rate


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A parameter that is another than before, and what it does."""

    key: str
    before: str
    after: str
    coverage_if_undone: float | None
    rate_if_undone: float | None
    why: str


def changes(of: Study, program: Program, say: Say) -> list[Change]:
    """What a study's parameters change, each by what putting it back alone would do on the tuning week."""
    winner = of.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None or of.spec.base_pair is None:
        return []
    new, limit = winner.outcome.pair, of.spec.objective.limit
    old_k, old_s = of.spec.base_pair
    told = []
    for knob in of.spec.space.knobs:
        was, now = knob.text(of.spec.base[knob.key]), knob.text(winner.point[knob.key])
        if was != now:
            say(f"putting {knob.key} back to {was}, to see what it does")
            point = {**winner.point, knob.key: of.spec.base[knob.key]}
            outcome = search.look(of.spec, program, point, of.spec.source)
            told.append(_change(knob.key, (was, now), choose.at(outcome.pairs, new.percentile, new.warmup_seconds), new, limit))
    was_texts = parameters.pair_texts(old_k, old_s)
    now_texts = parameters.pair_texts(new.percentile, new.warmup_seconds)
    for key, (k, s) in (
        (parameters.PERCENTILE, (old_k, new.warmup_seconds)),
        (parameters.WARMUP, (new.percentile, old_s)),
    ):
        if was_texts[key] != now_texts[key]:
            told.append(_change(key, (was_texts[key], now_texts[key]), choose.at(winner.outcome.pairs, k, s), new, limit))
    return told


def _change(key: str, texts: tuple[str, str], undone: Pair | None, new: Pair, limit: float) -> Change:
    if undone is None:
        return Change(key, *texts, None, None, "what it does alone is not known: the pair is not of the grid")
    less = 1 - undone.coverage / new.coverage if new.coverage else 0.0
    stored = f"store {less:.1%} less" if less >= 0 else f"store {-less:.1%} more"
    rate = "nothing" if undone.rate is None else f"{undone.rate:.3%} of the working set a minute"
    if undone.holds(limit):
        why = f"putting it back would {stored}, and hold the limit at {rate}"
    else:
        why = f"putting it back would {stored}, and break the limit of {limit:.3%} with {rate}"
    return Change(key, *texts, undone.coverage, undone.rate, why)


def write(of: Study, why: Sequence[Reason], what: Sequence[Change]) -> dict[str, Any]:
    """Keeps the explanation with the study; returns it."""
    told = {
        "version": VERSION,
        "after_study": of.spec.after,
        "reasons": [dataclasses.asdict(reason) for reason in why],
        "changes": [dataclasses.asdict(change) for change in what],
    }
    path = of.directory / FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return told


def read(directory: Path) -> Mapping[str, Any] | None:
    """The explanation kept with a study; None where it is no retune, or not done."""
    try:
        told: Mapping[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadStudy(f"{directory / FILE} is not JSON ({error}); delete it, and retune again") from error
    return told


def begin(of: Spec, directory: Path, ages: list[Age]) -> Study:
    """The study of a retune: begun, or gone on with where a process was killed."""
    if (directory / study.SPEC).exists():
        found = study.read(directory)
        if (found.spec.after, found.spec.source) != (of.after, of.source):
            raise BadStudy(f"{directory} holds another study; name another directory")
        return found
    study.create(directory, of, ages)
    return study.read(directory)
