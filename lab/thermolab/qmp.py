"""QEMU's monitor protocol (QMP), for changes to a guest that its host daemon does not know about."""

import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import LabError

_TIMEOUT_SECONDS = 120.0


class Qmp:
    """A QMP connection, to be used in a `with` block: QEMU serves one client at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_TIMEOUT_SECONDS)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._events: list[dict[str, Any]] = []
        self._read()
        self.ask("qmp_capabilities", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, command: str, arguments: dict[str, Any]) -> Any:
        """Returns the result of a command.

        Raises:
            LabError: QEMU reports an error.
        """
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            message = self._read()
            if "event" in message:
                self._events.append(message)
            elif "error" in message:
                raise LabError(f"QMP command {command} failed: {message['error']['desc']}")
            else:
                return message["return"]

    def event(self, name: str, **data: object) -> dict[str, Any]:
        """Waits for an event whose data contain `data`."""
        while True:
            for message in self._events:
                if message["event"] == name and data.items() <= message.get("data", {}).items():
                    self._events.remove(message)
                    return message
            message = self._read()
            if "event" in message:
                self._events.append(message)

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise LabError("QEMU closed the QMP connection")
        message: dict[str, Any] = json.loads(line)
        return message
