"""The gain of tuning, and the effort that a model-based search saves: `make reproduce-tuner` (SDFM sections 5.3 and 6).

On generated fleets, so the result shows that the search works and not what a real fleet would save. Four parts:

1. Hand tuning as in (SDFM section 6.2): a few candidates are tried in small groups of machines. The candidate that stores
   most among those that held the objective in every group is used, because a fleet must not break the objective.
2. The autotuner on one week, and both parameter sets on weeks that neither was tuned on.
3. The number of evaluations that each designer needs to come within 1 % of the exhaustive optimum over K, S and P, as if
   the model could not compute all K and S at once; and the number with a search over P only.
4. Fleets of four characters: each is tuned by hand and by the autotuner on an ordinary week, the autotuner with a week of 1.6
   times the bursts as stress. Both are evaluated on an ordinary week and on another burst week that neither has seen, each also
   in its worst cluster and on its worst day. And each class gets parameters of its own, with what they store beyond the fleet's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.report import weeks as weeks_of
from thermocline.report.weeks import within
from thermocline.tune import choose, designers, parameters, sampling
from thermocline.tune.choose import Objective, Pair
from thermocline.tune.findings import findings
from thermocline.tune.parameters import ClassParameters
from thermocline.tune.program import Program, Source
from thermocline.tune.sampling import Designer, Evaluation
from thermocline.tune.search import Searcher
from thermocline.tune.space import Knob, Space, from_table, identity, in_effect
from thermocline.tune.study import Spec, create, read

CANDIDATES = ((0.98, 600.0), (0.99, 600.0), (0.99, 3600.0), (0.995, 3600.0), (0.999, 7200.0))
"""K and S of the candidates for hand tuning, the most aggressive first; P is the objective itself."""

GROUPS, GROUP_JOBS, GROUP_DAYS = 6, 60, 2
"""Number of groups for hand tuning, jobs that run in each, and days."""

PERCENTILES = (0.5, 0.7, 0.8, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 1.0)
WARMUPS = (0.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
RATES = (0.0003, 0.0005, 0.0007, 0.0009, 0.0011, 0.0013, 0.0015, 0.0017, 0.0019, 0.0021, 0.0025, 0.003, 0.004, 0.006, 0.01)
"""The values of K, S and P of the exhaustive search."""

CHARACTERS = ("mixed", "phased", "nightly", "heavy_tailed")
"""What most promotions of a fleet are caused by, as `thermocline model --character` takes it."""

BURSTS = 1.6
"""Bursts of the unseen week, as a multiple of those of the week that was tuned on."""

ENOUGH = 0.99
RATE = parameters.RATE


def main(arguments: Sequence[str]) -> int:
    """Runs all parts, prints the figures and writes them."""
    options = _parser().parse_args(arguments)
    program = Program(options.program)
    progress = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731 - one line
    weeks = [Source(jobs=options.jobs, days=options.days, seed=seed) for seed in range(1, 2 + options.holdouts)]
    objective = Objective(0.002)
    figures: dict[str, Any] = {"generated": True, "jobs": options.jobs, "days": options.days}
    hand = hand_tuned(program, objective, progress)
    figures["hand"] = {"percentile": hand[0], "warmup_seconds": hand[1]}
    tuned = autotuned(program, objective, weeks, options.out.parent / "tuner-study", options.trials, progress)
    figures |= on_other_weeks(program, objective, weeks[1:], hand, tuned, progress)
    figures["tuning_week"] = tuned
    figures |= characters(program, objective, options, progress)
    figures |= effort(program, objective, weeks[0], range(1, options.seeds + 1), progress)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


def hand_tuned(
    program: Program, objective: Objective, progress: Callable[[str], None], character: str = "mixed"
) -> tuple[float, float]:  # fmt: skip
    """Returns the K and S of hand tuning."""
    grid = _grid(sorted({k for k, _ in CANDIDATES}), sorted({s for _, s in CANDIDATES}))
    groups = []
    for seed in range(101, 101 + GROUPS):
        progress(f"hand tuning: group {seed - 100} of {GROUPS}")
        source = Source(jobs=GROUP_JOBS, days=GROUP_DAYS, seed=seed, character=character)
        groups.append(program.evaluate(source, {}, objective, grid=grid).pairs)
    return choose_candidate(groups, objective.rate_max)


def choose_candidate(groups: Sequence[Sequence[Pair]], rate_max: float) -> tuple[float, float]:
    """Returns the candidate that stores most among those that hold in every group, or the most conservative if none does."""
    stored: dict[tuple[float, float], float] = {}
    for candidate in CANDIDATES:
        tried = [choose.at(pairs, *candidate) for pairs in groups]
        if all(pair is not None and within(pair, rate_max) for pair in tried):
            stored[candidate] = sum(pair.stored_bytes for pair in tried if pair is not None)
    return max(stored, key=lambda candidate: stored[candidate], default=CANDIDATES[-1])


def characters(
    program: Program, objective: Objective, options: argparse.Namespace, progress: Callable[[str], None]
) -> dict[str, Any]:  # fmt: skip
    """Tunes a fleet of each character by hand and by the autotuner, and evaluates both on weeks that neither has seen."""
    fleets = []
    for character in CHARACTERS:
        progress(f"a {character} fleet")
        tuning, ordinary = (Source(jobs=options.jobs, days=options.days, seed=seed, character=character) for seed in (11, 12))
        burst = Source(jobs=options.jobs, days=options.days, seed=13, character=character, bursts=BURSTS)
        hand = hand_tuned(program, objective, progress, character)
        directory = options.out.parent / f"tuner-study-{character}"
        stress = Source(jobs=options.jobs, days=options.days, seed=14, character=character, bursts=BURSTS)
        tuned = autotuned(program, objective, (tuning, ordinary), directory, options.trials, progress, stress, by_class=True)
        weeks = on_other_weeks(program, objective, (ordinary, burst), hand, tuned, progress)["weeks"]
        gains = [week["autotuned"]["coverage"] / week["hand_tuned"]["coverage"] - 1 for week in weeks]
        after = tuned["after"]
        fleets.append(
            {
                "character": character,
                "hand": {"percentile": hand[0], "warmup_seconds": hand[1]},
                "classes": tuned["classes"],
                "classes_gain": tuned["classes_gain"],
                "autotuned": {"percentile": after["percentile"], "warmup_seconds": after["warmup_seconds"], **after["parameters"]},
                "ordinary_week": weeks[0],
                "burst_week": weeks[1],
                "gain_ordinary": gains[0],
                "gain_burst": gains[1],
            }
        )
    return {
        "fleets": fleets,
        "burst_weeks_held": sum(fleet["burst_week"]["autotuned"]["holds"] for fleet in fleets),
        "gain_min_ratio": min(min(fleet["gain_ordinary"], fleet["gain_burst"]) for fleet in fleets),
    }


def autotuned(
    program: Program,
    objective: Objective,
    weeks: Sequence[Source],
    directory: Path,
    trials: int,
    progress: Callable[[str], None],
    stress: Source | None = None,
    *,
    by_class: bool = False,
) -> dict[str, Any]:
    """Returns the findings of a study by the default designer. Continues an existing study."""
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
            stress=stress,
            by_class=by_class,
            program=program.version(),
        )
        create(directory, spec, program.ages(weeks[0], {}))
    study = Searcher(program, designers.named("egobox"), progress).run(read(directory), trials, probes=5)
    found = findings(study)
    if found["after"] is None:
        raise SystemExit("no evaluated point holds the objective")
    kept = ("before", "after", "gain", "holdout", "sensitivity", "parameters", "evaluations")
    return {key: found[key] for key in kept} | {"classes": found["classes"], "classes_gain": classes_gain(parameters.classes(study))}


def classes_gain(classes: Sequence[ClassParameters]) -> float | None:
    """Returns how much more is stored if each class has its own parameters, as a share of what the fleet's store in all of them."""
    both = [(one.pair.stored_bytes, one.at_fleets.stored_bytes) for one in classes if one.at_fleets is not None]
    fleets = sum(before for _, before in both)
    return sum(after for after, _ in both) / fleets - 1 if fleets else None


def on_other_weeks(
    program: Program, objective: Objective, weeks: Sequence[Source], hand: tuple[float, float], tuned: Mapping[str, Any],
    progress: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Evaluates the hand-tuned, default and autotuned parameters on weeks that none of them was tuned on."""
    after, before = tuned["after"], tuned["before"]
    kinds = {
        "hand_tuned": ({}, hand),
        "cautious": ({}, CANDIDATES[-1]),
        "defaults": ({}, (before["percentile"], before["warmup_seconds"])),
        "autotuned": (after["parameters"], (after["percentile"], after["warmup_seconds"])),
    }
    grid = _grid(sorted({k for _, (k, _) in kinds.values()}), sorted({s for _, (_, s) in kinds.values()}))
    rows = []
    for week in weeks:
        progress(f"evaluating on {week}")
        runs = {settings: program.evaluate(week, dict(settings), objective, grid=grid, by="cluster")
                for settings in {tuple(settings.items()) for settings, _ in kinds.values()}}  # fmt: skip
        by_kind = {name: (runs[tuple(settings.items())], pair) for name, (settings, pair) in kinds.items()}
        days = {
            name: program.days(week, {**settings, **parameters.pair_texts(*pair)}, objective) for name, (settings, pair) in kinds.items()
        }
        shown: dict[str, Any] = {name: weeks_of.row(run, pair, objective, days[name]) for name, (run, pair) in by_kind.items()}
        tuned_stored = weeks_of.stored(*by_kind["autotuned"])
        shown["gain_interval"] = {
            name: weeks_of.gain_interval(weeks_of.stored(run, pair), tuned_stored)
            for name, (run, pair) in by_kind.items()
            if name != "autotuned"
        }
        rows.append({"seed": week.seed, **shown})
    first = rows[0]
    gains = {name: first["autotuned"]["coverage"] / first[name]["coverage"] - 1 for name in kinds if name != "autotuned"}
    return {
        "coverage_hand_tuned": first["hand_tuned"]["coverage"],
        "coverage_autotuned": first["autotuned"]["coverage"],
        "p98_ratio_per_min": first["autotuned"]["rate"],
        "gain": gains["hand_tuned"],
        "gain_over_cautious": gains["cautious"],
        "gain_over_defaults": gains["defaults"],
        "weeks": rows,
    }


def effort(program: Program, objective: Objective, week: Source, seeds: Sequence[int], progress: Callable[[str], None]) -> dict[str, Any]:
    """Returns the number of evaluations that each designer needs, with the results of all points from a table."""
    progress("evaluating every K, S and P, for the exhaustive optimum")
    space = Space(
        (
            Knob(parameters.PERCENTILE, "percentile", PERCENTILES[0], PERCENTILES[-1], levels=PERCENTILES),
            Knob(parameters.WARMUP, "duration", WARMUPS[0], WARMUPS[-1], levels=WARMUPS),
            Knob(RATE, "ratio per minute", RATES[0], RATES[-1], levels=RATES),
        )
    )
    outcomes = exhaustive(program, objective, week)
    optimum = sampling.best(list(outcomes.values()))
    if optimum is None or optimum.value is None:
        raise SystemExit("no point of the table holds the objective")
    good = sum(one.feasible and (one.value or 0.0) >= ENOUGH * optimum.value for one in outcomes.values())
    result: dict[str, Any] = {"exhaustive": {"points": len(outcomes), "within_1_percent": good, "coverage": optimum.value, **optimum.point}}
    per_rate = {rate: max((one for one in outcomes.values() if one.point[RATE] == rate), key=_worth) for rate in RATES}
    rates = Space((space.knobs[2],))
    for name in ("egobox", "random", "optuna"):
        try:
            designer = designers.named(name)
        except sampling.Missing:
            continue
        flat, nested = [], []
        for seed in seeds:
            flat.append(needed(space, designer, lambda point: outcomes[identity(point)], ENOUGH * optimum.value, seed))
            nested.append(needed(rates, designer, lambda point: per_rate[point[RATE]], ENOUGH * optimum.value, seed))
            progress(f"{name}, seed {seed}: {flat[-1]} evaluations over K, S and P; {nested[-1]} over P only")
        result[f"{name}_each"] = flat
        result["trials" if name == "egobox" else f"{name}_trials"] = statistics.median(flat)
        result[f"{name}_trials_over_p_alone"] = statistics.median(nested)
    return result


def exhaustive(program: Program, objective: Objective, week: Source) -> dict[Any, Evaluation]:
    """Returns the results of all points of the table."""
    outcomes = {}
    grid = _grid(PERCENTILES, WARMUPS)
    for rate in RATES:
        settings = {RATE: f"{rate * 100:.4g}%"}
        for pair in program.evaluate(week, settings, objective, grid=grid).pairs:
            if pair.percentile in PERCENTILES and pair.warmup_seconds in WARMUPS:
                point = {parameters.PERCENTILE: pair.percentile, parameters.WARMUP: pair.warmup_seconds, RATE: rate}
                rate_or_zero = pair.rate if pair.rate is not None else 0.0
                outcomes[identity(point)] = Evaluation(point, pair.coverage, rate_or_zero / objective.rate_max - 1)
    return outcomes


def _worth(one: Evaluation) -> tuple[bool, float]:
    """A sort key: feasible points first by value, then infeasible ones by their excess."""
    return one.feasible, (one.value or 0.0) if one.feasible else -(one.excess or 0.0)


def needed(space: Space, designer: Designer, evaluate: Callable[[dict[str, float]], Evaluation], enough: float, seed: int) -> int:
    """Returns the number of evaluations until a feasible point has enough, at most all points of the space."""
    done: list[Evaluation] = []
    while len(done) < (space.size() or 0):
        one = evaluate(designer(space, done, seed=seed))
        # The table may return a point of more dimensions (search over P only); the designer's space determines the identity.
        done.append(Evaluation({knob.key: one.point[knob.key] for knob in space.knobs}, one.value, one.excess))
        if one.feasible and (one.value or 0.0) >= enough:
            break
    return len(done)


def _grid(percentiles: Sequence[float], warmups: Sequence[float]) -> tuple[str, ...]:
    k = ",".join(f"{percentile * 100:.6g}%" for percentile in percentiles)
    s = ",".join(f"{warmup:.0f}s" for warmup in warmups)
    return ("--percentiles", k, "--warmups", s)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.tuner", description="The gain of tuning, on generated fleets.")
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/tuner.json"), metavar="FILE", help="output file (default: %(default)s)"
    )
    made.add_argument("--jobs", type=int, default=1500, metavar="N", help="jobs that run at any time (default: %(default)s)")
    made.add_argument("--days", type=int, default=7, metavar="N", help="days of each fleet (default: %(default)s)")
    made.add_argument("--trials", type=int, default=15, metavar="N", help="trials of the autotuner (default: %(default)s)")
    made.add_argument("--holdouts", type=int, default=3, metavar="N", help="number of held-out weeks (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=9, metavar="N", help="seeds per designer (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
