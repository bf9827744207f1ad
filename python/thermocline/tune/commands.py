"""What the commands do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import compare as comparing
from . import designers, parameters, search, space, study, words
from . import retune as again
from .choose import Objective
from .drift import drift
from .findings import findings
from .page import page
from .program import Program, Source
from .search import Searcher
from .space import BadSpace, Space
from .study import BadStudy, Spec, Study

Act = Callable[[argparse.Namespace], int]

NOTHING_HOLDS = 3
"""The exit code where no point holds the objective."""

_MODELLED = {"cold_age": "cold_age", "pressure": "pressure", "slowdown": "slow"}
"""The table whose knobs the model replays, by policy."""

_PROMISED = {"cold_age": "promotion_rate", "pressure": "stall_target", "slowdown": "slowdown"}
"""The knob of that table which says what jobs are promised; classes have one of the same name."""

_SEARCHED = {
    "cold_age": ["cold_age"],
    "pressure": ["pressure.ratio", "pressure.stall_target"],
    "slowdown": ["slow.slowdown", "slow.sample"],
}
"""What is searched where nothing else is asked for."""

_FREE = (parameters.PERCENTILE, parameters.WARMUP)
"""Never searched where the model looks: every look answers for all of them."""


def run(asked: argparse.Namespace) -> int:
    """`run`."""
    program = Program(asked.program, asked.config, asked.timeout)
    if (asked.study / study.SPEC).exists():
        of = study.read(asked.study)
        if asked.trace or asked.generate or asked.knob or asked.command or asked.bounds or asked.set or asked.told:
            raise BadStudy(
                f"{asked.study} holds a study already, and what it is of never changes; "
                f"go on with `run --study {asked.study}`, or name another directory"
            )
        _say(f"going on with {asked.study}: {len(of.of('trial'))} trials so far")
    else:
        spec = _spec(asked, program)
        _say("looking at how old the memory is")
        study.create(asked.study, spec, program.ages(spec.source, spec.fixed) if spec.source else [])
        of = study.read(asked.study)
    if of.spec.source is None and not of.spec.command:
        _print(
            asked,
            {"study": str(of.directory)},
            f"{of.directory}: begun; `suggest` tells where to look, `tell` takes what was found\n",
        )
        return 0
    of = Searcher(program, designers.named(of.spec.designer), _say).run(of, asked.trials, asked.probes)
    return _conclude(asked, of, None)


def report(asked: argparse.Namespace) -> int:
    """`report`."""
    of = study.read(asked.study)
    found, retuned = findings(of), again.read(asked.study)
    if asked.page:
        asked.page.write_text(page(found, retuned), encoding="utf-8")
        _say(f"wrote {asked.page}")
    _print(asked, found | {"retune": retuned}, words.report(found, retuned))
    return 0


def bundle(asked: argparse.Namespace) -> int:
    """`bundle`."""
    of = study.read(asked.study)
    given = parameters.chosen(of)
    if given is None:
        raise BadStudy(f"{asked.study} has found nothing that holds the objective, so there is nothing to bring to the machines")
    about = parameters.about(findings(of), asked.version, asked.id or asked.study.resolve().name, time.time(), asked.lasts)
    parameters.write_whole(asked.to, given.bundle(about))
    told = {"written": str(asked.to), "version": about.version, "id": about.id, "parameters": dict(given.values)}
    _print(asked, told, f"wrote {asked.to}: bundle {about.version}, {about.id}; sign and publish it with `thermocline rollout publish`\n")
    return 0


def compare(asked: argparse.Namespace) -> int:
    """`compare`."""
    rows = comparing.compare([findings(study.read(directory)) for directory in asked.studies])
    _print(asked, rows, words.comparison(rows))
    return 0


def retune(asked: argparse.Namespace) -> int:
    """`retune`."""
    program = Program(asked.program, asked.config, asked.timeout)
    old = study.read(asked.study)
    source, holdout = _source(asked), _holdout(asked)
    _say("comparing the fleet with what was tuned on")
    spec = again.follow(old, source, holdout, time.time())
    ages = program.ages(source, old.spec.fixed)
    rate = again.rate_now(old, program, source)
    why = again.reasons(old, drift(old.ages, ages), rate, now_unix=time.time(), every_seconds=asked.every, drift_max=asked.drift)
    if asked.force:
        why.append(again.Reason("asked", 1.0, 1.0, True, "asked for with --force"))
    due = any(reason.due for reason in why)
    if not due or asked.dry_run:
        told = {
            "due": due,
            "reasons": [{"what": one.what, "value": one.value, "limit": one.limit, "due": one.due} for one in why],
        }
        head = "it is time to tune again\n" if due else "it is not time to tune again\n"
        _print(asked, told, head + "".join(f"  {'*' if one.due else ' '} {one.text}\n" for one in why))
        return 0
    for one in why:
        _say(f"{'*' if one.due else ' '} {one.text}")
    of = again.begin(spec, asked.to, ages)
    of = Searcher(program, designers.named(of.spec.designer), _say).run(of, asked.trials, asked.probes)
    retuned = again.write(of, why, again.changes(of, program, _say))
    return _conclude(asked, of, retuned)


def suggest(asked: argparse.Namespace) -> int:
    """`suggest`."""
    of = study.read(asked.study)
    point = search.next_point(of, designers.named(of.spec.designer))
    texts = of.spec.space.texts(point)
    _print(asked, {"point": point, "set": texts}, "".join(f"--set {key}={text}\n" for key, text in texts.items()))
    return 0


def tell(asked: argparse.Namespace) -> int:
    """`tell`."""
    of = study.read(asked.study)
    if of.spec.source is not None:
        raise BadStudy(f"{asked.study} looks for itself, by the model; begin a study with --told for looks that are taken elsewhere")
    point = dict(asked.set)
    if not of.spec.space.contains(point):
        wanted = ", ".join(f"{knob.key} from {knob.text(knob.low)} to {knob.text(knob.high)}" for knob in of.spec.space.knobs)
        raise BadSpace(f"not a point of the study; give {wanted}, each once")
    if (asked.failed is None) == (asked.value is None) or (asked.value is None) != (asked.excess is None):
        raise ValueError("give --value and --excess, or --failed with the reason")
    outcome = None if asked.value is None else study.Outcome(asked.value, asked.excess)
    with study.writing(asked.study) as log:
        of = study.read(asked.study)
        kind: study.Kind = "base" if not of.entries and point == dict(of.spec.base) else "trial"
        entry = study.entry(len(of.entries), kind, point, outcome, asked.failed or "", 0.0)
        log.add(entry)
    _print(asked, {"number": entry.number}, f"look {entry.number}: {search.told(of, entry)}\n")
    return 0


def _spec(asked: argparse.Namespace, program: Program) -> Spec:
    given = dict(asked.set)
    table = program.knobs(given)
    measured = bool(asked.command) or asked.told
    source = None if measured else _source(asked)
    of_space = _space(asked, table, measured=measured)
    searched = {knob.key for knob in of_space.knobs}
    if asked.by_class and (measured or asked.policy != "cold_age"):
        raise BadSpace("--by-class is of policy cold_age, whose K and S the model tells for each class; leave it out")
    both = searched & set(given)
    if both:
        raise BadSpace(f"{', '.join(sorted(both))} is both searched and set; do one of the two")
    # What a configuration file says now is kept, so that the study does not change when the file does.
    modelled = {str(row["key"]): str(row["value"]) for row in table if str(row["key"]).startswith(_MODELLED[asked.policy] + ".")}
    fixed = given if measured else {key: text for key, text in modelled.items() if key not in searched} | given
    promised = f"{_MODELLED[asked.policy]}.{_PROMISED[asked.policy]}"
    numbers = space.in_effect(table, [promised, *_FREE, *sorted(searched)])
    rates = {
        str(row["key"]).split(".")[1]: float(row["number"])
        for row in table
        if str(row["key"]).endswith("." + _PROMISED[asked.policy]) and str(row["key"]).startswith("class.")
    }
    objective = Objective(
        numbers[promised] if asked.objective is None else asked.objective,
        asked.objective_percentile,
        asked.margin,
    )
    grid = [word for name in ("percentiles", "warmups") if getattr(asked, name) for word in (f"--{name}", getattr(asked, name))]
    return Spec(
        space=of_space,
        objective=objective,
        base={knob.key: numbers[knob.key] for knob in of_space.knobs},
        base_pair=None if measured or asked.policy != "cold_age" else (numbers[_FREE[0]], numbers[_FREE[1]]),
        source=source,
        holdout=None if measured else _holdout(asked),
        command=tuple(asked.command),
        fixed=fixed,
        class_limits=rates,
        by_class=asked.by_class,
        grid=tuple(grid),
        policy=asked.policy,
        tier_latency=asked.tier_latency,
        designer=asked.designer,
        seed=asked.seed,
        program=program.version(),
        began_unix=round(time.time(), 3),
    )


def _space(asked: argparse.Namespace, table: list[dict[str, Any]], *, measured: bool) -> Space:
    if measured:
        if not asked.knob:
            raise BadSpace("name what to search with --knob, such as --knob pressure")
        return space.from_table(table, asked.knob, dict(asked.bounds))
    whole = space.from_table(table, asked.knob or _SEARCHED[asked.policy], dict(asked.bounds))
    searched = tuple(knob for knob in whole.knobs if knob.key not in _FREE)
    unknown = [knob.key for knob in searched if not knob.key.startswith(_MODELLED[asked.policy] + ".")]
    if unknown:
        raise BadSpace(
            f"the model does not replay {', '.join(unknown)} under policy {asked.policy}; give another --policy, measure with "
            "--command, or take looks elsewhere with --told"
        )
    if not searched:
        raise BadSpace("K and S alone need no search: `thermocline model` answers for all of them in one pass")
    return Space(searched)


def _source(asked: argparse.Namespace) -> Source:
    if asked.trace and asked.generate:
        raise ValueError("give --trace or --generate, not both")
    if not asked.trace and not asked.generate:
        raise ValueError("give what to tune on: --trace PATH, or --generate JOBS")
    return Source(tuple(asked.trace), asked.generate or 0, asked.days, asked.fleet_seed)


def _holdout(asked: argparse.Namespace) -> Source | None:
    if asked.holdout_trace:
        return Source(trace=tuple(asked.holdout_trace))
    if asked.holdout_seed is None:
        return None
    if not asked.generate:
        raise ValueError("--holdout-seed is of made-up fleets; give --holdout-trace")
    if asked.holdout_seed == asked.fleet_seed:
        raise ValueError(f"--holdout-seed {asked.holdout_seed} is the fleet that is tuned on; give another")
    return Source((), asked.generate, asked.days, asked.holdout_seed)


def _conclude(asked: argparse.Namespace, of: Study, retuned: Mapping[str, Any] | None) -> int:
    """Tells what was found, and writes the parameters where something holds."""
    found = findings(of)
    given = parameters.chosen(of)
    written: list[Path] = []
    if given is not None:
        written = list(parameters.write(of, given, found, asked.out or of.directory / "parameters.toml"))
        _say(f"wrote {written[0]} and {written[1].name}")
    _print(asked, found | {"retune": retuned, "written": [str(path) for path in written]}, words.report(found, retuned))
    return 0 if given is not None else NOTHING_HOLDS


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(asked: argparse.Namespace, value: object, text: str) -> None:
    sys.stdout.write(json.dumps(value) + "\n" if asked.format == "json" else text)
