"""Settings before and after an agent, and the journal compared with restarted state."""

import json
from typing import Any

import pytest

from scenarios import kill_anywhere
from thermolab import remains

BEFORE = {"/a memory.low": 4096, "zswap enabled": False}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (BEFORE, []),
        ({**BEFORE, "zswap enabled": True}, ["zswap enabled: was False, is True"]),
        ({"zswap enabled": False}, ["/a memory.low: was 4096, is not set"]),
        ({**BEFORE, "/b memory.swap.max": 0}, ["/b memory.swap.max: was not set, is 0"]),
    ],
)
def test_each_difference_is_named(now: remains.Settings, expected: list[str]) -> None:
    assert remains.differing(BEFORE, now) == expected


def _job(state: list[int]) -> dict[str, Any]:
    return {"record": "job", "job": "/a", "id": 1, "state": state}


def _period(window_ms: int) -> dict[str, Any]:
    return {"record": "period", "job": "/a", "id": 1, "input": {"window_ms": window_ms}}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([_job([]), _period(0), _period(9), _period(9), _job([1, 1])], (0, 0)),
        ([_job([]), _period(9), _period(9), _job([1])], (0, 1)),
        ([_job([]), _period(9), _job([4]), _period(9), _job([2])], (3, 3)),
        ([{"record": "event", "what": "agent stopped"}, _job([7])], (0, 0)),
    ],
)
def test_histories_are_compared_at_each_restart(records: list[dict[str, Any]], expected: tuple[int, int]) -> None:
    assert kill_anywhere.history_against_journal([json.dumps(record) for record in records]) == expected
