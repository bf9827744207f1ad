"""Who maps which slice of a pool, as the kernel has it."""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .pool import Host, slice_of

_LOOK_SECONDS = 0.05


def owners(hosts: Sequence[Host]) -> dict[tuple[int, int], set[int]]:
    """Which processes of guests map each slice, be it by a file that has been removed since."""
    found: dict[tuple[int, int], set[int]] = {}
    for host in hosts:
        for pid in host.guest_pids():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                for path in {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/slice-" in line}:
                    found.setdefault(slice_of(Path(path)), set()).add(pid)
    return found


class OwnersWatch:
    """Looks all the time at who maps which slice."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.most = 0
        self.looks = 0
        self._hosts = hosts
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="owners", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self.most = max(self.most, *(len(pids) for pids in owners(self._hosts).values()), 0)
            self.looks += 1
