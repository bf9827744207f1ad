"""What tuning gains, and what a search that learns saves: `make reproduce-tuner` (000 sections 5.3 and 6).

On generated fleets, so this shows that the search works and not what a given fleet would save. Three things:

1. A hand that tunes as 000 section 6.2 tells: a few educated guesses, tried in small groups of machines; taken is the
   one that stores most among those that held the objective in every group, for a fleet must not break it.
2. The autotuner, on one week, and both on weeks that neither has seen.
3. How many looks each designer needs to come within 1 % of the exhaustive optimum over K, S and P together, as if the
   model could not answer for all K and S at once; and how many where it can.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.tune import choose, designers, parameters
from thermocline.tune.choose import Objective, Pair
from thermocline.tune.designers import Designer, Done
from thermocline.tune.findings import findings
from thermocline.tune.program import Program, Source
from thermocline.tune.search import Searcher
from thermocline.tune.space import Knob, Space, from_table, identity, in_effect
from thermocline.tune.study import Spec, create, read

GUESSES = ((0.98, 600.0), (0.99, 600.0), (0.99, 3600.0), (0.995, 3600.0), (0.999, 7200.0))
"""K and S of the hand's candidates, the boldest first; P is the objective itself."""

GROUPS, GROUP_JOBS, GROUP_DAYS = 6, 60, 2
"""How many small groups the hand tries them in, how many jobs run in each, and for how long."""

PERCENTILES = (0.5, 0.7, 0.8, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 1.0)
WARMUPS = (0.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
RATES = (0.0003, 0.0005, 0.0007, 0.0009, 0.0011, 0.0013, 0.0015, 0.0017, 0.0019, 0.0021, 0.0025, 0.003, 0.004, 0.006, 0.01)
"""The values of K, S and P among which the exhaustive optimum is sought."""

ENOUGH = 0.99
RATE = parameters.RATE


def main(arguments: Sequence[str]) -> int:
    """Runs all of it, prints the figures and keeps them."""
    asked = _parser().parse_args(arguments)
    program = Program(asked.program)
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731 - one line
    weeks = [Source(jobs=asked.jobs, days=asked.days, seed=seed) for seed in range(1, 2 + asked.holdouts)]
    objective = Objective(0.002)
    figures: dict[str, Any] = {"generated": True, "jobs": asked.jobs, "days": asked.days}
    hand = hand_tuned(program, objective, say)
    figures["hand"] = {"percentile": hand[0], "warmup_seconds": hand[1]}
    tuned = autotuned(program, objective, weeks, asked.out.parent / "tuner-study", asked.trials, say)
    figures |= on_other_weeks(program, objective, weeks[1:], hand, tuned, say)
    figures["tuning_week"] = tuned
    figures |= effort(program, objective, weeks[0], range(1, asked.seeds + 1), say)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


def hand_tuned(program: Program, objective: Objective, say: Callable[[str], None]) -> tuple[float, float]:
    """K and S as a careful hand would have them."""
    grid = _grid(sorted({k for k, _ in GUESSES}), sorted({s for _, s in GUESSES}))
    groups = []
    for seed in range(101, 101 + GROUPS):
        say(f"the hand tries its guesses in group {seed - 100} of {GROUPS}")
        source = Source(jobs=GROUP_JOBS, days=GROUP_DAYS, seed=seed)
        groups.append(program.look(source, {}, objective, grid=grid, by_class=False).pairs)
    return choice_of_hand(groups, objective.rate_max)


def choice_of_hand(groups: Sequence[Sequence[Pair]], rate_max: float) -> tuple[float, float]:
    """Of the guesses that hold in every group, the one that stores most over all of them; the most careful, where none does."""
    stored: dict[tuple[float, float], float] = {}
    for guess in GUESSES:
        tried = [choose.at(pairs, *guess) for pairs in groups]
        if all(pair is not None and pair.holds(rate_max) for pair in tried):
            stored[guess] = sum(pair.stored_bytes for pair in tried if pair is not None)
    return max(stored, key=lambda guess: stored[guess], default=GUESSES[-1])


def autotuned(
    program: Program, objective: Objective, weeks: Sequence[Source], directory: Path, trials: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The findings of a study by the default designer; one that is there already is gone on with."""
    table = program.knobs({})
    if not (directory / "study.json").exists():
        effective = in_effect(table, [parameters.PERCENTILE, parameters.WARMUP])
        spec = Spec(
            space=from_table(table, [RATE], {}),
            objective=objective,
            base=in_effect(table, [RATE]),
            base_pair=(effective[parameters.PERCENTILE], effective[parameters.WARMUP]),
            source=weeks[0],
            holdout=weeks[1],
            program=program.version(),
        )
        create(directory, spec, program.ages(weeks[0], {}))
    study = Searcher(program, designers.named("egobox"), say).run(read(directory), trials, probes=5)
    found = findings(study)
    if found["after"] is None:
        raise SystemExit("nothing that was looked at holds the objective")
    return {key: found[key] for key in ("before", "after", "gain", "holdout", "sensitivity", "parameters", "looks")}


def on_other_weeks(
    program: Program, objective: Objective, weeks: Sequence[Source], hand: tuple[float, float], tuned: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """What the hand's parameters, the defaults and the autotuner's come to on weeks that none of them has seen."""
    after, before = tuned["after"], tuned["before"]
    kinds = {
        "hand_tuned": ({}, hand),
        "defaults": ({}, (before["percentile"], before["warmup_seconds"])),
        "autotuned": (after["parameters"], (after["percentile"], after["warmup_seconds"])),
    }
    rows = []
    for week in weeks:
        say(f"looking at {week}")
        row: dict[str, Any] = {"seed": week.seed}
        looked: dict[str, Sequence[Pair]] = {}
        for name, (settings, pair) in kinds.items():
            key = repr(settings)
            if key not in looked:
                grid = _grid(sorted({k for _, (k, _) in kinds.values()}), sorted({s for _, (_, s) in kinds.values()}))
                looked[key] = program.look(week, settings, objective, grid=grid, by_class=False).pairs
            there = choose.at(looked[key], *pair)
            if there is None:
                raise SystemExit(f"the model left out the pair {pair}")
            row[name] = {"coverage": there.coverage, "saved": there.saved, "rate": there.rate, "holds": there.holds(objective.rate_max)}
        rows.append(row)
    first = rows[0]
    return {
        "coverage_hand_tuned": first["hand_tuned"]["coverage"],
        "coverage_autotuned": first["autotuned"]["coverage"],
        "p98_ratio_per_min": first["autotuned"]["rate"],
        "gain": first["autotuned"]["coverage"] / first["hand_tuned"]["coverage"] - 1,
        "gain_over_defaults": first["autotuned"]["coverage"] / first["defaults"]["coverage"] - 1,
        "weeks": rows,
    }


def effort(program: Program, objective: Objective, week: Source, seeds: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """How many looks each designer needs, on a table of what every point comes to."""
    say("looking at every K, S and P, for the exhaustive optimum")
    space = Space(
        (
            Knob(parameters.PERCENTILE, "percentile", PERCENTILES[0], PERCENTILES[-1], levels=PERCENTILES),
            Knob(parameters.WARMUP, "duration", WARMUPS[0], WARMUPS[-1], levels=WARMUPS),
            Knob(RATE, "ratio per minute", RATES[0], RATES[-1], levels=RATES),
        )
    )
    outcomes = exhaustive(program, objective, week)
    optimum = designers.best(list(outcomes.values()))
    if optimum is None or optimum.value is None:
        raise SystemExit("no point of the table holds the objective")
    good = sum(one.feasible and (one.value or 0.0) >= ENOUGH * optimum.value for one in outcomes.values())
    told: dict[str, Any] = {"exhaustive": {"points": len(outcomes), "within_1_percent": good, "coverage": optimum.value, **optimum.point}}
    per_rate = {rate: max((one for one in outcomes.values() if one.point[RATE] == rate), key=_worth) for rate in RATES}
    rates = Space((space.knobs[2],))
    for name in ("egobox", "random", "optuna"):
        try:
            designer = designers.named(name)
        except designers.Missing:
            continue
        flat, nested = [], []
        for seed in seeds:
            flat.append(needed(space, designer, lambda point: outcomes[identity(point)], ENOUGH * optimum.value, seed))
            nested.append(needed(rates, designer, lambda point: per_rate[point[RATE]], ENOUGH * optimum.value, seed))
            say(f"{name}, seed {seed}: {flat[-1]} looks over K, S and P; {nested[-1]} over P alone")
        told[f"{name}_each"] = flat
        told["trials" if name == "egobox" else f"{name}_trials"] = statistics.median(flat)
        told[f"{name}_trials_over_p_alone"] = statistics.median(nested)
    return told


def exhaustive(program: Program, objective: Objective, week: Source) -> dict[Any, Done]:
    """What every point of the table comes to."""
    outcomes = {}
    grid = _grid(PERCENTILES, WARMUPS)
    for rate in RATES:
        settings = {RATE: f"{rate * 100:.4g}%"}
        for pair in program.look(week, settings, objective, grid=grid, by_class=False).pairs:
            if pair.percentile in PERCENTILES and pair.warmup_seconds in WARMUPS:
                point = {parameters.PERCENTILE: pair.percentile, parameters.WARMUP: pair.warmup_seconds, RATE: rate}
                felt = pair.rate if pair.rate is not None else 0.0
                outcomes[identity(point)] = Done(point, pair.coverage, felt / objective.rate_max - 1)
    return outcomes


def _worth(one: Done) -> tuple[bool, float]:
    """A point that holds before all that do not; then the one that stores most, or breaks least."""
    return one.feasible, (one.value or 0.0) if one.feasible else -(one.excess or 0.0)


def needed(space: Space, designer: Designer, look: Callable[[dict[str, float]], Done], enough: float, seed: int) -> int:
    """How many looks until a feasible one has enough; every point of the space at most."""
    done: list[Done] = []
    while len(done) < (space.size() or 0):
        one = look(designer(space, done, seed=seed))
        # A point of a table with several answers for it (P alone) is known by what was asked.
        done.append(Done({knob.key: one.point[knob.key] for knob in space.knobs}, one.value, one.excess))
        if one.feasible and (one.value or 0.0) >= enough:
            break
    return len(done)


def _grid(percentiles: Sequence[float], warmups: Sequence[float]) -> tuple[str, ...]:
    k = ",".join(f"{percentile * 100:.6g}%" for percentile in percentiles)
    s = ",".join(f"{warmup:.0f}s" for warmup in warmups)
    return ("--percentiles", k, "--warmups", s)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.tuner", description="What tuning gains, on generated fleets.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--out", type=Path, default=Path("target/reproduce/tuner.json"), metavar="FILE", help="default: %(default)s")
    made.add_argument("--jobs", type=int, default=1500, metavar="N", help="jobs that run at any time (default: %(default)s)")
    made.add_argument("--days", type=int, default=7, metavar="N", help="days of each fleet (default: %(default)s)")
    made.add_argument("--trials", type=int, default=15, metavar="N", help="of the autotuner (default: %(default)s)")
    made.add_argument("--holdouts", type=int, default=3, metavar="N", help="weeks that are not tuned on (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=9, metavar="N", help="of each designer (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
