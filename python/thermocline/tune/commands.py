"""The commands of the tuner."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import compare as comparing
from . import designers, parameters, search, space, study, text
from . import retune as retuning
from .choose import Objective
from .drift import drift
from .findings import broken_on_holdout, findings
from .page import page
from .program import Program, Source
from .search import Searcher
from .space import BadSpace, Space
from .study import BadStudy, Spec, Study

Act = Callable[[argparse.Namespace], int]

NOTHING_HOLDS = 3
"""The exit code if no point holds the objective."""

HOLDOUT_BROKEN = 4
"""The exit code if the parameters break the objective on the held-out trace."""

STRESS_JOBS = 2_000
"""Jobs of the fleet that is resampled from the worst days: a week of them has 4 million entries."""

_MODELLED = {"cold_age": "cold_age", "pressure": "pressure", "slowdown": "slow"}
"""The table of the knobs that the model replays, by policy."""

_PROMISED = {"cold_age": "promotion_rate", "pressure": "stall_target", "slowdown": "slowdown"}
"""The knob of that table with the objective of jobs. Classes have a knob of the same name."""

_SEARCHED = {
    "cold_age": ["cold_age"],
    "pressure": ["pressure.ratio", "pressure.stall_target"],
    "slowdown": ["slow.slowdown", "slow.sample"],
}
"""The knobs that are searched by default."""

_FREE = (parameters.PERCENTILE, parameters.WARMUP)
"""Knobs that are never searched with the model: every evaluation contains the results of all their values."""


def run(options: argparse.Namespace) -> int:
    """Begins or continues a study."""
    program = Program(options.program, options.config, options.timeout)
    if (options.study / study.SPEC).exists():
        of = study.read(options.study)
        described = (options.trace, options.generate, options.knob, options.command, options.bounds, options.set, options.external)
        if any((*described, options.stress_trace, options.stress_bursts, options.stress_worst_days)):
            raise BadStudy(
                f"{options.study} holds a study, whose description cannot change; "
                f"continue it with `run --study {options.study}`, or use another directory"
            )
        _progress(f"continuing {options.study} after {len(of.of('trial'))} trials")
    else:
        spec = _spec(options, program)
        _progress("reading the age of the memory")
        study.create(options.study, spec, program.ages(spec.source, spec.fixed) if spec.source else [])
        of = study.read(options.study)
    if of.spec.source is None and not of.spec.command:
        _print(
            options,
            {"study": str(of.directory)},
            f"{of.directory}: created; `suggest` shows the next point, `record` records its result\n",
        )
        return 0
    of = Searcher(program, designers.named(of.spec.designer), _progress).run(of, options.trials, options.probes)
    return _conclude(options, of, None)


def report(options: argparse.Namespace) -> int:
    """Shows the results of a study."""
    of = study.read(options.study)
    found, retuned = findings(of), retuning.read(options.study)
    if options.page:
        options.page.write_text(page(found, retuned), encoding="utf-8")
        _progress(f"wrote {options.page}")
    _print(options, found | {"retune": retuned}, text.report(found, retuned))
    return 0


def bundle(options: argparse.Namespace) -> int:
    """Writes the parameters of a study as a bundle."""
    of = study.read(options.study)
    given = parameters.chosen(of)
    if given is None:
        raise BadStudy(f"{options.study} has no point that holds the objective, so there are no parameters for a bundle")
    broken = broken_on_holdout(findings(of))
    if broken and not options.despite_holdout:
        raise BadStudy(
            f"the parameters of {options.study} break the objective on the held-out trace: {'; '.join(broken)}; no bundle was "
            "written. Tune on more weeks or with a larger --margin, or give --despite-holdout"
        )
    name = options.id or options.study.resolve().name
    info = parameters.bundle_info(findings(of), options.version, name, time.time(), options.lasts)
    parameters.write_whole(options.to, given.bundle(info))
    result = {"written": str(options.to), "version": info.version, "id": info.id, "parameters": dict(given.values)}
    _print(
        options, result, f"wrote {options.to}: bundle {info.version}, {info.id}; sign and publish it with `thermocline rollout publish`\n"
    )
    return 0


def compare(options: argparse.Namespace) -> int:
    """Compares studies."""
    rows = comparing.compare([findings(study.read(directory)) for directory in options.studies])
    _print(options, rows, text.comparison(rows))
    return 0


def retune(options: argparse.Namespace) -> int:
    """Tunes again if it is due."""
    program = Program(options.program, options.config, options.timeout)
    old = study.read(options.study)
    source, holdout = _source(options), _holdout(options)
    _progress("comparing the fleet with the one that was tuned on")
    spec = retuning.follow(old, source, holdout, time.time())
    ages = program.ages(source, old.spec.fixed)
    rate = retuning.rate_now(old, program, source)
    reasons = retuning.reasons(old, drift(old.ages, ages), rate, now_unix=time.time(), every_seconds=options.every, drift_max=options.drift)
    if options.force:
        reasons.append(retuning.Reason("asked", 1.0, 1.0, True, "requested with --force"))
    due = any(reason.due for reason in reasons)
    if not due or options.dry_run:
        result = {
            "due": due,
            "reasons": [{"what": one.what, "value": one.value, "limit": one.limit, "due": one.due} for one in reasons],
        }
        head = "tuning is due\n" if due else "tuning is not due\n"
        _print(options, result, head + "".join(f"  {'*' if one.due else ' '} {one.text}\n" for one in reasons))
        return 0
    for one in reasons:
        _progress(f"{'*' if one.due else ' '} {one.text}")
    of = retuning.begin(spec, options.to, ages)
    of = Searcher(program, designers.named(of.spec.designer), _progress).run(of, options.trials, options.probes)
    retuned = retuning.write(of, reasons, retuning.changes(of, program, _progress))
    return _conclude(options, of, retuned)


def suggest(options: argparse.Namespace) -> int:
    """Shows the next point to evaluate."""
    of = study.read(options.study)
    point = search.next_point(of, designers.named(of.spec.designer))
    texts = of.spec.space.texts(point)
    _print(options, {"point": point, "set": texts}, "".join(f"--set {key}={value}\n" for key, value in texts.items()))
    return 0


def record(options: argparse.Namespace) -> int:
    """Records the result of an external evaluation."""
    of = study.read(options.study)
    if of.spec.source is not None:
        raise BadStudy(f"{options.study} is evaluated by the model; begin a study with --external to record results")
    point = dict(options.set)
    if not of.spec.space.contains(point):
        expected = ", ".join(f"{knob.key} from {knob.text(knob.low)} to {knob.text(knob.high)}" for knob in of.spec.space.knobs)
        raise BadSpace(f"not a point of the study; give {expected}, each once")
    if (options.failed is None) == (options.value is None) or (options.value is None) != (options.excess is None):
        raise ValueError("give --value and --excess, or --failed with the reason")
    outcome = None if options.value is None else study.Outcome(options.value, options.excess)
    with study.writing(options.study) as log:
        of = study.read(options.study)
        kind: study.Kind = "base" if not of.entries and point == dict(of.spec.base) else "trial"
        entry = study.entry(len(of.entries), kind, point, outcome, options.failed or "", 0.0)
        log.add(entry)
    _print(options, {"number": entry.number}, f"evaluation {entry.number}: {search.summary(of, entry)}\n")
    return 0


def _spec(options: argparse.Namespace, program: Program) -> Spec:
    given = dict(options.set)
    table = program.knobs(given)
    measured = bool(options.command) or options.external
    searched_space = _space(options, table, measured=measured)
    searched = {knob.key for knob in searched_space.knobs}
    if options.by_class and (measured or options.policy != "cold_age"):
        raise BadSpace("--by-class requires policy cold_age and the model, which computes K and S for each class; remove it")
    stressed = options.stress_trace or options.stress_bursts is not None or options.stress_worst_days is not None
    if stressed and (measured or options.policy != "cold_age"):
        raise BadSpace("--stress-trace, --stress-bursts and --stress-worst-days require policy cold_age and the model; remove them")
    both = searched & set(given)
    if both:
        raise BadSpace(f"{', '.join(sorted(both))} is both searched and set; do one of the two")
    # The values of the configuration file are stored, so that the study does not change when the file does.
    modelled = {str(row["key"]): str(row["value"]) for row in table if str(row["key"]).startswith(_MODELLED[options.policy] + ".")}
    promised = f"{_MODELLED[options.policy]}.{_PROMISED[options.policy]}"
    numbers = space.in_effect(table, [promised, *_FREE, *sorted(searched)])
    return Spec(
        space=searched_space,
        objective=Objective(
            numbers[promised] if options.objective is None else options.objective,
            options.objective_percentile,
            options.margin,
            options.tail,
        ),
        base={knob.key: numbers[knob.key] for knob in searched_space.knobs},
        base_pair=None if measured or options.policy != "cold_age" else (numbers[_FREE[0]], numbers[_FREE[1]]),
        source=None if measured else _source(options),
        holdout=None if measured else _holdout(options),
        stress=None if measured else _stress(options),
        command=tuple(options.command),
        fixed=given if measured else {key: value for key, value in modelled.items() if key not in searched} | given,
        class_limits=_class_limits(options, table),
        by_class=options.by_class,
        grid=_grid(options),
        policy=options.policy,
        tier_latency=options.tier_latency,
        designer=options.designer,
        seed=options.seed,
        program=program.version(),
        began_unix=round(time.time(), 3),
    )


def _class_limits(options: argparse.Namespace, table: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the objective of each class in the configuration."""
    return {
        str(row["key"]).split(".")[1]: float(row["number"])
        for row in table
        if str(row["key"]).endswith("." + _PROMISED[options.policy]) and str(row["key"]).startswith("class.")
    }


def _grid(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the model's arguments for the values of K and S, and for thresholds that no tracker resolved."""
    names = [name for name in ("percentiles", "warmups") if getattr(options, name)]
    allowed = ("--allow-unresolved",) if options.allow_unresolved else ()
    return tuple(argument for name in names for argument in (f"--{name}", getattr(options, name))) + allowed


def _space(options: argparse.Namespace, table: list[dict[str, Any]], *, measured: bool) -> Space:
    if measured:
        if not options.knob:
            raise BadSpace("name the knobs to search with --knob, such as --knob pressure")
        return space.from_table(table, options.knob, dict(options.bounds))
    whole = space.from_table(table, options.knob or _SEARCHED[options.policy], dict(options.bounds))
    searched = tuple(knob for knob in whole.knobs if knob.key not in _FREE)
    unknown = [knob.key for knob in searched if not knob.key.startswith(_MODELLED[options.policy] + ".")]
    if unknown:
        raise BadSpace(
            f"the model does not replay {', '.join(unknown)} under policy {options.policy}; use another --policy, evaluate with "
            "--command, or record external evaluations with --external"
        )
    if not searched:
        raise BadSpace("K and S need no search: `thermocline model` computes all of them in one run")
    return Space(searched)


def _source(options: argparse.Namespace) -> Source:
    if options.trace and options.generate:
        raise ValueError("give --trace or --generate, not both")
    if not options.trace and not options.generate:
        raise ValueError("name the input to tune on: --trace PATH, or --generate JOBS")
    return Source(tuple(options.trace), options.generate or 0, options.days, options.fleet_seed)


def _stress(options: argparse.Namespace) -> Source | None:
    if options.stress_worst_days is not None:
        if not options.trace or options.stress_trace:
            raise ValueError("--stress-worst-days resamples the traces of --trace; give those, and no --stress-trace")
        if options.stress_worst_days < 1:
            raise ValueError(f"--stress-worst-days {options.stress_worst_days}; give at least 1")
        return Source(tuple(options.trace), seed=options.seed, resample=STRESS_JOBS, worst_days=options.stress_worst_days)
    if options.stress_trace:
        return Source(trace=tuple(options.stress_trace))
    if options.stress_bursts is None:
        return None
    if not options.generate:
        raise ValueError("--stress-bursts is for generated fleets; give the worst week of your own as --stress-trace")
    # A seed of its own: the week that is tuned on would be known.
    return Source((), options.generate, options.days, options.fleet_seed + 1_000_003, bursts=options.stress_bursts)


def _holdout(options: argparse.Namespace) -> Source | None:
    if options.holdout_trace:
        return Source(trace=tuple(options.holdout_trace))
    if options.holdout_seed is None:
        return None
    if not options.generate:
        raise ValueError("--holdout-seed is for generated fleets; give --holdout-trace")
    if options.holdout_seed == options.fleet_seed:
        raise ValueError(f"--holdout-seed {options.holdout_seed} is the fleet that is tuned on; give another seed")
    return Source((), options.generate, options.days, options.holdout_seed)


def _conclude(options: argparse.Namespace, of: Study, retuned: Mapping[str, Any] | None) -> int:
    """Prints the results, and writes the parameters if a point holds the objective."""
    found = findings(of)
    given = parameters.chosen(of)
    written: list[Path] = []
    broken = broken_on_holdout(found)
    if broken:
        _progress(f"no parameters were written: on the held-out trace {'; '.join(broken)}")
    elif given is not None:
        written = list(parameters.write(of, given, found, options.out or of.directory / "parameters.toml"))
        _progress(f"wrote {written[0]} and {written[1].name}")
    _print(options, found | {"retune": retuned, "written": [str(path) for path in written]}, text.report(found, retuned))
    if broken:
        return HOLDOUT_BROKEN
    return 0 if given is not None else NOTHING_HOLDS


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(options: argparse.Namespace, value: object, plain: str) -> None:
    sys.stdout.write(json.dumps(value) + "\n" if options.format == "json" else plain)
