"""(Pond figure 21) by models that are trained every night, with intervals: `make reproduce-pond-models`.

The forest may call 5 % of workloads insensitive wrongly, because five VMs of a workload must agree before one is placed on the pool
as a whole: with 1 %, it called 1.6 % of the VMs insensitive, and 0.1 % were too slow where 2 % may be. Targets of 5, 10 and 20 %,
of 4 and 8 % for untouched memory, and two VMs that agree in place of five, were tried on traces 1 to 3; others are measured.

The traces are those of `make reproduce-pond-savings`. Of each, the last days are simulated, under all policies: every VM is
predicted by the models of the night before, with the history of its customer until then. Memory is provisioned to the service
level as there.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from thermocline.cluster.kernel import Killed, Refused, run

from . import savings
from .into import keep

FIRST_DAY = 54
"""The day of a trace from which models predict; the days before it are the first to be trained on."""

COUNTERS = 5000
"""Generated workloads whose counters the VMs have. They are not those that the forest is trained on."""

PREDICTORS = {"models": "models", **savings.PREDICTORS}
"""Memory policies: trained models, and those of figure 21 on the same VMs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """Trains models into a directory by `learn`, the words of a command."""

    directory: Path
    learn: Sequence[str]
    insensitive_target: str
    untouched_target: str

    def workloads(self) -> Path:
        """Returns the counters of the VMs. Trains the forest for both latencies the first time."""
        counters = self.directory / "counters.jsonl"
        if not counters.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            samples = self.directory / "workloads.jsonl"
            self._run("generate", "workloads", "--out", str(samples))
            self._run("generate", "workloads", "--count", str(COUNTERS), "--seed", "2", "--out", str(counters))
        return counters

    def models(self, trace: Path) -> Path:
        """Returns the directory with both models for every night of a trace."""
        out = self.directory / f"{trace.stem}-{self.insensitive_target}-{self.untouched_target}"
        if not out.exists():
            made = out.with_suffix(".part")
            made.mkdir(parents=True, exist_ok=True)
            self._run(
                *("train", "nights", "--trace", str(trace), "--target", self.untouched_target),
                *("--first-day", str(FIRST_DAY), "--out", str(made)),
            )
            for share in savings.LATENCIES:
                at = ("--latency", share, "--target", self.insensitive_target)
                forest = made / f"insensitive-{share.removesuffix('%')}.onnx"
                self._run("train", "insensitive", "--samples", str(self.directory / "workloads.jsonl"), *at, "--out", str(forest))
            made.rename(out)
        return out

    def _run(self, *arguments: str) -> None:
        run(self.learn[0], *self.learn[1:], *arguments)


def quality(results: Sequence[savings.Row], share: str) -> savings.Row:
    """Returns how good the models' predictions were at a latency: means over traces, as shares of all VMs or of all memory."""
    added = int(savings.LATENCIES[share].removesuffix("ns"))
    found = [
        row["prediction_quality"]
        for result in results
        for row in result["results"]
        if (row["memory"], row["added_ns"]) == (PREDICTORS["models"], added)
    ]
    return {name: statistics.fmean(one[name] for one in found) for name, value in found[0].items() if isinstance(value, (int, float))}


def main(arguments: Sequence[str]) -> int:
    """Trains, simulates, writes the figure and prints it."""
    made = argparse.ArgumentParser(
        prog="python -m thermocline.report.trained", description="Pond figure 21 by trained models, with intervals over seeds."
    )
    made.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    made.add_argument("--seeds", type=int, default=7, metavar="N", help="traces, 2 to 20 (default: %(default)s)")
    made.add_argument(
        "--first-seed",
        type=int,
        default=4,
        metavar="N",
        help="seed of the first trace (default: %(default)s; the targets were chosen on traces 1 to 3)",
    )
    made.add_argument(
        "--insensitive-target", default="5%", metavar="RATIO", help="largest share of workloads called insensitive wrongly (default: 5%%)"
    )
    made.add_argument("--untouched-target", default="4%", metavar="RATIO", help="largest share of VMs overpredicted (default: 4%%)")
    made.add_argument(
        "--traces", type=Path, default=Path("target/reproduce/savings"), metavar="DIR", help="directory of traces (default: %(default)s)"
    )
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/pond.json"), metavar="FILE", help="report file (default: %(default)s)"
    )
    options = made.parse_args(arguments)
    if not 2 <= options.seeds <= 20:
        made.error("an interval needs 2 to 20 seeds")
    learn = (sys.executable, "-m", "thermocline.learn")
    trainer = Trainer(options.traces / "models", learn, options.insensitive_target, options.untouched_target)
    traces, began = savings.Traces(options.program, options.traces), time.monotonic()
    results = []
    try:
        counters = trainer.workloads()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            models = trainer.models(traces.trace(savings.SENSITIVITY[0], seed))
            case = dataclasses.replace(savings.SENSITIVITY[0], more=("--models", str(models), "--counters", str(counters)))
            results.append(traces.simulate(case, seed, tuple(PREDICTORS.values()), tuple(savings.LATENCIES.values())))
            print(f"trace {seed}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    except (Refused, Killed) as error:
        raise SystemExit(str(error)) from error
    data = savings.figure(results, PREDICTORS) | {
        "seeds": options.seeds,
        "first_seed": options.first_seed,
        "first_day": FIRST_DAY,
        "insensitive_target": options.insensitive_target,
        "untouched_target": options.untouched_target,
        "prediction_quality": {share: quality(results, share) for share in savings.LATENCIES},
        "vms": [result["vms"] for result in results],
        "servers": [result["servers"] for result in results],
        "command": results[0]["command"],
        "elapsed_seconds": time.monotonic() - began,
    }
    keep(options.out, {"figure21_models": data})
    print(f"{options.seeds} seeds in {data['elapsed_seconds']:.0f} s; savings in percent\n{savings.table(data)}")
    for share, found in data["prediction_quality"].items():
        print(f"{share}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    print(f"report in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
