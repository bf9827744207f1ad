"""The command line of the models. Results are printed to standard output, progress and errors to standard error."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from thermocline.tune.quantity import number, ratio

from . import commands, generate, insensitive, untouched, workloads
from .lives import Failed
from .vms import BadTrace
from .workloads import BadSamples

_EPILOG = """\
All steps, on generated VMs and workloads:

  thermocline-learn generate vms --out vms.parquet
  thermocline-learn generate workloads --out workloads.jsonl
  thermocline-learn train untouched --trace vms.parquet --out untouched.onnx
  thermocline-learn train insensitive --samples workloads.jsonl --out insensitive.onnx
  thermocline-learn evaluate untouched --trace vms.parquet --curve untouched.json
  thermocline-learn evaluate insensitive --samples workloads.jsonl --curve insensitive.json
  thermocline-learn train pair --trace vms.parquet --samples workloads.jsonl --tp 95% --out models
  thermocline-learn solve --untouched untouched.json --insensitive insensitive.json
"""

Kinds = argparse._SubParsersAction  # argparse has no public name for this type.


def main(arguments: Sequence[str]) -> int:
    """Runs one command. Returns the exit code: 0 done, 1 failed, 2 invalid arguments, 3 promise broken."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.act(options)
    except ModuleNotFoundError as error:
        print(f"thermocline-learn: {error}; install the package's extra: pip install 'thermocline[learn]'", file=sys.stderr)
        return 1
    except (BadTrace, BadSamples, Failed, ValueError, OSError) as error:
        print(f"thermocline-learn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("thermocline-learn: stopped; nothing was written", file=sys.stderr)
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="thermocline-learn",
        description="Train and evaluate the models behind a memory pool; `thermocline pool predict` serves them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(required=True, metavar="COMMAND")
    _generate(_group(kinds, "generate", "generate VMs or workloads, fitted to published figures"))
    _train(_group(kinds, "train", "train a model and write it as ONNX"))
    _evaluate(_group(kinds, "evaluate", "evaluate models on held-out data"))
    solve = _command(kinds, "solve", commands.solve, "find the best pair of both models' settings (Pond Eq. 1)")
    solve.add_argument("--untouched", required=True, type=Path, metavar="FILE", help="curve of `evaluate untouched`")
    solve.add_argument("--insensitive", required=True, type=Path, metavar="FILE", help="curve of `evaluate insensitive`")
    solve.add_argument(
        "--tp", type=ratio, default=0.98, metavar="RATIO", help="share of VMs that must stay within the margin (default: 98%%)"
    )
    return top


def _group(kinds: Kinds[argparse.ArgumentParser], name: str, description: str) -> Kinds[argparse.ArgumentParser]:
    made = kinds.add_parser(name, help=description, description=description[0].upper() + description[1:] + ".")
    return made.add_subparsers(required=True, metavar="WHAT")


def _command(kinds: Kinds[argparse.ArgumentParser], name: str, act: commands.Act, description: str) -> argparse.ArgumentParser:
    made = kinds.add_parser(name, help=description, description=description[0].upper() + description[1:] + ".")
    made.set_defaults(act=act)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: %(default)s)")
    return made


def _generate(kinds: Kinds[argparse.ArgumentParser]) -> None:
    spec = generate.Spec()
    made = _command(kinds, "vms", commands.generate_vms, "generate a VM trace with recurring customers")
    made.add_argument("--vms", type=int, default=spec.vms, metavar="N", help="number of VMs (default: %(default)s)")
    made.add_argument("--days", type=int, default=spec.days, metavar="N", help="number of days (default: %(default)s)")
    made.add_argument("--customers", type=int, default=spec.customers, metavar="N", help="number of customers (default: %(default)s)")
    made.add_argument(
        "--shift-day",
        type=_day,
        action="append",
        default=[],
        metavar="N",
        help="a day on which a fifth of the customers change and new ones appear; may be repeated (default: none)",
    )
    _seed_and_out(made, "FILE.parquet")
    made = _command(kinds, "workloads", commands.generate_workloads, "generate workloads with counters and slowdowns, as JSON lines")
    made.add_argument("--count", type=int, default=158, metavar="N", help="number of workloads (default: %(default)s)")
    _seed_and_out(made, "FILE.jsonl")


def _seed_and_out(of: argparse.ArgumentParser, name: str) -> None:
    of.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default: %(default)s)")
    of.add_argument("--out", required=True, type=Path, metavar=name, help="output file")


def _train(kinds: Kinds[argparse.ArgumentParser]) -> None:
    made = _command(kinds, "untouched", commands.train_untouched, "train the untouched-memory model on a trace, as of its end")
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    source.add_argument("--lives", metavar="URL", help="the store to which pool hosts send the records of their guests (lives_store)")
    made.add_argument(
        "--program", default="thermocline", metavar="FILE", help="the program that imports those records (default: %(default)s)"
    )
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="largest share of VMs to overpredict (default: 4%%)")
    made.add_argument("--out", required=True, type=Path, metavar="FILE.onnx", help="output file")
    made = _command(kinds, "nights", commands.train_nights, "train that model for every night of a trace, for `pool simulate --models`")
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="largest share of VMs to overpredict (default: 4%%)")
    made.add_argument(
        "--first-day", type=_day, default=untouched.TRAINED_DAYS, metavar="N", help="the day after the first night (default: %(default)s)"
    )
    made.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory, one file per night")
    made = _command(kinds, "insensitive", commands.train_insensitive, "train the latency-insensitivity model on samples")
    _samples(made)
    made.add_argument(
        "--target", type=ratio, default=0.02, metavar="RATIO", help="largest share of workloads to be false positives (default: 2%%)"
    )
    made.add_argument("--out", required=True, type=Path, metavar="FILE.onnx", help="output file")

    _pair(kinds)


def _pair(kinds: Kinds[argparse.ArgumentParser]) -> None:
    made = _command(
        kinds, "pair", commands.train_pair, "solve Pond's Eq. 1 for a promise, verify it on held-out data, and train both models for it"
    )
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    _samples(made)
    made.add_argument(
        "--tp", type=ratio, default=0.98, metavar="RATIO", help="share of VMs that must stay within the margin (default: 98%%)"
    )
    made.add_argument("--days", type=_day, default=7, metavar="N", help="number of days to solve on (default: %(default)s)")
    made.add_argument(
        "--held-out", type=_day, default=3, metavar="N", help="number of days to verify on, at the end of the trace (default: %(default)s)"
    )
    made.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory; nothing is written if the promise breaks")


def _evaluate(kinds: Kinds[argparse.ArgumentParser]) -> None:
    made = _command(
        kinds, "untouched", commands.evaluate_untouched, "train every night and evaluate on the day after, compared with a static share"
    )
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    made.add_argument("--days", type=int, default=7, metavar="N", help="number of days, at the end of the trace (default: %(default)s)")
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="largest share of VMs to overpredict (default: 4%%)")
    made.add_argument("--curve", type=Path, metavar="FILE.json", help="also write the result to this file, for `solve`")
    made = _command(
        kinds, "insensitive", commands.evaluate_insensitive, "compare a random forest with one-counter heuristics, on random halves"
    )
    _samples(made)
    made.add_argument("--curve", type=Path, metavar="FILE.json", help="also write the result to this file, for `solve`")
    made = _command(kinds, "bitbrains", commands.evaluate_bitbrains, "evaluate the untouched-memory model on real memory use")
    made.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="FILE.parquet",
        help="the Bitbrains trace, with the columns vm, ts, cores, mem_prov_mib, mem_active_mib",
    )


def _samples(of: argparse.ArgumentParser) -> None:
    of.add_argument("--samples", required=True, type=Path, metavar="FILE.jsonl", help="counters and slowdowns of workloads")
    of.add_argument(
        "--latency",
        type=_latency,
        default=workloads.LATENCIES[0],
        metavar="RATIO",
        help="latency of slow memory, 182%% or 222%% of local latency (default: 182%%)",
    )
    of.add_argument(
        "--pdm", type=ratio, default=insensitive.PDM, metavar="RATIO", help="largest slowdown of an insensitive workload (default: 5%%)"
    )
    of.add_argument(
        "--folds",
        type=_folds,
        default=insensitive.FOLDS,
        metavar="N",
        help="number of random splits in the validation (default: %(default)s)",
    )
    of.add_argument("--seed", type=int, default=1, metavar="N", help="seed of splits and forests (default: %(default)s)")


def _latency(text: str) -> float:
    value = number(text)
    for known in workloads.LATENCIES:
        if math.isclose(value, known):
            return known
    raise argparse.ArgumentTypeError(f"{text!r} is neither 182% nor 222%")


def _day(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is below 1: a model needs at least one day before it")
    return int(text)


def _folds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give 1 to 10000")
    return int(text)
