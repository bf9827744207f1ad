"""The control channel: one JSON object per line, over a socket to the guest's control program.

A request has an `id` that its reply repeats. Replies may arrive in any order, because operations run concurrently.
Lines with an `event` are unsolicited. A reader thread dispatches both; there is no polling.
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
    """The host's end of the control channel; methods may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._send_lock = threading.Lock()
        # Guards the fields below; notified for each event and when the channel closes.
        self._changed = threading.Condition()
        self._pending: dict[int, Future[Message]] = {}
        self._events: list[Message] = []
        self._end: str | None = None
        self._reader = threading.Thread(target=self._read, name="lab-channel", daemon=True)
        self._reader.start()

    def request(self, op: str, fields: Mapping[str, object], timeout_s: float) -> Message:
        """Sends operation `op` and returns its reply, waiting at most `timeout_s`.

        Raises:
            Refused: the guest reported an error.
            GuestTimeout: no reply in time.
            GuestGone: the channel closed before the reply.
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
            raise Refused(f"{op}: {reply.get('error', 'no reason given')}")
        return reply

    def event(self, what: str, matches: Callable[[Message], bool], timeout_s: float) -> Message:
        """Returns the first past or future event for which `matches` is true, and removes it from the queue.

        Raises:
            GuestTimeout: no such event within `timeout_s`; `what` names the event in the message.
            GuestGone: the channel closed before it arrived.
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
        """Closes the channel: pending requests fail, and the reader thread exits."""
        # shutdown() wakes the reader; close() would not. It fails if the other end closed first.
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
        # A reply that arrives after its timeout has no waiter left.
        if answer is not None:
            answer.set_result(message)
