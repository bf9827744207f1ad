"""The command line of the predictions. Results go to standard output, progress and complaints to standard error."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from thermocline.tune.quantity import number, ratio

from . import commands, generate, insensitive, untouched, workloads
from .commands import Failed
from .vms import BadTrace
from .workloads import BadSamples

_EPILOG = """\
All of it, on VMs and workloads that are made up:

  python -m thermocline.learn generate vms --out vms.parquet
  python -m thermocline.learn generate workloads --out workloads.jsonl
  python -m thermocline.learn train untouched --trace vms.parquet --out untouched.onnx
  python -m thermocline.learn train insensitive --samples workloads.jsonl --out insensitive.onnx
  python -m thermocline.learn evaluate untouched --trace vms.parquet --curve untouched.json
  python -m thermocline.learn evaluate insensitive --samples workloads.jsonl --curve insensitive.json
  python -m thermocline.learn solve --untouched untouched.json --insensitive insensitive.json
"""

Kinds = argparse._SubParsersAction  # The type that argparse has no public name for.


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit code: 0 done, 1 failed, 2 not understood."""
    asked = parser().parse_args(arguments)
    try:
        code: int = asked.act(asked)
    except ModuleNotFoundError as error:
        print(f"thermocline.learn: {error}; install the package's extra: pip install 'thermocline[learn]'", file=sys.stderr)
        return 1
    except (BadTrace, BadSamples, Failed, ValueError, OSError) as error:
        print(f"thermocline.learn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("thermocline.learn: stopped; nothing was written", file=sys.stderr)
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    top = argparse.ArgumentParser(
        prog="python -m thermocline.learn",
        description="Train and judge the predictions behind a memory pool; `thermocline pool predict` serves them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(required=True, metavar="COMMAND")
    _generate(_group(kinds, "generate", "make up VMs or workloads, fitted to published figures"))
    _train(_group(kinds, "train", "train a model and write it as ONNX"))
    _evaluate(_group(kinds, "evaluate", "judge models on what they have not seen"))
    solve = _command(kinds, "solve", commands.solve, "find the best pair of both models' settings, by 004 Eq. (1)")
    solve.add_argument("--untouched", required=True, type=Path, metavar="FILE", help="curve of `evaluate untouched`")
    solve.add_argument("--insensitive", required=True, type=Path, metavar="FILE", help="curve of `evaluate insensitive`")
    solve.add_argument("--tp", type=ratio, default=0.98, metavar="RATIO", help="VMs that must be within the margin (default: 98%%)")
    return top


def _group(kinds: Kinds[argparse.ArgumentParser], name: str, what: str) -> Kinds[argparse.ArgumentParser]:
    made = kinds.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    return made.add_subparsers(required=True, metavar="WHAT")


def _command(kinds: Kinds[argparse.ArgumentParser], name: str, act: commands.Act, what: str) -> argparse.ArgumentParser:
    made = kinds.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    made.set_defaults(act=act)
    made.add_argument("--format", choices=("text", "json"), default="text", help="how to print results (default: %(default)s)")
    return made


def _generate(kinds: Kinds[argparse.ArgumentParser]) -> None:
    spec = generate.Spec()
    made = _command(kinds, "vms", commands.generate_vms, "make up VMs of customers with habits, as a VM trace")
    made.add_argument("--vms", type=int, default=spec.vms, metavar="N", help="how many (default: %(default)s)")
    made.add_argument("--days", type=int, default=spec.days, metavar="N", help="over how many days (default: %(default)s)")
    made.add_argument("--customers", type=int, default=spec.customers, metavar="N", help="of how many customers (default: %(default)s)")
    _seed_and_out(made, "FILE.parquet")
    made = _command(kinds, "workloads", commands.generate_workloads, "make up workloads with counters and slowdowns, as JSON lines")
    made.add_argument("--count", type=int, default=158, metavar="N", help="how many (default: %(default)s)")
    _seed_and_out(made, "FILE.jsonl")


def _seed_and_out(of: argparse.ArgumentParser, name: str) -> None:
    of.add_argument("--seed", type=int, default=1, metavar="N", help="which ones (default: %(default)s)")
    of.add_argument("--out", required=True, type=Path, metavar=name, help="where they go")


def _train(kinds: Kinds[argparse.ArgumentParser]) -> None:
    made = _command(kinds, "untouched", commands.train_untouched, "train the untouched-memory model on a trace, as of its end")
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="VMs that may be overpredicted (default: 4%%)")
    made.add_argument("--out", required=True, type=Path, metavar="FILE.onnx", help="where the model goes")
    made = _command(kinds, "nights", commands.train_nights, "train that model for every night of a trace, for `pool simulate --models`")
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="VMs that may be overpredicted (default: 4%%)")
    made.add_argument(
        "--first-day", type=_day, default=untouched.TRAINED_DAYS, metavar="N", help="the day after the first night (default: %(default)s)"
    )
    made.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the models go, a file a night")
    made = _command(kinds, "insensitive", commands.train_insensitive, "train the latency-insensitivity model on samples")
    _samples(made)
    made.add_argument("--target", type=ratio, default=0.02, metavar="RATIO", help="workloads that may be false positives (default: 2%%)")
    made.add_argument("--out", required=True, type=Path, metavar="FILE.onnx", help="where the model goes")


def _evaluate(kinds: Kinds[argparse.ArgumentParser]) -> None:
    made = _command(kinds, "untouched", commands.evaluate_untouched, "train every night, look at the day after; against a static share")
    made.add_argument("--trace", required=True, type=Path, metavar="FILE.parquet", help="a VM trace with customers and untouched memory")
    made.add_argument("--days", type=int, default=7, metavar="N", help="how many days, the trace's last (default: %(default)s)")
    made.add_argument("--target", type=ratio, default=0.04, metavar="RATIO", help="VMs that may be overpredicted (default: 4%%)")
    made.add_argument("--curve", type=Path, metavar="FILE.json", help="write the result here too, for `solve`")
    made = _command(kinds, "insensitive", commands.evaluate_insensitive, "a forest against one counter alone, on random halves")
    _samples(made)
    made.add_argument("--curve", type=Path, metavar="FILE.json", help="write the result here too, for `solve`")
    made = _command(kinds, "bitbrains", commands.evaluate_bitbrains, "the untouched-memory model on real memory use")
    made.add_argument(
        "--data", required=True, type=Path, metavar="FILE.parquet", help="the Bitbrains trace: vm, ts, cores, mem_prov_mib, mem_active_mib"
    )


def _samples(of: argparse.ArgumentParser) -> None:
    of.add_argument("--samples", required=True, type=Path, metavar="FILE.jsonl", help="counters and slowdowns of workloads")
    of.add_argument(
        "--latency",
        type=_latency,
        default=workloads.LATENCIES[0],
        metavar="RATIO",
        help="of slow memory, 182%% or 222%% of local (default: 182%%)",
    )
    of.add_argument("--pdm", type=ratio, default=insensitive.PDM, metavar="RATIO", help="slowdown that counts as none (default: 5%%)")
    of.add_argument(
        "--folds", type=_folds, default=insensitive.FOLDS, metavar="N", help="random splits of the validation (default: %(default)s)"
    )
    of.add_argument("--seed", type=int, default=1, metavar="N", help="of splits and forests (default: %(default)s)")


def _latency(text: str) -> float:
    value = number(text)
    for known in workloads.LATENCIES:
        if math.isclose(value, known):
            return known
    raise argparse.ArgumentTypeError(f"{text!r} is neither 182% nor 222%")


def _day(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more: a night has a day before it")
    return int(text)


def _folds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 to 10000")
    return int(text)
