"""The results of a study as one value, from which all reports are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from . import choose, parameters
from .choose import Pair
from .space import Knob, Point, identity
from .study import Entry, Outcome, Study

TOLERATED = 0.01
"""The value of a knob may change while the stored memory drops by no more than this share."""


def findings(study: Study) -> dict[str, Any]:
    """Returns the results of a study, in base units."""
    spec, base, winner = study.spec, study.of("base"), study.best()
    trials = study.of("trial")
    before = _result(study, base[0], spec.base_pair) if base else None
    after = _result(study, winner, _pair_of(winner)) if winner else None
    found: dict[str, Any] = {
        "study": str(study.directory),
        "source": str(spec.source or " ".join(spec.command) or "external evaluations"),
        "source_of_holdout": None if spec.holdout is None else str(spec.holdout),
        "objective": dataclasses.asdict(spec.objective) | {"limit": spec.objective.limit},
        "designer": spec.designer,
        "seed": spec.seed,
        "program": spec.program,
        "after_study": spec.after or None,
        "evaluations": {
            "trials": len(trials),
            "failed": sum(entry.outcome is None for entry in trials),
            "infeasible": sum(entry.outcome is not None and not entry.done.feasible for entry in trials),
            "probes": len(study.of("probe")),
            "took_seconds": round(sum(entry.took_seconds for entry in study.entries), 1),
        },
        "fleet": dataclasses.asdict(base[0].outcome.fleet) if base and base[0].outcome and base[0].outcome.fleet else None,
        "warnings": _warnings(base[0] if base else None, winner),
        "before": before,
        "after": after,
        "gain": _gain(before, after),
        "holdout": _holdout(study, winner),
        "sensitivity": _sensitivity(study, winner) if winner else [],
        "front": _front(study),
        "trials": _trials(study),
        "classes": [_class(study, one) for one in parameters.classes(study)],
    }
    given = parameters.chosen(study)
    found["parameters"] = dict(given.values) if given else {}
    found["parameters_before"] = dict(given.before) if given else {}
    return found


def _warnings(*entries: Entry | None) -> list[str]:
    """Returns the model's warnings about the parameters before and after."""
    outcomes = [entry.outcome for entry in entries if entry and entry.outcome]
    return list(dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings))


def _pair_of(entry: Entry) -> tuple[float, float] | None:
    pair = entry.outcome.pair if entry.outcome else None
    return None if pair is None else (pair.percentile, pair.warmup_seconds)


def _result(study: Study, entry: Entry, at: tuple[float, float] | None, on: Outcome | None = None) -> dict[str, Any] | None:
    """Returns the result of an entry's parameters on the tuning trace, or on the trace of `on`."""
    outcome = on or entry.outcome
    if outcome is None:
        return None
    texts = study.spec.space.texts(entry.point)
    if at is None:
        holds = outcome.excess <= 0
        return {
            "parameters": texts,
            "value": outcome.value,
            "excess": outcome.excess,
            "holds": holds,
            "margin_left": -outcome.excess,
        }
    pair = choose.at(outcome.pairs, *at)
    if pair is None:
        return None
    most = study.spec.objective.rate_max
    return {
        "parameters": texts,
        "percentile": pair.percentile,
        "warmup_seconds": pair.warmup_seconds,
        "coverage": pair.coverage,
        "saved": pair.saved,
        "stored_bytes": pair.stored_bytes,
        "rate": pair.rate,
        "tail": pair.tail,
        "holds": study.spec.objective.holds(pair, most),
        "margin_left": None if pair.rate is None else 1 - pair.rate / most,
    }


def _gain(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> float | None:
    """Returns how much more is stored than before, as a share."""
    if not before or not after:
        return None
    was, now = (one.get("coverage", one.get("value")) for one in (before, after))
    return now / was - 1 if was else None


def _holdout(study: Study, winner: Entry | None) -> dict[str, Any] | None:
    seen = {identity(entry.point): entry for entry in study.of("holdout") if entry.outcome is not None}
    base = study.of("base")
    if winner is None or not base:
        return None
    there = [seen.get(identity(entry.point)) for entry in (base[0], winner)]
    if there[0] is None or there[1] is None:
        return None
    before = _result(study, base[0], study.spec.base_pair, there[0].outcome)
    after = _result(study, winner, _pair_of(winner), there[1].outcome)
    own = there[1].outcome.pair if there[1].outcome else None
    return {
        "before": before,
        "after": after,
        "gain": _gain(before, after),
        # The coverage with the best K and S of that trace at the same point.
        "own_coverage": own.coverage if own else None,
    }


def broken_on_holdout(found: Mapping[str, Any]) -> list[str]:
    """Returns what the parameters of a study break on its held-out trace, in words; empty if nothing, or without one."""
    broken = []
    after = (found["holdout"] or {}).get("after")
    if after and not after["holds"]:
        most, tail = found["objective"]["rate_max"], found["objective"]["tail"]
        if after["rate"] is None or after["rate"] > most:
            broken.append(f"the fleet promotes {_rate(after['rate'])} where at most {most:.3%}/min is promised")
        else:
            broken.append(
                f"at 99.5 % of its entries the fleet promotes {_rate(after['tail'])} where at most {tail * most:.3%}/min is promised"
            )
    for row in found["classes"]:
        if row["holds_at_holdout"] is False:
            broken.append(f"class {row['class']} promotes {row['rate_at_holdout']:.3%}/min")
    return broken


def _rate(rate: float | None) -> str:
    return "without bound" if rate is None else f"{rate:.3%}/min"


def _sensitivity(study: Study, winner: Entry) -> list[dict[str, Any]]:
    """Returns the effect of each knob with the others at the winner's values; K and S from the winner's own evaluation."""
    top = winner.outcome.value if winner.outcome else 0.0
    rows = []
    for knob in study.spec.space.knobs:
        points = [(entry.point[knob.key], entry.outcome) for entry in study.of("base", "trial", "probe") if _alone(entry, winner, knob)]
        steps = [(value, one.value, one.excess <= 0) for value, one in sorted(points, key=lambda point: point[0]) if one is not None]
        rows.append(_row(knob, steps, top, winner.point[knob.key]) | {"measured": study.spec.source is None})
    pair = winner.outcome.pair if winner.outcome else None
    if winner.outcome is None or pair is None:
        return rows
    holds = study.spec.objective.holds
    by_k = [one for one in winner.outcome.pairs if one.warmup_seconds == pair.warmup_seconds]
    by_s = [one for one in winner.outcome.pairs if one.percentile == pair.percentile]
    k, s = Knob(parameters.PERCENTILE, "percentile", 0.0, 1.0), Knob(parameters.WARMUP, "duration", 0.0, 86_400.0)
    rows.append(_row(k, [(one.percentile, one.coverage, holds(one)) for one in by_k], top, pair.percentile))
    rows.append(_row(s, [(one.warmup_seconds, one.coverage, holds(one)) for one in by_s], top, pair.warmup_seconds))
    return rows


def _alone(entry: Entry, winner: Entry, knob: Knob) -> bool:
    """Returns whether an entry differs from the winner in at most this knob."""
    return all(entry.point[key] == value for key, value in winner.point.items() if key != knob.key)


def _row(knob: Knob, steps: Sequence[tuple[float, float, bool]], top: float, here: float) -> dict[str, Any]:
    fine = [value for value, found, holds in steps if holds and found >= top * (1 - TOLERATED)]
    holding = [found for _, found, holds in steps if holds]
    return {
        "key": knob.key,
        "measured": False,
        "here": here,
        "here_text": knob.text(here),
        "fine_from": knob.text(min(fine, default=here)),
        "fine_to": knob.text(max(fine, default=here)),
        # How much less is stored in the worst case, and whether the objective can be broken by this knob.
        "loss_max": 1 - min(holding) / top if holding and top else None,
        "can_break": any(not holds for _, _, holds in steps),
        "steps": [{"value": value, "text": knob.text(value), "coverage": found, "holds": holds} for value, found, holds in steps],
    }


def _front(study: Study) -> list[dict[str, Any]]:
    """Returns the Pareto front over all evaluations: pairs for which no other stores more at the same or a lower rate."""
    by_pair: dict[int, Entry] = {}
    every: list[Pair] = []
    for entry in study.of("base", "trial", "probe"):
        for pair in entry.outcome.pairs if entry.outcome else ():
            by_pair[id(pair)] = entry
            every.append(pair)
    holds = study.spec.objective.holds
    return [dataclasses.asdict(pair) | {"evaluation": by_pair[id(pair)].number, "holds": holds(pair)} for pair in choose.front(every)]


def _trials(study: Study) -> list[dict[str, Any]]:
    best: float | None = None
    rows = []
    for entry in study.of("base", "trial"):
        found = entry.outcome
        feasible = entry.done.feasible
        if found is not None and feasible and (best is None or found.value > best):
            best = found.value
        rows.append(
            {
                "number": entry.number,
                "kind": entry.kind,
                "point": _rounded(entry.point),
                "texts": study.spec.space.texts(entry.point),
                "value": found.value if found else None,
                "excess": found.excess if found else None,
                "feasible": feasible,
                "best_so_far": best,
                "percentile": found.pair.percentile if found and found.pair else None,
                "warmup_seconds": found.pair.warmup_seconds if found and found.pair else None,
                "rate": found.pair.rate if found and found.pair else None,
                "failure": entry.failure or None,
            }
        )
    return rows


def _rounded(point: Point) -> dict[str, float]:
    return {key: round(value, 9) for key, value in point.items()}


def _class(study: Study, one: parameters.ClassParameters) -> dict[str, Any]:
    objective = study.spec.objective
    there = [entry.outcome.groups for entry in study.of("holdout") if entry.outcome and identity(entry.point) == identity(one.point)]
    pairs = there[0].get(one.name, ()) if there else ()
    holdout = choose.at(pairs, one.pair.percentile, one.pair.warmup_seconds)
    return {
        "class": one.name,
        "known": one.known,
        "limit": one.limit,
        "promotion_rate": one.rate,
        "percentile": one.pair.percentile,
        "warmup_seconds": one.pair.warmup_seconds,
        "coverage": one.pair.coverage,
        "rate": one.pair.rate,
        "coverage_at_fleets": one.at_fleets.coverage if one.at_fleets else None,
        "rate_at_fleets": one.at_fleets.rate if one.at_fleets else None,
        # None if there is no held-out trace, or no job of the class in it.
        "coverage_at_holdout": holdout.coverage if holdout else None,
        "rate_at_holdout": holdout.rate if holdout else None,
        "holds_at_holdout": objective.holds(holdout, one.limit / (1 - objective.margin)) if holdout else None,
    }
