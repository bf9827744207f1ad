"""Promises of both models together, solved and held out: margins of slowdown by shares of VMs (Pond Eq. 1).

`make reproduce-pond-promises`. The settings are solved on a week of generated VMs and on some generated workloads, and verified
on the three days after it and on many other workloads, so that the errors are those of the settings, and hardly those of the test.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thermocline.learn import conformal, curves, features, generate, insensitive, pair, untouched, workloads
from thermocline.learn.curves import Point, Solution

from .into import keep, merged
from .pond import progress

TPS = (0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999)
"""Shares of VMs that must stay within the margin."""
PDMS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10)
"""Margins of slowdown."""
TP, PDM = 0.98, 0.05
"""The paper's promise."""

FEW = 158
"""Workloads that the paper has."""

BOUNDS: Mapping[str, insensitive.Bound] = {
    "as_validated": insensitive.as_validated,
    "with_standard_error": insensitive.with_standard_error,
    "with_one_more": insensitive.with_one_more,
}
"""Margins of the forest's threshold to compare."""

OTHERS_SEED = 1_000
"""Seed of the workloads that verify. Those that train have seeds from 1."""

SOLVED_DAYS, HELD_OUT_DAYS = 7, 3


def main(arguments: Sequence[str]) -> int:
    """Solves, verifies, prints, draws and writes the figures."""
    options = _parser().parse_args(arguments)
    if not options.draw:
        keep(options.out, {"promises": _measured(options)})
    report = merged(options.out, {})["promises"]
    sys.stdout.write("\n".join(_table(report)) + "\n")
    for path in draw(report, options.out.parent / "figures"):
        progress(f"drew {path}")
    return 0


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    nights = _nights(options)
    memory = pair.memory_curve(nights[:-HELD_OUT_DAYS])
    others = workloads.generate(options.others, seed=OTHERS_SEED)

    def promised(count: int, seed: int, pdm: float) -> Evaluate:
        return _promised(nights, memory, workloads.generate(count, seed=seed), others, pdm, seed, options.folds)

    at_tp = {}
    for count, seeds in ((FEW, options.seeds), (options.many, options.many_seeds)):
        found = [promised(count, seed, PDM) for seed in range(1, seeds + 1)]
        at_tp[str(count)] = {name: _mean([evaluate(TP, bound) for evaluate in found]) for name, bound in BOUNDS.items()}
    swept = {pdm: promised(FEW, 1, pdm) for pdm in PDMS}
    sweep = [evaluate(tp, insensitive.BOUND) for evaluate in swept.values() for tp in TPS]
    return {"generated": True, "tp": TP, "pdm": PDM, "at_tp": at_tp, "sweep": sweep}


def _nights(options: argparse.Namespace) -> list[untouched.Night]:
    """Trains for every night of the last days of generated VMs."""
    spec = generate.Spec(vms=options.vms, days=options.days)
    known = features.known(generate.generate(spec, seed=1))
    solved, held_out = pair.days(known, SOLVED_DAYS, HELD_OUT_DAYS)
    return untouched.roll(known, [*solved, *held_out], progress, conformal.QUANTILES)


Evaluate = Callable[[float, insensitive.Bound], dict[str, float]]


def _promised(
    nights: Sequence[untouched.Night],
    memory: Sequence[Point],
    of: workloads.Workloads,
    others: workloads.Workloads,
    pdm: float,
    seed: int,
    folds: int,
) -> Evaluate:
    """Returns the function that solves and verifies promises on these nights and workloads."""
    progress(f"{len(of)} workloads of seed {seed}, margin {pdm:.0%}")
    promise = pair.Promise(TP, pdm, workloads.LATENCIES[0])
    forest = pair.forest_curve(of, promise, seed=seed, folds=folds, progress=progress)
    tested = pair.tested(of, others, promise, seed=seed, folds=folds)

    def evaluate(tp: float, bound: insensitive.Bound) -> dict[str, float]:
        solution = curves.solve(forest, memory, 1 - tp)
        days = range(nights[-HELD_OUT_DAYS].day, nights[-1].day + 1)
        held = pair.verify(nights, days, [tested], solution, bound)
        return {"tp": tp, "pdm": pdm, **_named("solved", solution.insensitive, solution.untouched),
                **_named("held_out", held.insensitive, held.untouched), "wrong": held.wrong, "standard_error": held.standard_error,
                "holds": held.holds(tp)}  # fmt: skip

    return evaluate


def _named(prefix: str, forest: Point, memory: Point) -> dict[str, float]:
    found = {"insensitive": forest.gain, "false_positive": forest.wrong, "untouched": memory.gain, "overpredicted": memory.wrong,
             "pool": Solution(forest, memory).pool}  # fmt: skip
    return {f"{prefix}_{name}_ratio": value for name, value in found.items()}


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over the sets of workloads, the standard error of the mean of the errors, and how many broke the promise."""
    found = {name: statistics.fmean(row[name] for row in rows) for name in rows[0] if name != "holds"}
    spread = statistics.stdev([row["wrong"] for row in rows]) / math.sqrt(len(rows)) if len(rows) > 1 else 0.0
    # The test's own error is the same in all sets, because they share it.
    return {**found, "standard_error": math.hypot(spread, found["standard_error"]), "sets": len(rows),
            "broken": sum(not row["holds"] for row in rows)}  # fmt: skip


def _table(report: Mapping[str, Any]) -> list[str]:
    """Returns the figures as lines of text."""
    lines = [f"promise of {report['tp']:.0%} within {report['pdm']:.0%}: solved, held out, sets of workloads that broke it"]
    head = "workloads  bound                 insensitive  false pos.  untouched  overpred.  wrong  +-      pool    broken"
    lines.append(head)
    for count, by_bound in report["at_tp"].items():
        for name, row in by_bound.items():
            for kind in ("solved", "held_out"):
                shown = [row[f"{kind}_{key}_ratio"] for key in ("insensitive", "false_positive", "untouched", "overpredicted")]
                line = f"{count:>9}  {name:20}  " + "  ".join(f"{value:9.2%}" for value in shown)
                wrong = row["wrong"] if kind == "held_out" else shown[1] + shown[3]
                line += f"  {wrong:6.2%}  {row['standard_error']:6.2%}  {row[f'{kind}_pool_ratio']:6.1%}"
                lines.append(line + (f"  {row['broken']} of {row['sets']}" if kind == "held_out" else "  solved"))
    lines.append(f"{FEW} workloads: DRAM on the pool, held out, by margin and share of VMs; * broken by two standard errors")
    lines.append("margin  " + "  ".join(f"{tp:7.1%}" for tp in TPS))
    for pdm in PDMS:
        cells = [f"{row['held_out_pool_ratio']:6.1%}{' ' if row['holds'] else '*'}" for row in report["sweep"] if row["pdm"] == pdm]
        lines.append(f"{pdm:6.0%}  " + "  ".join(cells))
    return lines


def draw(report: Mapping[str, Any], to: Path) -> list[Path]:
    """Draws DRAM on the pool by promise, and the errors on held-out data by what is permitted."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.hashsalt": "thermocline"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    colours = pyplot.get_cmap("viridis")
    for pdm in (0.01, 0.02, 0.05, 0.10):
        of = [row for row in report["sweep"] if row["pdm"] == pdm]
        permitted = [(1 - row["tp"]) * 100 for row in of]
        style = {"color": colours(0.9 - pdm * 9), "marker": "o", "markersize": 3, "label": f"margin {pdm:.0%}"}
        left.plot(permitted, [row["held_out_pool_ratio"] * 100 for row in of], **style)
        right.plot(permitted, [row["wrong"] * 100 for row in of], **style)
    right.plot([0, 10], [0, 10], color="#b3261e", linewidth=1, linestyle="--", label="promised")
    left.set(xlabel="VMs that may exceed the margin, %", ylabel="DRAM on the pool, %", xlim=(0, 10.5), ylim=(0, None))
    right.set(xlabel="VMs that may exceed the margin, %", ylabel="errors on held-out data, %", xlim=(0, 10.5), ylim=(0, 10.5))
    left.set_title(f"{FEW} workloads, 182% of local latency", fontsize=10)
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("svg", "png"):
        path = to / f"pond-promises.{kind}"
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        written.append(path)
    pyplot.close(figure)
    return written


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.promises", description="Promises of both models, held out.")
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    made.add_argument("--draw", action="store_true", help="only print and draw an existing report")
    made.add_argument("--vms", type=int, default=60_000, metavar="N", help="number of generated VMs (default: %(default)s)")
    made.add_argument("--days", type=int, default=28, metavar="N", help="days of the generated trace (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=6, metavar="N", help="sets of 158 workloads (default: %(default)s)")
    made.add_argument("--many", type=int, default=3000, metavar="N", help="size of the larger sets of workloads (default: %(default)s)")
    made.add_argument("--many-seeds", type=int, default=1, metavar="N", help="number of larger sets (default: %(default)s)")
    made.add_argument("--others", type=int, default=20_000, metavar="N", help="workloads that verify (default: %(default)s)")
    made.add_argument("--folds", type=int, default=10, metavar="N", help="number of splits in the validation (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
