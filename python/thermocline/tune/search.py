"""The search: asks a designer for a point, evaluates it and records the result; then runs the evaluations that reports need.

The next step depends only on what the study contains, so a search that was stopped or killed continues where it was.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from . import choose, parameters, program, study
from .program import Program, RunFailed, Source, TimeCost
from .sampling import Designer, Exhausted
from .space import Knob, Point, identity
from .study import Entry, Kind, Log, Outcome, Spec, Study

FAILURES_MAX = 5
"""Consecutive failed evaluations after which the search stops."""

Progress = Callable[[str], None]
"""Reports progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class Searcher:
    """The parameters of a search."""

    program: Program
    designer: Designer
    progress: Progress

    def run(self, of: Study, trials: int, probes: int) -> Study:
        """Continues a study up to a number of trials, and of probes of each knob around the best of them."""
        with study.writing(of.directory) as log:
            of = study.read(of.directory)
            of = self._base(of, log)
            of = self._trials(of, log, trials)
            of = self._probes(of, log, probes)
            return self._holdout(of, log)

    def _base(self, of: Study, log: Log) -> Study:
        if of.of("base"):
            return of
        self.progress("evaluating the parameters in effect")
        of = self._evaluate(of, log, "base", of.spec.base, of.spec.source)
        if of.entries[-1].outcome is None:
            raise RunFailed(f"cannot evaluate the parameters in effect: {of.entries[-1].failure}")
        return of

    def _trials(self, of: Study, log: Log, trials: int) -> Study:
        while len(of.of("trial")) < trials:
            last = of.of("trial")[-FAILURES_MAX:]
            if len(last) == FAILURES_MAX and all(entry.outcome is None for entry in last):
                raise RunFailed(f"{FAILURES_MAX} consecutive evaluations failed, the last with: {last[-1].failure}")
            try:
                point = next_point(of, self.designer)
            except Exhausted as exhausted:
                self.progress(f"{exhausted}; no more trials")
                break
            of = self._evaluate(of, log, "trial", point, of.spec.source)
            self.progress(f"trial {len(of.of('trial'))} of {trials}: {summary(of, of.entries[-1])}")
        return of

    def _probes(self, of: Study, log: Log, probes: int) -> Study:
        winner = of.best()
        if winner is None:
            return of
        for knob in of.spec.space.knobs:
            for point in probe_points(knob, winner.point, probes):
                if identity(point) not in {identity(entry.point) for entry in of.of("base", "trial", "probe")}:
                    of = self._evaluate(of, log, "probe", point, of.spec.source)
                    self.progress(f"probe of {knob.key}: {summary(of, of.entries[-1])}")
        return of

    def _holdout(self, of: Study, log: Log) -> Study:
        winner, base = of.best(), of.of("base")[0]
        if of.spec.holdout is None:
            return of
        # A class may have its best parameters at another P than the fleet.
        points = [base.point, *([] if winner is None else [winner.point]), *(one.point for one in parameters.classes(of))]
        for point in points:
            seen = {identity(one.point) for one in of.of("holdout")}
            if identity(point) not in seen:
                self.progress("evaluating on the held-out trace")
                of = self._evaluate(of, log, "holdout", point, of.spec.holdout)
        return of

    def _evaluate(self, of: Study, log: Log, kind: Kind, point: Point, source: Source | None) -> Study:
        began = time.monotonic()
        outcome, failure = None, ""
        try:
            outcome = evaluate(of.spec, self.program, point, source)
        except RunFailed as error:
            failure = str(error)
        if outcome is not None and kind != "holdout":
            check_same_fleet(of, outcome)
        entry = study.entry(len(of.entries), kind, point, outcome, failure, time.monotonic() - began)
        log.add(entry)
        return dataclasses.replace(of, entries=(*of.entries, entry))


def next_point(of: Study, designer: Designer) -> dict[str, float]:
    """Returns the next point to evaluate, from all evaluations on the tuning trace."""
    done = [entry.done for entry in of.of("base", "trial", "probe")]
    return designer(of.spec.space, done, seed=of.spec.seed)


def evaluate(spec: Spec, of: Program, point: Point, source: Source | None) -> Outcome:
    """Evaluates a point by the model or by the study's command."""
    settings = {**spec.fixed, **spec.space.texts(point)}
    if source is None:
        if not spec.command:
            raise RunFailed("this study has external evaluations; use `suggest` and `record`")
        measured = program.measure(spec.command, settings, of.timeout_seconds)
        return Outcome(measured.value, measured.excess)
    if spec.policy != "cold_age":
        return _by_time_cost(spec, of.time_costs(source, settings, spec.policy, spec.tier_latency, spec.objective.percentile))
    found = of.evaluate(source, settings, spec.objective, grid=spec.grid, by="class" if spec.by_class else "")
    if spec.stress is not None and source == spec.source:
        stressed = of.evaluate(spec.stress, settings, spec.objective, grid=spec.grid, by="class" if spec.by_class else "")
        groups = {name: choose.worst(pairs, stressed.groups.get(name, pairs)) for name, pairs in found.groups.items()}
        found = dataclasses.replace(found, pairs=choose.worst(found.pairs, stressed.pairs), groups=groups)
    nearest = choose.nearest(found.pairs, spec.objective)
    pair = choose.best(found.pairs, spec.objective) or nearest
    return Outcome(pair.coverage, spec.objective.excess(nearest), pair, found.pairs, found.groups, found.fleet, found.warnings)


def _by_time_cost(spec: Spec, rows: Sequence[TimeCost]) -> Outcome:
    """Returns the coverage over all classes, and the largest excess of a class over its objective."""
    cold = sum(row.cold_bytes for row in rows)
    excess = -1.0
    for row in rows:
        limit = spec.class_limits.get(row.of_class, spec.objective.rate_max) * (1 - spec.objective.margin)
        lost = row.lost if row.lost is not None else 0.0 if row.far_bytes == 0 else choose.EXCESS_MAX
        excess = max(excess, min(lost / limit - 1, choose.EXCESS_MAX) if limit else choose.EXCESS_MAX)
    return Outcome(sum(row.far_bytes for row in rows) / cold if cold else 0.0, excess)


def probe_points(knob: Knob, around: Point, count: int) -> list[dict[str, float]]:
    """Returns `count` values of a knob from bound to bound and two close to the current one, with all others unchanged."""
    if count == 0:
        return []
    here = knob.share(around[knob.key])
    shares = [step / (count - 1) for step in range(count)] if count > 1 else [0.5]
    near = [here + step for step in (-0.05, 0.05) if 0 <= here + step <= 1]
    values = dict.fromkeys(knob.at(share) for share in sorted([*shares, *near]))
    return [{**around, knob.key: value} for value in values if value != around[knob.key]]


def check_same_fleet(of: Study, outcome: Outcome) -> None:
    """Raises `BadStudy` if an outcome is of different memory than the earlier ones, which makes it incomparable."""
    for entry in of.of("base", "trial", "probe"):
        if entry.outcome is not None and entry.outcome.fleet != outcome.fleet:
            raise study.BadStudy(
                f"the trace has changed since {of.directory} began ({entry.outcome.fleet} then, {outcome.fleet} now); "
                "begin a new study, or use `retune`"
            )


def summary(of: Study, entry: Entry) -> str:
    """Returns an evaluation as one line."""
    values = ", ".join(f"{key} {text}" for key, text in of.spec.space.texts(entry.point).items())
    if entry.outcome is None:
        return f"{values}: failed: {entry.failure}"
    found = entry.outcome
    verdict = "" if entry.done.feasible else f", {found.excess:.1%} above the limit"
    if found.pair is None:
        return f"{values}: {found.value:.6g}{verdict}"
    return f"{values}: coverage {found.value:.2%} at K {found.pair.percentile:.2%}, S {found.pair.warmup_seconds:.0f} s{verdict}"
