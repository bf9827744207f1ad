"""The command line of the tuner. Results go to standard output, progress and complaints to standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import commands, designers
from .choose import Objective
from .designers import Missing
from .program import Failed
from .quantity import bounds, duration, number, ratio, setting
from .space import BadSpace
from .study import BadStudy

_EPILOG = """\
A first study, on a fleet that is made up:

  python -m thermocline.tune run --study try --generate 300 --holdout-seed 2
  python -m thermocline.tune report --study try --page try.html

and of a fleet's own traces, last week's tuned on and this week's held out:

  python -m thermocline.tune run --study week46 --trace /srv/traces/week46 --holdout-trace /srv/traces/week47
"""


# Twice as many below 90 % as the model's own: a lower P makes a lower K the better one.
_PERCENTILES = "50%,55%,60%,65%,70%,75%,80%,85%,90%,92%,94%,95%,96%,97%,98%,98.5%,99%,99.5%,99.9%,100%"


def main(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit code: 0 done, 1 failed, 2 not understood, 3 nothing holds the objective."""
    asked = parser().parse_args(arguments)
    try:
        code: int = asked.act(asked)
    except (BadSpace, BadStudy, Failed, Missing, ValueError, OSError) as error:
        print(f"thermocline.tune: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "thermocline.tune: stopped; what was looked at is kept, and the same command goes on with it",
            file=sys.stderr,
        )
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    top = argparse.ArgumentParser(
        prog="python -m thermocline.tune",
        description="Find better parameters for a fleet on its own traces; changes nothing but its own files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(required=True, metavar="COMMAND")
    _run(_command(kinds, "run", commands.run, "begin a study, or go on with one"))
    _report(_command(kinds, "report", commands.report, "tell what a study has found"))
    compare = _command(kinds, "compare", commands.compare, "put studies side by side")
    compare.add_argument("studies", nargs="+", type=Path, metavar="DIR", help="directories of studies")
    _retune(
        _command(
            kinds,
            "retune",
            commands.retune,
            "tune again where it is time or the fleet has changed, and explain what changed",
        )
    )
    _bundle(_command(kinds, "bundle", commands.bundle, "make a bundle of what a study has found, for a roll-out to sign and publish"))
    suggest = _command(
        kinds,
        "suggest",
        commands.suggest,
        "tell where the designer would look next, for a look that is taken elsewhere",
    )
    suggest.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    _tell(_command(kinds, "tell", commands.tell, "add what a look that was taken elsewhere has found"))
    return top


def _command(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, act: commands.Act, what: str
) -> argparse.ArgumentParser:
    made = kinds.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    made.set_defaults(act=act)
    made.add_argument("--format", choices=("text", "json"), default="text", help="how to print results (default: %(default)s)")
    return made


def _program(of: argparse.ArgumentParser) -> None:
    of.add_argument("--program", default="thermocline", metavar="PATH", help="the thermocline program (default: %(default)s)")
    of.add_argument("--config", metavar="FILE", help="its configuration file, for all that is not searched")
    of.add_argument(
        "--timeout",
        type=duration,
        default=24 * 3600.0,
        metavar="DURATION",
        help="how long one look may take (default: 24h)",
    )


def _effort(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--trials",
        type=int,
        default=20,
        metavar="N",
        help="how many points to look at, those of earlier runs included (default: %(default)s)",
    )
    of.add_argument(
        "--probes",
        type=int,
        default=5,
        metavar="N",
        help="how many values of each knob to look at around the best, for its sensitivity (default: %(default)s)",
    )
    of.add_argument(
        "--out",
        type=Path,
        metavar="FILE.toml",
        help="where the parameters go, with FILE.json beside it (default: in the study)",
    )


def _sources(of: argparse.ArgumentParser) -> None:
    of.add_argument("--trace", nargs="+", default=[], metavar="PATH", help="traces to tune on: files and directories")
    of.add_argument("--generate", type=int, metavar="JOBS", help="tune on a made-up fleet in which so many jobs run at any time")
    of.add_argument("--days", type=int, default=7, metavar="N", help="days of the made-up fleet (default: %(default)s)")
    of.add_argument("--fleet-seed", type=int, default=1, metavar="N", help="which made-up fleet (default: %(default)s)")
    of.add_argument(
        "--holdout-trace",
        nargs="+",
        default=[],
        metavar="PATH",
        help="traces that are not tuned on, to test the result with",
    )
    of.add_argument("--holdout-seed", type=int, metavar="N", help="test the result with another made-up fleet")


def _run(of: argparse.ArgumentParser) -> None:
    of.add_argument(
        "--study",
        required=True,
        type=Path,
        metavar="DIR",
        help="the study's directory; one that holds a study is gone on with",
    )
    _sources(of)
    _effort(of)
    of.add_argument(
        "--knob", action="append", default=[], metavar="KEY", help="a knob, or a table of knobs, to search; may be given again (default: "
        "cold_age). K and S are never searched where the model looks: every look has them all"
    )  # fmt: skip
    of.add_argument(
        "--bounds",
        action="append",
        default=[],
        type=bounds,
        metavar="KEY=LOW..HIGH",
        help="where to look, in place of what the table of knobs says",
    )
    of.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="a knob that is not searched, for every look",
    )
    of.add_argument(
        "--objective",
        type=ratio,
        metavar="RATIO",
        help="what is promised: what may come back a minute, as a share of the working set, or the share of time that may be lost "
        "(default: cold_age.promotion_rate, pressure.stall_target or slow.slowdown)",
    )
    of.add_argument(
        "--objective-percentile",
        type=ratio,
        default=Objective(1.0).percentile,
        metavar="RATIO",
        help="in which share of the entries (default: 98%%)",
    )
    of.add_argument(
        "--margin",
        type=ratio,
        default=Objective(1.0).margin,
        metavar="RATIO",
        help="the share of the objective that stays free (default: 3%%)",
    )
    of.add_argument(
        "--designer",
        choices=designers.NAMES,
        default=designers.NAMES[0],
        help="what decides where to look (default: %(default)s)",
    )
    of.add_argument("--seed", type=int, default=1, metavar="N", help="of the designer's chances (default: %(default)s)")
    of.add_argument(
        "--by-class",
        action="store_true",
        help="also find K, S and P of each class, within what the configuration promises it",
    )
    of.add_argument(
        "--percentiles", default=_PERCENTILES, metavar="RATIO,...", help="percentiles K to try (default: 20 from 50%% to 100%%)"
    )
    of.add_argument("--warmups", metavar="DURATION,...", help="warm-ups S to try, in place of the model's own list")
    of.add_argument(
        "--policy", choices=("cold_age", "pressure", "slowdown"), default="cold_age", help="which policy the model replays; the last two "
        "are judged by the time that far memory would cost (default: %(default)s)"
    )  # fmt: skip
    of.add_argument(
        "--tier-latency", default="", metavar="DURATION", help="for these two: what the return of a page, or one slow access, takes"
    )
    of.add_argument("--told", action="store_true", help="look at nothing; looks are taken elsewhere, see suggest and tell")
    _program(of)
    of.add_argument(
        "--command", nargs=argparse.REMAINDER, default=[], metavar="CMD", help="measure with this command in the model's place, for "
        "knobs that it does not replay: it is given --set KEY=VALUE for each, and its last line must be "
        '{"value": ..., "excess": ...}; must come last'
    )  # fmt: skip


def _report(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument("--page", type=Path, metavar="FILE", help="also write a page of HTML that needs nothing else")


def _bundle(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument("--to", required=True, type=Path, metavar="FILE", help="the bundle to write")
    of.add_argument("--version", required=True, type=int, metavar="N", help="its number, above all that were published before")
    of.add_argument("--id", metavar="NAME", help="its name, for people (default: the study's directory)")
    of.add_argument(
        "--lasts", type=duration, default=60 * 86_400.0, metavar="DURATION", help="machines go by it for so long (default: 60d)"
    )  # fmt: skip


def _retune(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study that the fleet's parameters come from")
    of.add_argument("--to", required=True, type=Path, metavar="DIR", help="the directory of the new study")
    _sources(of)
    _effort(of)
    of.add_argument(
        "--every",
        type=duration,
        default=28 * 86_400.0,
        metavar="DURATION",
        help="tune again after so long in any case (default: 28d)",
    )
    of.add_argument(
        "--drift", type=ratio, default=0.05, metavar="RATIO", help="tune again when more than this share of the memory, or of "
        "the accesses, lies in another age band than then (default: 5%%)"
    )  # fmt: skip
    of.add_argument("--force", action="store_true", help="tune again whatever the reasons")
    of.add_argument("--dry-run", action="store_true", help="only tell whether it is time")
    _program(of)


def _tell(of: argparse.ArgumentParser) -> None:
    of.add_argument("--study", required=True, type=Path, metavar="DIR", help="the study's directory")
    of.add_argument(
        "--set",
        action="append",
        default=[],
        type=coordinate,
        metavar="KEY=VALUE",
        help="the point: each searched knob once",
    )
    of.add_argument("--value", type=float, help="what was found: more is better")
    of.add_argument("--excess", type=float, help="how far above what is tolerated, as a share of it; 0 and below holds")
    of.add_argument("--failed", metavar="WHY", help="the look failed")


def coordinate(text: str) -> tuple[str, float]:
    """`KEY=VALUE`, the value as a quantity."""
    key, value = setting(text)
    return key, number(value)
