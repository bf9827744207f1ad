"""The control channel against a scripted peer."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from thermolab.channel import Channel
from thermolab.errors import GuestGone, GuestTimeout, LabError, Refused

Script = Callable[[list[dict[str, Any]]], list[bytes]]


class Peer:
    """The guest's end of the channel: reads `count` requests, then sends the chunks returned by `script`."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.channel = Channel(ours)

    def answer(self, count: int, script: Script) -> None:
        def serve() -> None:
            lines = self.socket.makefile("rb")
            requests = [json.loads(lines.readline()) for _ in range(count)]
            for chunk in script(requests):
                self.socket.sendall(chunk)

        threading.Thread(target=serve, daemon=True).start()

    def say(self, text: str) -> None:
        self.socket.sendall(text.encode())


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.socket.close()
    peer.channel.close()


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_a_reply_may_be_split_anywhere(peer: Peer) -> None:
    def bytewise(requests: list[dict[str, Any]]) -> list[bytes]:
        whole = line(id=requests[0]["id"], ok=True, data="grün\n")
        return [whole[index : index + 1] for index in range(len(whole))]

    peer.answer(1, bytewise)
    assert peer.channel.request("read", {"path": "/x"}, 10)["data"] == "grün\n"


def test_replies_may_arrive_in_any_order(peer: Peer) -> None:
    peer.answer(2, lambda requests: [line(id=r["id"], ok=True, data=r["path"]) for r in reversed(requests)])
    answers: dict[str, str] = {}

    def request(path: str) -> None:
        answers[path] = peer.channel.request("read", {"path": path}, 10)["data"]

    threads = [threading.Thread(target=request, args=(path,)) for path in ("/a", "/b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {"/a": "/a", "/b": "/b"}


def test_an_event_is_returned_once_and_past_events_count(peer: Peer) -> None:
    peer.say('{"event":"exit","pid":7,"status":0,"signal":null}\n{"event":"exit","pid":8,"status":1,"signal":null}\n')
    assert peer.channel.event("exit of 8", lambda event: event["pid"] == 8, 10)["status"] == 1
    assert peer.channel.event("exit of 7", lambda event: event["pid"] == 7, 10)["status"] == 0
    with pytest.raises(GuestTimeout, match="exit of 8"):
        peer.channel.event("exit of 8", lambda event: event["pid"] == 8, 0.01)


@pytest.mark.parametrize(
    ("chunks", "error", "text"),
    [
        ([b'{"id":1,"ok":false,"error":"no such file"}\n'], Refused, "no such file"),
        ([b'{"id":1,"ok":false}\n'], Refused, "no reason given"),
        ([b"not json\n"], GuestGone, "no message"),
        ([b'["a list"]\n'], GuestGone, "no message"),
        ([b'{"neither":1}\n'], GuestGone, "no message"),
        ([b"\xff\xfe\n"], GuestGone, "no message"),
        ([b'{"id":99,"ok":true}\n'], GuestTimeout, "no answer within"),
        ([b'{"id":null,"ok":false,"error":"x"}\n'], GuestTimeout, "no answer within"),
    ],
)
def test_invalid_replies(peer: Peer, chunks: list[bytes], error: type[LabError], text: str) -> None:
    peer.answer(1, lambda _requests: chunks)
    with pytest.raises(error, match=text):
        peer.channel.request("read", {"path": "/x"}, 0.5)


def test_a_closed_channel_fails_pending_and_later_requests(peer: Peer) -> None:
    def hang_up(_requests: list[dict[str, Any]]) -> list[bytes]:
        peer.socket.shutdown(socket.SHUT_RDWR)
        return []

    peer.answer(1, hang_up)
    with pytest.raises(GuestGone):
        peer.channel.request("read", {"path": "/x"}, 10)
    with pytest.raises(GuestGone):
        peer.channel.event("boot", lambda _event: True, 10)
    with pytest.raises(GuestGone):
        peer.channel.request("read", {"path": "/x"}, 10)
