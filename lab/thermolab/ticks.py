"""Lines that a guest writes to a second port, with their arrival times."""

import contextlib
import socket
import threading
import time
from itertools import pairwise
from pathlib import Path


class Ticks:
    """Lines from a guest with their arrival times, across all processes that the guest runs in."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self._listener: socket.socket | None = None

    def listen(self, path: Path) -> None:
        """Accepts lines on a Unix socket."""
        self._listener = listener = listen(path)
        threading.Thread(target=self._accept, args=(listener,), name="ticks", daemon=True).start()

    def close(self) -> None:
        """Stops accepting lines."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def gap_seconds(self, begin: float, end: float) -> float:
        """Returns the longest time without a line between two times of `time.monotonic`."""
        at = [when for when, _ in self.lines if begin <= when <= end]
        return max((after - before for before, after in pairwise(at)), default=end - begin)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._read, args=(connection,), name="ticks", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("r", errors="replace") as lines:
            for line in lines:
                self.lines.append((time.monotonic(), line.strip()))


def listen(path: Path) -> socket.socket:
    """Returns a listening Unix socket at `path`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(4)
    return listener
