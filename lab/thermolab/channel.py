"""The control channel: JSON objects, one per line, over a socket whose other end is the guest's control program.

Requests carry an `id` that the reply repeats; replies may come in any order, since long operations run at the same
time. Lines with an `event` come unasked. A reader thread sorts both; nothing here polls.
"""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from .errors import GuestGone, GuestTimeout, Refused

Message = dict[str, Any]

_RECEIVE_BYTES = 1 << 16


class Channel:
    """One end of the control channel; methods may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._send_lock = threading.Lock()
        # Guards what follows; notified for each event and at the end.
        self._changed = threading.Condition()
        self._pending: dict[int, Future[Message]] = {}
        self._events: list[Message] = []
        self._end: str | None = None
        self._reader = threading.Thread(target=self._read, name="lab-channel", daemon=True)
        self._reader.start()

    def request(self, op: str, fields: Mapping[str, object], timeout_s: float) -> Message:
        """The reply to operation `op`; waits at most `timeout_s` seconds.

        Raises:
            Refused: the guest answered with an error.
            GuestTimeout: no answer in time.
            GuestGone: the channel closed before the answer.
        """
        number = next(self._ids)
        answer: Future[Message] = Future()
        with self._changed:
            if self._end is not None:
                raise GuestGone(f"{op}: the guest is gone: {self._end}")
            self._pending[number] = answer
        line = json.dumps({"id": number, "op": op, **fields}) + "\n"
        try:
            with self._send_lock:
                self._connection.sendall(line.encode())
            reply = answer.result(timeout_s)
        except FutureTimeout:
            raise GuestTimeout(f"{op}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise GuestGone(f"{op}: the request could not be sent: {error}") from error
        finally:
            with self._changed:
                self._pending.pop(number, None)
        if not reply.get("ok"):
            raise Refused(f"{op}: {reply.get('error', 'refused without a reason')}")
        return reply

    def event(self, what: str, matches: Callable[[Message], bool], timeout_s: float) -> Message:
        """The first event, past or to come, for which `matches` is true; it is taken out, so that it is found once.

        Raises:
            GuestTimeout: none came within `timeout_s` seconds; `what` says what was waited for.
            GuestGone: the channel closed before it came.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for index, event in enumerate(self._events):
                    if matches(event):
                        return self._events.pop(index)
                if self._end is not None:
                    raise GuestGone(f"{what}: the guest is gone: {self._end}")
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise GuestTimeout(f"{what}: not within {timeout_s:g} s")

    def close(self) -> None:
        """End the channel: what waits on it fails, and the reader thread ends."""
        # A shutdown wakes the reader; closing the descriptor under it would not.
        # It fails where the other end went first.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()

    def _read(self) -> None:
        reason = "it closed the control channel"
        rest = b""
        try:
            while data := self._connection.recv(_RECEIVE_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.strip():
                        self._take(line)
        except OSError as error:
            reason = f"the control channel failed: {error}"
        except ValueError as error:
            reason = f"it sent a line that is no message: {error}"
        with self._changed:
            self._end = reason
            waiting, self._pending = list(self._pending.values()), {}
            self._changed.notify_all()
        for answer in waiting:
            answer.set_exception(GuestGone(f"the guest is gone: {reason}"))

    def _take(self, line: bytes) -> None:
        message = json.loads(line)
        if not isinstance(message, dict) or not ("event" in message or "id" in message):
            raise ValueError(repr(line[:200]))
        with self._changed:
            if "event" in message:
                self._events.append(message)
                self._changed.notify_all()
                return
            answer = self._pending.pop(message["id"], None) if message["id"] is not None else None
        # An answer that came after its timeout has nobody left to hear it.
        if answer is not None:
            answer.set_result(message)
