"""Where the lab finds and leaves things."""

import os
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
"""The `lab/` folder of this checkout."""

TREE = LAB.parent
"""The checkout."""


def cache() -> Path:
    """Directory of what is fetched or built once: kernels, root file systems, initial RAM disks."""
    named = os.environ.get("THERMOCLINE_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thermocline"


def results() -> Path:
    """Directory under which each scenario leaves a folder of its own."""
    return TREE / "target" / "lab"
