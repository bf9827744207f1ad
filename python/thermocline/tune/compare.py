"""Studies side by side: what each found, and how soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ENOUGH = 0.99
"""Of the most that any of the studies found: 000 stops to search when little is left to find."""


def compare(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each study's findings, with remarks on what makes them hard to compare."""
    remarks = []
    for what, of in (("replay different memory", "fleet"), ("hold different objectives", "objective")):
        if len({repr(one[of]) for one in found}) > 1:
            remarks.append(f"note: these studies {what}; their coverage does not tell which search was better")
    tops = [_top(one) for one in found]
    best = max((top for top in tops if top is not None), default=None)
    return [_row(one, best, remarks) for one in found]


def _top(one: Mapping[str, Any]) -> float | None:
    values = [row["best_so_far"] for row in one["trials"] if row["best_so_far"] is not None]
    return values[-1] if values else None


def _row(one: Mapping[str, Any], best: float | None, remarks: list[str]) -> dict[str, Any]:
    needed = None
    if best is not None:
        reached = (row["number"] for row in one["trials"] if row["best_so_far"] is not None and row["best_so_far"] >= ENOUGH * best)
        needed = next(reached, None)
    after, holdout = one["after"] or {}, one["holdout"] or {}
    return {
        "study": one["study"],
        "designer": one["designer"],
        "trials": one["looks"]["trials"],
        # The parameters in effect are number 0, so a trial's number is how many were needed.
        "trials_to_99": needed,
        "value": _top(one),
        "coverage": "coverage" in after,
        "rate": after.get("rate"),
        "holdout_coverage": (holdout.get("after") or {}).get("coverage"),
        "gain": one["gain"],
        "parameters": one["parameters"],
        "remarks": remarks,
    }
