"""A report of figures by name, which several commands write, each its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep(path: Path, told: Mapping[str, Any]) -> None:
    """Writes what there is so far, so that a long run that is stopped has not been for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged(path, told), indent=1) + "\n", encoding="utf-8")


def merged(path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds already, with these figures in place of older ones: other parts of the report write it, too."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = {}
    if not isinstance(before, dict):
        raise ValueError(f"{path} holds no figures by name; move it away")
    return {**before, **told}
