"""Retuning: whether it is due, on schedule or because the fleet has changed, and the effect of each new parameter.

The effect of a change is computed by the model on the new trace: each parameter in turn is restored to its old value with
the others at their new values.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import choose, parameters, search, study
from .choose import Objective, Pair
from .drift import Drift
from .program import Age, Program, Source
from .search import Progress
from .study import BadStudy, Spec, Study

FILE = "retune.json"
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """A criterion of whether to tune again."""

    what: str
    value: float
    limit: float
    due: bool
    text: str


def reasons(of: Study, drifted: Drift, rate: float | None, *, now_unix: float, every_seconds: float, drift_max: float) -> list[Reason]:
    """Returns the criteria: the schedule, a changed fleet, and an objective that no longer holds.

    `rate` is the rate of the parameters of `of` on the new trace.
    """
    age = now_unix - of.spec.began_unix
    most = of.spec.objective.rate_max
    current = float("inf") if rate is None else rate
    return [
        Reason(
            "schedule", age, every_seconds, age >= every_seconds,
            f"tuned {age / 86_400:.1f} d ago; the interval is {every_seconds / 86_400:.1f} d",
        ),
        Reason(
            "memory", drifted.memory, drift_max, drifted.memory > drift_max,
            f"{drifted.memory:.2%} of the memory has moved to another age band; the limit is {drift_max:.2%}",
        ),
        Reason(
            "accesses", drifted.accesses, drift_max, drifted.accesses > drift_max,
            f"{drifted.accesses:.2%} of the accesses to cold memory have moved to another age band; the limit is {drift_max:.2%}",
        ),
        Reason(
            "objective", min(current, choose.EXCESS_MAX), most, current > most,
            f"the current parameters have a rate of {current:.3%} of the working set per minute; the objective is {most:.3%}",
        ),
    ]  # fmt: skip


def in_effect(of: Study) -> tuple[dict[str, float], tuple[float, float]]:
    """Returns the point, and K and S, that a study gave the fleet; the previous ones if it found nothing that holds."""
    if of.spec.base_pair is None:
        raise BadStudy(f"{of.directory} does not have policy cold_age, which retune requires; begin a new study")
    winner = of.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None:
        return dict(of.spec.base), of.spec.base_pair
    pair = winner.outcome.pair
    return dict(winner.point), (pair.percentile, pair.warmup_seconds)


def follow(of: Study, source: Source, holdout: Source | None, began_unix: float) -> Spec:
    """Returns the description of a study like `of` on another trace, which begins with the parameters of `of`."""
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
    """Returns the rate of the parameters that `of` gave the fleet on another trace; `None` if it is unbounded."""
    point, (percentile, warmup) = in_effect(of)
    settings = {**of.spec.fixed, **of.spec.space.texts(point), **parameters.pair_texts(percentile, warmup)}
    pair = program.evaluate(source, settings, of.spec.objective, grid=of.spec.grid).configured
    return 0.0 if pair.stored_bytes == 0 else pair.rate


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A changed parameter and its effect."""

    key: str
    before: str
    after: str
    coverage_if_undone: float | None
    rate_if_undone: float | None
    why: str


def changes(of: Study, program: Program, progress: Progress) -> list[Change]:
    """Returns the changed parameters of a study, each with the effect of restoring it alone on the tuning trace."""
    winner = of.best()
    if winner is None or winner.outcome is None or winner.outcome.pair is None or of.spec.base_pair is None:
        return []
    new, objective = winner.outcome.pair, of.spec.objective
    old_k, old_s = of.spec.base_pair
    changed = []
    for knob in of.spec.space.knobs:
        was, now = knob.text(of.spec.base[knob.key]), knob.text(winner.point[knob.key])
        if was != now:
            progress(f"evaluating {knob.key} restored to {was}")
            point = {**winner.point, knob.key: of.spec.base[knob.key]}
            outcome = search.evaluate(of.spec, program, point, of.spec.source)
            changed.append(_change(knob.key, (was, now), choose.at(outcome.pairs, new.percentile, new.warmup_seconds), new, objective))
    was_texts = parameters.pair_texts(old_k, old_s)
    now_texts = parameters.pair_texts(new.percentile, new.warmup_seconds)
    for key, (k, s) in (
        (parameters.PERCENTILE, (old_k, new.warmup_seconds)),
        (parameters.WARMUP, (new.percentile, old_s)),
    ):
        if was_texts[key] != now_texts[key]:
            changed.append(_change(key, (was_texts[key], now_texts[key]), choose.at(winner.outcome.pairs, k, s), new, objective))
    return changed


def _change(key: str, texts: tuple[str, str], undone: Pair | None, new: Pair, objective: Objective) -> Change:
    if undone is None:
        return Change(key, *texts, None, None, "its effect is unknown: the pair is not in the grid")
    less = 1 - undone.coverage / new.coverage if new.coverage else 0.0
    stored = f"store {less:.1%} less" if less >= 0 else f"store {-less:.1%} more"
    rate = "nothing" if undone.rate is None else f"{undone.rate:.3%} of the working set per minute"
    if objective.holds(undone):
        why = f"restoring it would {stored}, and hold the limit at {rate}"
    elif undone.rate is not None and undone.rate <= objective.limit:
        tail = "without bound" if undone.tail is None else f"{undone.tail:.3%} per minute"
        why = f"restoring it would {stored}, and break the limit of the tail, {objective.tail * objective.limit:.3%}: it is {tail}"
    else:
        why = f"restoring it would {stored}, and break the limit of {objective.limit:.3%} with {rate}"
    return Change(key, *texts, undone.coverage, undone.rate, why)


def write(of: Study, reasons: Sequence[Reason], changed: Sequence[Change]) -> dict[str, Any]:
    """Writes the explanation beside the study and returns it."""
    explanation = {
        "version": VERSION,
        "after_study": of.spec.after,
        "reasons": [dataclasses.asdict(reason) for reason in reasons],
        "changes": [dataclasses.asdict(change) for change in changed],
    }
    path = of.directory / FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(explanation, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return explanation


def read(directory: Path) -> Mapping[str, Any] | None:
    """Reads the explanation of a study; `None` if the study is not a retune, or is not finished."""
    try:
        explanation: Mapping[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadStudy(f"{directory / FILE} is not JSON ({error}); delete it and run retune again") from error
    return explanation


def begin(of: Spec, directory: Path, ages: list[Age]) -> Study:
    """Begins the study of a retune, or continues it after an interruption."""
    if (directory / study.SPEC).exists():
        found = study.read(directory)
        if (found.spec.after, found.spec.source) != (of.after, of.source):
            raise BadStudy(f"{directory} holds another study; use another directory")
        return found
    study.create(directory, of, ages)
    return study.read(directory)
