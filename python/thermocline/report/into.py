"""A report file with figures by name, to which several commands contribute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep(path: Path, data: Mapping[str, Any]) -> None:
    """Merges figures into a report file. Called after each figure, so that a run that is stopped keeps its results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged(path, data), indent=1) + "\n", encoding="utf-8")


def merged(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a report file with these figures added or replaced."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = {}
    if not isinstance(before, dict):
        raise ValueError(f"{path} is not a report of figures by name; move the file away")
    return {**before, **data}
