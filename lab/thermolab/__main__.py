"""Command line of the lab: `python3 -m thermolab list | fetch | run NAME`, in the folder `lab/`."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from . import initrd, kernels, rootfs, runner
from .errors import LabError
from .paths import results


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 if a scenario failed its bounds, 2 if the lab itself failed."""
    options = _parser().parse_args(argv)
    # As with Ctrl-C, `finally` and `with` blocks run, so that no guest is left behind.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        match options.command:
            case "list":
                return _list()
            case "fetch":
                return _fetch(_chosen(options.kernel) or kernels.NAMES)
            case _:
                return _run(options.scenario, _chosen(options.kernel))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lab: interrupted; all guests were stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="thermolab", description="Scenarios on real Linux kernels in QEMU.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list scenarios with a summary of each")
    fetch = commands.add_parser("fetch", help="fetch kernels and make the root file system (done once)")
    run = commands.add_parser("run", help="run one scenario and write its result.json")
    run.add_argument("scenario", choices=runner.names(), metavar="NAME")
    for command in (fetch, run):
        command.add_argument(
            "--kernel",
            action="append",
            choices=(*kernels.NAMES, "all"),
            help="may be given several times; default: all for fetch, the scenario's own choice for run",
        )
    return parser


def _chosen(names: list[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return kernels.NAMES if "all" in names else tuple(dict.fromkeys(names))


def _list() -> int:
    for name in runner.names():
        scenario = runner.load(name)
        print(f"{name}\n    {scenario.summary}\n    kernels: {', '.join(scenario.kernels)}")
    return 0


def _fetch(names: Sequence[str]) -> int:
    for name in names:
        kernel = kernels.kernel(name)
        initrd.base(kernel)
        print(f"kernel {name}: {kernel.release}, {kernel.image}")
    print(f"root file system: {rootfs.image()}")
    return 0


def _run(name: str, on: Sequence[str]) -> int:
    result = runner.run(name, on)
    json.dump(result, sys.stdout, indent=2)
    print()
    passed = bool(result["passed"])
    print(f"{name}: {'passed' if passed else 'FAILED'}; {results() / name / runner.RESULT}", file=sys.stderr)
    for reason in result["reasons"]:
        print(f"  {reason}", file=sys.stderr)
    return 0 if passed else 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
