"""Command line of the arena: `make arena`, or `python3 -m arena` in the folder `lab/`.

Finished guests are kept in `target/bench/arena/` and not run again, unless their programs have changed: an interrupted
arena goes on where it was.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from thermolab import binaries, kernels, paths
from thermolab.errors import LabError

from . import losses, measure, page, programs, result
from .contenders import CONTENDERS, NOTHING, Contender
from .measure import Run
from .programs import MIXES

_KERNEL = "6.12"
_OUT = paths.TREE / "target" / "bench"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 if the lab failed."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        arena = Arena(binaries.build(), options.mix, options.repeats, options.guests, options.fresh)
        arena.run([one for one in CONTENDERS if _is_chosen(one, options)])
        found = arena.result()
        file = _OUT / "arena.json"
        file.write_text(json.dumps(found, indent=2) + "\n")
        (_OUT / "arena.html").write_text(page.html(found))
        print(page.text(found))
        print(f"arena: {file} and {_OUT / 'arena.html'}", file=sys.stderr)
    except LabError as error:
        print(f"arena: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("arena: interrupted; all guests were stopped, finished ones are kept", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="arena", description="Every way of far memory on the same programs.")
    names = sorted({one.name for one in CONTENDERS})
    parser.add_argument(
        "--mix", action="append", choices=sorted(MIXES), help="programs that share a guest; default: all"
    )
    parser.add_argument("--contender", choices=names, help="only this one, beside what was run before")
    parser.add_argument("--intensity", action="append", help="only these of the contender, such as standard or 15 s")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="guests for each point (default 1)")
    parser.add_argument("--guests", type=int, default=1, choices=(1, 2), help="guests at a time (default 1)")
    parser.add_argument("--fresh", action="store_true", help="run again what is kept")
    return parser


def _is_chosen(one: Contender, options: argparse.Namespace) -> bool:
    return options.contender in (None, one.name) and one.intensity in (options.intensity or [one.intensity])


@dataclass(slots=True)
class Arena:
    """Which guests to run, and where their results lie."""

    built: Mapping[str, Path]
    mixes: Sequence[str] | None
    repeats: int
    guests: int
    fresh: bool

    def run(self, contenders: Sequence[Contender]) -> None:
        """Runs all guests that are not kept, contenders in turn in each repeat."""
        for mix in self._mixes():
            for repeat in range(self.repeats):
                self._one(mix, NOTHING, repeat, {})
                occupied = {
                    name: found.current_bytes for name, found in self._kept(mix, NOTHING, repeat).programs.items()
                }
                with ThreadPoolExecutor(self.guests) as pool:
                    work = [pool.submit(self._one, mix, one, repeat, occupied) for one in contenders]
                    try:
                        for done in work:
                            done.result()
                    except BaseException:
                        pool.shutdown(wait=False, cancel_futures=True)
                        raise

    def result(self) -> result.Result:
        """Compares what is kept."""
        found: dict[str, list[tuple[Run, list[Run]]]] = {}
        for mix in self._mixes():
            for repeat in range(self.repeats):
                runs = [self._kept(mix, one, repeat) for one in CONTENDERS if self._is_kept(mix, one, repeat)]
                found.setdefault(mix, []).append((self._kept(mix, NOTHING, repeat), runs))
        return result.compare(found, CONTENDERS, _KERNEL)

    def _mixes(self) -> Sequence[str]:
        return self.mixes or list(MIXES)

    def _one(self, mix: str, contender: Contender, repeat: int, occupied: Mapping[str, float]) -> None:
        if self._is_kept(mix, contender, repeat) and not self.fresh:
            return
        begin = time.monotonic()
        directory = self._file(mix, contender, repeat).parent / "logs" / f"{contender.key}-{repeat}"
        kernel = kernels.kernel(_KERNEL)
        for left in reversed(range(2)):
            try:
                run = measure.run(kernel, self.built, directory, MIXES[mix], contender, occupied)
                break
            except LabError as error:
                if not left:
                    raise
                print(f"arena: {mix}: {contender.name} {contender.intensity}: once more: {error}", file=sys.stderr)
        body = {"made_of": self._made_of(mix, contender), "run": run.to_json()}
        self._file(mix, contender, repeat).write_text(json.dumps(body, indent=1) + "\n")
        took = time.monotonic() - begin
        print(f"arena: {mix}: {page.line(run)}; {took:.0f} s", file=sys.stderr, flush=True)

    def _file(self, mix: str, contender: Contender, repeat: int) -> Path:
        return _OUT / "arena" / mix / f"{contender.key}-{repeat}.json"

    def _is_kept(self, mix: str, contender: Contender, repeat: int) -> bool:
        file = self._file(mix, contender, repeat)
        return file.exists() and json.loads(file.read_text())["made_of"] == self._made_of(mix, contender)

    def _kept(self, mix: str, contender: Contender, repeat: int) -> Run:
        return Run.of(json.loads(self._file(mix, contender, repeat).read_text())["run"])

    def _made_of(self, mix: str, contender: Contender) -> str:
        """Returns a digest of what a guest's result depends on: programs, configuration, our binary if it is ours."""
        digest = hashlib.sha256()
        for file in sorted(programs.SOURCES.iterdir()):
            if file.is_file():
                digest.update(file.read_bytes())
        for name in (measure.__file__, losses.__file__):
            digest.update(Path(name).read_bytes())
        digest.update(f"{mix} {contender.configuration}".encode())
        if contender.ours:
            digest.update(self.built["thermocline"].read_bytes())
        return digest.hexdigest()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
