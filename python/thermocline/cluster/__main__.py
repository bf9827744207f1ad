"""`python -m thermocline.cluster`: runs the model on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .kernel import Killed, Model, Refused


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m thermocline.cluster",
        description="Replay a fleet's traces on a Ray cluster. The result is bit-identical to that of `thermocline model`.",
        epilog="Arguments after -- are those of `thermocline model` that affect the tally: "
        "--percentiles, --warmups, --what-if, --by, --survey, --set.",
    )
    parser.add_argument(
        "--trace", nargs="+", required=True, metavar="PATH", help="trace files or directories, at the same paths on every machine"
    )
    parser.add_argument("--shares", type=int, metavar="N", help="number of tasks [default: four for each core of the cluster]")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="cores of one task (default: %(default)s)")
    parser.add_argument(
        "--address", metavar="ADDRESS", help="address of the Ray cluster; `auto` for the one of this machine [default: start one]"
    )
    parser.add_argument("--program", default="thermocline", help="path of the binary on every machine (default: %(default)s)")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="also write the tally, for `thermocline model --merge`")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default: %(default)s)")
    parser.add_argument("question", nargs="*", metavar="ARGUMENT", help="arguments of `thermocline model`, after --")
    return parser


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} shares ", end="" if done < of else "\r\x1b[K", file=sys.stderr, flush=True)


def main() -> int:
    """Runs the command. Returns the exit code."""
    arguments = _arguments().parse_args()
    if min(arguments.threads, arguments.shares or 1) < 1:
        print("thermocline.cluster: --threads and --shares must be at least 1", file=sys.stderr)
        return 2
    try:
        from . import on_ray
    except ModuleNotFoundError as missing:
        print(f"thermocline.cluster: {missing}; install the extra: pip install 'thermocline[ray]'", file=sys.stderr)
        return 1
    model = Model(arguments.program, tuple(arguments.question))
    try:
        with on_ray.connected(arguments.address) as cores:
            shares = model.plan(arguments.trace, arguments.shares or 4 * cores)
            tally = on_ray.replay(model, shares, arguments.threads, _progress)
        if arguments.tally:
            arguments.tally.write_bytes(tally)
        print(model.answer(tally, ("--format", arguments.format)), end="")
    except (Refused, Killed, OSError) as error:
        print(f"thermocline.cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
