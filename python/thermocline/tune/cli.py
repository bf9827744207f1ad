"""The command line of the tuner. Results are printed to standard output, progress and errors to standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import commands, designers
from .choose import Objective
from .program import RunFailed
from .quantity import bounds, duration, number, ratio, setting
from .sampling import Missing
from .space import BadSpace
from .study import BadStudy

_EPILOG = """\
A first study, on a generated fleet:

  thermocline-tune run --study try --generate 300 --holdout-seed 2
  thermocline-tune report --study try --page try.html

A study of a fleet's traces, tuned on last week's and tested on this week's:

  thermocline-tune run --study week46 --trace /srv/traces/week46 --holdout-trace /srv/traces/week47
"""


# Includes many values below 90 %, because a lower P makes a lower K optimal.
_PERCENTILES = "50%,55%,60%,65%,70%,75%,80%,85%,90%,92%,94%,95%,96%,97%,98%,98.5%,99%,99.5%,99.9%,100%"


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns the exit code.

    0 done, 1 failed, 2 invalid arguments, 3 nothing holds the objective, 4 it is broken on the held-out trace.
    """
    options = parser().parse_args(arguments)
    try:
        code: int = options.act(options)
    except (BadSpace, BadStudy, RunFailed, Missing, ValueError, OSError) as error:
        print(f"thermocline-tune: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("thermocline-tune: stopped; all results are kept, and the same command continues the study", file=sys.stderr)
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="thermocline-tune",
        description="Search better parameters for a fleet on its traces. Changes only its own files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(required=True, metavar="COMMAND")
    _add_run(_command(kinds, "run", commands.run, "begin or continue a study"))
    _add_report(_command(kinds, "report", commands.report, "show the results of a study"))
    compare = _command(kinds, "compare", commands.compare, "compare studies")
    compare.add_argument("studies", nargs="+", type=Path, metavar="DIR", help="directories of studies")
    _add_retune(_command(kinds, "retune", commands.retune, "tune again if it is due or the fleet has changed, and explain the changes"))
    _add_bundle(
        _command(kinds, "bundle", commands.bundle, "write the parameters of a study as a bundle, for a rollout to sign and publish")
    )
    suggest = _command(kinds, "suggest", commands.suggest, "show the next point to evaluate, for external evaluations")
    suggest.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    _add_record(_command(kinds, "record", commands.record, "record the result of an external evaluation"))
    return top


def _command(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, act: commands.Act, description: str
) -> argparse.ArgumentParser:
    made = kinds.add_parser(name, help=description, description=description[0].upper() + description[1:] + ".")
    made.set_defaults(act=act)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: %(default)s)")
    return made


def _program(of: argparse.ArgumentParser) -> None:
    of.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    of.add_argument("--config", metavar="FILE", help="its configuration file, for all knobs that are not searched")
    of.add_argument("--timeout", type=duration, default=24 * 3600.0, metavar="DURATION", help="time limit of one evaluation (default: 24h)")


def _effort(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--trials",
        type=int,
        default=20,
        metavar="N",
        help="number of points to evaluate, including those of earlier runs (default: %(default)s)",
    )
    of.add_argument(
        "--probes",
        type=int,
        default=5,
        metavar="N",
        help="number of values of each knob to evaluate around the best point, for its sensitivity (default: %(default)s)",
    )
    of.add_argument(
        "--out",
        type=Path,
        metavar="FILE.toml",
        help="output file of the parameters; FILE.json is written beside it (default: in the study)",
    )


def _sources(of: argparse.ArgumentParser) -> None:
    of.add_argument("--trace", nargs="+", default=[], metavar="PATH", help="traces to tune on: files and directories")
    of.add_argument("--generate", type=int, metavar="JOBS", help="tune on a generated fleet in which so many jobs run at any time")
    of.add_argument("--days", type=int, default=7, metavar="N", help="days of the generated fleet (default: %(default)s)")
    of.add_argument("--fleet-seed", type=int, default=1, metavar="N", help="seed of the generated fleet (default: %(default)s)")
    of.add_argument(
        "--holdout-trace",
        nargs="+",
        default=[],
        metavar="PATH",
        help="held-out traces, to test the result",
    )
    of.add_argument("--holdout-seed", type=int, metavar="N", help="test the result on another generated fleet, with this seed")


def _add_run(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory; an existing study is continued")
    _sources(of)
    of.add_argument(
        "--stress-trace", nargs="+", default=[], metavar="PATH", help="traces of a bad week, in which parameters must hold the limit, too"
    )
    of.add_argument(
        "--stress-bursts", type=float, metavar="TIMES", help="the same for a generated fleet: a week with so many times the bursts, such "
        "as 1.6"
    )  # fmt: skip
    of.add_argument(
        "--stress-worst-days", type=int, metavar="DAYS", help="the same from the traces that are tuned on: a fleet resampled from so many "
        "of their days, those in which most cold memory was accessed"
    )  # fmt: skip
    _effort(of)
    _searched(of)
    _objective(of)
    _model(of)
    of.add_argument(
        "--external", action="store_true", help="run no evaluations; they are run elsewhere and recorded, see suggest and record"
    )
    _program(of)
    of.add_argument(
        "--command", nargs=argparse.REMAINDER, default=[], metavar="CMD", help="evaluate with this command instead of the model, for knobs "
        "that the model does not replay. It gets --set KEY=VALUE for each knob, and its last line must be "
        '{"value": ..., "excess": ...}. Must be the last argument'
    )  # fmt: skip


def _searched(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--knob", action="append", default=[], metavar="KEY", help="a knob, or a table of knobs, to search; repeatable (default: "
        "cold_age). The model computes all K and S in one run, so these are not searched"
    )  # fmt: skip
    of.add_argument(
        "--bounds", action="append", default=[], type=bounds, metavar="KEY=LOW..HIGH", help="bounds of a knob, instead of those of the "
        "table of knobs"
    )  # fmt: skip
    of.add_argument(
        "--set", action="append", default=[], type=setting, metavar="KEY=VALUE", help="the value of a knob that is not searched"
    )
    of.add_argument(
        "--designer", choices=designers.NAMES, default=designers.NAMES[0], help="chooses the points to evaluate (default: %(default)s)"
    )
    of.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the designer (default: %(default)s)")


def _objective(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--objective", type=ratio, metavar="RATIO", help="the limit to hold: promotions per minute as a share of the working set, or the "
        "share of time that jobs may lose (default: cold_age.promotion_rate, pressure.stall_target or slow.slowdown)"
    )  # fmt: skip
    of.add_argument(
        "--objective-percentile", type=ratio, default=Objective(1.0).percentile, metavar="RATIO", help="share of the entries in which the "
        "limit must hold (default: 98%%)"
    )  # fmt: skip
    of.add_argument(
        "--margin", type=ratio, default=Objective(1.0).margin, metavar="RATIO", help="share of the limit kept in reserve (default: 3%%)"
    )
    of.add_argument(
        "--tail", type=float, default=Objective(1.0).tail, metavar="TIMES", help="at 99.5%% of the entries, the highest rate as a multiple "
        "of the limit; inf: any (default: 3)"
    )  # fmt: skip
    of.add_argument(
        "--by-class", action="store_true", help="also find K, S and P of each class, within the objectives of the classes in the "
        "configuration"
    )  # fmt: skip


def _model(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--percentiles", default=_PERCENTILES, metavar="RATIO,...", help="percentiles K to try (default: 20 from 50%% to 100%%)"
    )
    of.add_argument("--warmups", metavar="DURATION,...", help="warm-ups S to try, instead of the model's list")
    of.add_argument(
        "--allow-unresolved", action="store_true", help="accept results although no entry's tracker distinguished the thresholds' ages"
    )
    of.add_argument(
        "--policy", choices=("cold_age", "pressure", "slowdown"), default="cold_age", help="the policy that the model replays; pressure "
        "and slowdown are judged by the time that far memory would cost (default: %(default)s)"
    )  # fmt: skip
    of.add_argument(
        "--tier-latency", default="", metavar="DURATION", help="for pressure and slowdown: the latency of a page's return, or of one slow "
        "access"
    )  # fmt: skip


def _add_report(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument("--page", type=Path, metavar="FILE", help="also write a self-contained HTML page")


def _add_bundle(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument("--to", required=True, type=Path, metavar="FILE", help="the bundle to write")
    of.add_argument("--version", required=True, type=int, metavar="N", help="number of the bundle, above those of all published ones")
    of.add_argument(
        "--despite-holdout", action="store_true", help="write a bundle although its parameters break the objective on the held-out trace"
    )
    of.add_argument("--id", metavar="NAME", help="name of the bundle (default: the study's directory)")
    of.add_argument(
        "--lasts", type=duration, default=60 * 86_400.0, metavar="DURATION", help="time until machines return to their "
        "configuration file (default: 60d)"
    )  # fmt: skip


def _add_retune(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study that the fleet's current parameters come from")
    of.add_argument("--to", required=True, type=Path, metavar="DIR", help="the directory of the new study")
    _sources(of)
    _effort(of)
    of.add_argument(
        "--every",
        type=duration,
        default=28 * 86_400.0,
        metavar="DURATION",
        help="tune again after this time in any case (default: 28d)",
    )
    of.add_argument(
        "--drift", type=ratio, default=0.05, metavar="RATIO", help="tune again if more than this share of the memory, or of "
        "the accesses, has moved to another age band (default: 5%%)"
    )  # fmt: skip
    of.add_argument("--force", action="store_true", help="tune again in any case")
    of.add_argument("--dry-run", action="store_true", help="only report whether tuning is due")
    _program(of)


def _add_record(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument(
        "--set",
        action="append",
        default=[],
        type=coordinate,
        metavar="KEY=VALUE",
        help="the point: each searched knob once",
    )
    of.add_argument("--value", type=float, help="the value to maximize")
    of.add_argument("--excess", type=float, help="how far the limit was exceeded, as a share of it; 0 and below holds")
    of.add_argument("--failed", metavar="REASON", help="the evaluation failed")


def coordinate(text: str) -> tuple[str, float]:
    """Parses `KEY=VALUE`, with the value as a quantity."""
    key, value = setting(text)
    return key, number(value)
