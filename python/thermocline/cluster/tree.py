"""Adds up many parts as a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")

FAN_IN = 8
"""Parts added by one task: a few megabytes each, all held by one worker."""


def add_up(parts: list[Part], add: Callable[[list[Part]], Part], fan_in: int = FAN_IN) -> Part:
    """Returns the sum of all parts, of which there must be at least one.

    Parts are added in groups of `fan_in`, then their sums, and so on. `add` may start a task and return its future, because
    parts are not inspected here. Addition is exact, so the result does not depend on the shape of the tree.
    """
    if fan_in < 2:
        raise ValueError(f"a fan-in of {fan_in} never ends; give at least 2")
    if not parts:
        raise ValueError("there is nothing to add up")
    while len(parts) > 1:
        groups = [parts[first : first + fan_in] for first in range(0, len(parts), fan_in)]
        parts = [add(group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]
