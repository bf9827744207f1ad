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
    """Exit status: 0 if all went well, 1 if a scenario failed its bounds, 2 if the lab could not do its work."""
    options = _parser().parse_args(argv)
    # As with Ctrl-C, `finally` and `with` get their turn, so that no guest is left behind.
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
        print("lab: interrupted; guests are gone", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="thermolab", description="Scenarios on real Linux kernels in QEMU.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="scenarios, and what each shows")
    fetch = commands.add_parser("fetch", help="fetch kernels and make the root file system; done once")
    run = commands.add_parser("run", help="run one scenario and write its result.json")
    run.add_argument("scenario", choices=runner.names(), metavar="NAME")
    for command in (fetch, run):
        command.add_argument(
            "--kernel",
            action="append",
            choices=(*kernels.NAMES, "all"),
            help="may be given several times; without it, fetch takes all and run takes the scenario's own choice",
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
