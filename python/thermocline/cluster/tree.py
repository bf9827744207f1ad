"""Adding up many parts, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")

FAN_IN = 8
"""Parts added by one task: some megabytes each, held by one worker at once."""


def add_up(parts: list[Part], add: Callable[[list[Part]], Part], fan_in: int = FAN_IN) -> Part:
    """The sum of all parts, of which there is at least one.

    Parts are added in groups of `fan_in`, then their sums, and so on. `add` may start a task and return its future: nothing here
    looks at a part. Addition is exact, so the shape of the tree does not show.
    """
    if fan_in < 2:
        raise ValueError(f"a fan-in of {fan_in} never ends; give 2 or more")
    if not parts:
        raise ValueError("there is nothing to add up")
    while len(parts) > 1:
        groups = [parts[first : first + fan_in] for first in range(0, len(parts), fan_in)]
        parts = [add(group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]
