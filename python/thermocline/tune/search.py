"""The loop: ask a designer, look, write down; then what a report needs beside the trials.

What is done next follows from what the study holds, so a search that ended anywhere, or was killed, goes on where it was.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from . import choose, parameters, program, study
from .choose import Pair
from .designers import Designer, Exhausted
from .program import Failed, Program, Source, Waits
from .space import Knob, Point, identity
from .study import Entry, Kind, Log, Outcome, Spec, Study

FAILURES_MAX = 5
"""Looks that may fail one after the other before the search gives up."""

EXCESS_MAX = 1e3
"""What stands for an excess without bound."""

Say = Callable[[str], None]
"""Where progress is told."""


@dataclasses.dataclass(frozen=True, slots=True)
class Searcher:
    """What a search needs beside the study itself."""

    program: Program
    designer: Designer
    say: Say

    def run(self, of: Study, trials: int, probes: int) -> Study:
        """Brings a study to so many trials, and each knob to so many probes around the best of them."""
        with study.writing(of.directory) as log:
            of = study.read(of.directory)
            of = self._base(of, log)
            of = self._trials(of, log, trials)
            of = self._probes(of, log, probes)
            return self._holdout(of, log)

    def _base(self, of: Study, log: Log) -> Study:
        if of.of("base"):
            return of
        self.say("looking at the parameters in effect")
        of = self._look(of, log, "base", of.spec.base, of.spec.source)
        if of.entries[-1].outcome is None:
            raise Failed(f"the parameters in effect cannot be looked at: {of.entries[-1].failure}")
        return of

    def _trials(self, of: Study, log: Log, trials: int) -> Study:
        while len(of.of("trial")) < trials:
            last = of.of("trial")[-FAILURES_MAX:]
            if len(last) == FAILURES_MAX and all(entry.outcome is None for entry in last):
                raise Failed(f"{FAILURES_MAX} looks failed one after the other, the last with: {last[-1].failure}")
            try:
                point = next_point(of, self.designer)
            except Exhausted as over:
                self.say(f"{over}; no more trials")
                break
            of = self._look(of, log, "trial", point, of.spec.source)
            self.say(f"trial {len(of.of('trial'))} of {trials}: {told(of, of.entries[-1])}")
        return of

    def _probes(self, of: Study, log: Log, probes: int) -> Study:
        winner = of.best()
        if winner is None:
            return of
        for knob in of.spec.space.knobs:
            for point in probe_points(knob, winner.point, probes):
                if identity(point) not in {identity(entry.point) for entry in of.of("base", "trial", "probe")}:
                    of = self._look(of, log, "probe", point, of.spec.source)
                    self.say(f"probe of {knob.key}: {told(of, of.entries[-1])}")
        return of

    def _holdout(self, of: Study, log: Log) -> Study:
        winner, base = of.best(), of.of("base")[0]
        if of.spec.holdout is None:
            return of
        # A class may be best off at another P than the fleet.
        points = [base.point, *([] if winner is None else [winner.point]), *(one.point for one in parameters.classes(of))]
        for point in points:
            seen = {identity(one.point) for one in of.of("holdout")}
            if identity(point) not in seen:
                self.say("looking at the week that was not tuned on")
                of = self._look(of, log, "holdout", point, of.spec.holdout)
        return of

    def _look(self, of: Study, log: Log, kind: Kind, point: Point, source: Source | None) -> Study:
        began = time.monotonic()
        outcome, failure = None, ""
        try:
            outcome = look(of.spec, self.program, point, source)
        except Failed as error:
            failure = str(error)
        if outcome is not None and kind != "holdout":
            check_same_fleet(of, outcome)
        entry = study.entry(len(of.entries), kind, point, outcome, failure, time.monotonic() - began)
        log.add(entry)
        return dataclasses.replace(of, entries=(*of.entries, entry))


def next_point(of: Study, designer: Designer) -> dict[str, float]:
    """Where the designer would look next, knowing all that was looked at on the tuning week."""
    done = [entry.done for entry in of.of("base", "trial", "probe")]
    return designer(of.spec.space, done, seed=of.spec.seed)


def look(spec: Spec, of: Program, point: Point, source: Source | None) -> Outcome:
    """What a point comes to, by the model or by the study's command."""
    settings = {**spec.fixed, **spec.space.texts(point)}
    if source is None:
        if not spec.command:
            raise Failed("this study's looks are told, not run; see `suggest` and `tell`")
        measured = program.measure(spec.command, settings, of.timeout_seconds)
        return Outcome(measured.value, measured.excess)
    if spec.policy != "cold_age":
        return _by_waits(spec, of.waits(source, settings, spec.policy, spec.tier_latency, spec.objective.percentile))
    found = of.look(source, settings, spec.objective, grid=spec.grid, by_class=spec.by_class)
    limit = spec.objective.limit
    calm = choose.calmest(found.pairs)
    pair = choose.best(found.pairs, limit) or calm
    excess = _excess(calm, limit)
    return Outcome(pair.coverage, excess, pair, found.pairs, found.groups, found.fleet)


def _by_waits(spec: Spec, rows: Sequence[Waits]) -> Outcome:
    """Coverage over all classes, and the excess of the class that is worst off against what it was promised."""
    cold = sum(row.cold_bytes for row in rows)
    excess = -1.0
    for row in rows:
        limit = spec.class_limits.get(row.of_class, spec.objective.rate_max) * (1 - spec.objective.margin)
        lost = row.lost if row.lost is not None else 0.0 if row.far_bytes == 0 else EXCESS_MAX
        excess = max(excess, min(lost / limit - 1, EXCESS_MAX) if limit else EXCESS_MAX)
    return Outcome(sum(row.far_bytes for row in rows) / cold if cold else 0.0, excess)


def _excess(calm: Pair, limit: float) -> float:
    if calm.rate is None:
        return -1.0 if calm.holds(limit) else EXCESS_MAX
    return min(calm.rate / limit - 1, EXCESS_MAX)


def probe_points(knob: Knob, around: Point, count: int) -> list[dict[str, float]]:
    """`count` values of a knob from bound to bound, and two near the one at hand, all else as it is."""
    if count == 0:
        return []
    here = knob.share(around[knob.key])
    shares = [step / (count - 1) for step in range(count)] if count > 1 else [0.5]
    near = [here + step for step in (-0.05, 0.05) if 0 <= here + step <= 1]
    values = dict.fromkeys(knob.at(share) for share in sorted([*shares, *near]))
    return [{**around, knob.key: value} for value in values if value != around[knob.key]]


def check_same_fleet(of: Study, outcome: Outcome) -> None:
    """Looks at different memory cannot be compared."""
    for entry in of.of("base", "trial", "probe"):
        if entry.outcome is not None and entry.outcome.fleet != outcome.fleet:
            raise study.BadStudy(
                f"the trace has changed since {of.directory} began ({entry.outcome.fleet} then, {outcome.fleet} now); "
                "begin a new study, or use `retune`"
            )


def told(of: Study, entry: Entry) -> str:
    """A look in a line."""
    values = ", ".join(f"{key} {text}" for key, text in of.spec.space.texts(entry.point).items())
    if entry.outcome is None:
        return f"{values}: failed: {entry.failure}"
    found = entry.outcome
    verdict = "" if entry.done.feasible else f", {found.excess:.1%} too much"
    if found.pair is None:
        return f"{values}: {found.value:.6g}{verdict}"
    return f"{values}: coverage {found.value:.2%} at K {found.pair.percentile:.2%}, S {found.pair.warmup_seconds:.0f} s{verdict}"
