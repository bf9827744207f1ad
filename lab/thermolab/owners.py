"""Owners of a pool's slices: processes that map them, read from /proc."""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .pool import Host, slice_of

_SAMPLE_SECONDS = 0.05


def owners(hosts: Sequence[Host]) -> dict[tuple[int, int], set[int]]:
    """Returns the guest processes that map each slice; files that were deleted while mapped count too."""
    found: dict[tuple[int, int], set[int]] = {}
    for host in hosts:
        for pid in host.guest_pids():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                for path in {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/slice-" in line}:
                    found.setdefault(slice_of(Path(path)), set()).add(pid)
    return found


class OwnersWatch:
    """Samples the owners of all slices continuously within a `with` block."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.owners_max = 0
        """Largest number of processes that mapped one slice at the same time."""
        self.samples = 0
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
        while not self._end.wait(_SAMPLE_SECONDS):
            self.owners_max = max(self.owners_max, *(len(pids) for pids in owners(self._hosts).values()), 0)
            self.samples += 1
