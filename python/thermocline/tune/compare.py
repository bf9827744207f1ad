"""Compares studies: the result of each, and the number of trials it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ENOUGH = 0.99
"""Share of the best value over all studies at which a study counts as converged."""


def compare(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each study, with remarks on differences that limit the comparison."""
    remarks = []
    for difference, of in (("replay different memory", "fleet"), ("have different objectives", "objective")):
        if len({repr(one[of]) for one in found}) > 1:
            remarks.append(f"note: these studies {difference}; their coverage does not show which search was better")
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
        "trials": one["evaluations"]["trials"],
        # Number 0 is the parameters in effect, so a trial's number is the count of trials up to it.
        "trials_to_99": needed,
        "value": _top(one),
        "coverage": "coverage" in after,
        "rate": after.get("rate"),
        "holdout_coverage": (holdout.get("after") or {}).get("coverage"),
        "gain": one["gain"],
        "parameters": one["parameters"],
        "remarks": remarks,
    }
