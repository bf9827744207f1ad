"""Settings that an agent leaves behind: the machine's settings compared with those before the agent's start."""

import json
from collections.abc import Mapping
from typing import Any

from .guest import Guest

Settings = Mapping[str, Any]
"""Limits of cgroups, zswap parameters and DAMON's kernel threads, each under a unique name."""


def inspect(guest: Guest) -> Settings:
    """Returns everything that `labguest inspect` reports, as a flat mapping."""
    found: dict[str, Any] = json.loads(guest.run(["labguest", "inspect"]).stdout)
    settings = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
    settings |= {f"zswap {name}": value for name, value in found["zswap"].items()}
    for cgroup in found["cgroups"]:
        path = cgroup.pop("path")
        settings |= {f"{path} {name}": value for name, value in cgroup.items()}
    return settings


def differing(before: Settings, now: Settings) -> list[str]:
    """Describes each setting whose value has changed."""
    names = sorted(before.keys() | now.keys())
    unset = "not set"
    return [
        f"{name}: was {before.get(name, unset)}, is {now.get(name, unset)}"
        for name in names
        if before.get(name) != now.get(name)
    ]
