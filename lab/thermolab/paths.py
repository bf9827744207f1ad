"""Directories that the lab uses."""

import os
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
"""The `lab/` folder of this checkout."""

TREE = LAB.parent
"""Root of this checkout."""


def cache() -> Path:
    """Returns the directory for everything fetched or built once: kernels, root file systems, initial RAM disks."""
    named = os.environ.get("THERMOCLINE_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thermocline"


def results() -> Path:
    """Returns the directory that holds one folder per scenario."""
    return TREE / "target" / "lab"
