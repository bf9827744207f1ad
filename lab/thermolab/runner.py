"""Finds scenarios, runs them on kernels and writes their results."""

import importlib
import pkgutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scenarios

from . import binaries, kernels, results
from .errors import LabError
from .lab import Lab
from .paths import results as results_directory

RESULT = "result.json"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A module of `lab/scenarios` with a docstring and a function `run`."""

    name: str
    summary: str
    """First paragraph of the docstring, joined to one line."""
    kernels: tuple[str, ...]
    """Kernels that it runs on by default; the module's `KERNELS`."""
    more_is_better: frozenset[str]
    """Figures without a bound whose worst case is the smallest value; the module's `MORE_IS_BETTER`."""
    features: tuple[str, ...]
    """Additional cargo features of `thermocline`; the module's `FEATURES`."""
    run: Callable[[Lab], dict[str, Any]]


def names() -> list[str]:
    """Returns the names of all scenarios."""
    return sorted(module.name for module in pkgutil.iter_modules(scenarios.__path__))


def load(name: str) -> Scenario:
    """Loads the scenario `name`.

    Raises:
        LabError: there is no such scenario.
    """
    if name not in names():
        raise LabError(f"no scenario is named {name!r}: choose one of {', '.join(names())}")
    module = importlib.import_module(f"scenarios.{name}")
    summary = " ".join((module.__doc__ or "").strip().split("\n\n", 1)[0].split())
    return Scenario(
        name=name,
        summary=summary,
        kernels=tuple(getattr(module, "KERNELS", kernels.NAMES[:1])),
        more_is_better=frozenset(getattr(module, "MORE_IS_BETTER", ())),
        features=tuple(getattr(module, "FEATURES", ())),
        run=module.run,
    )


def run(name: str, on: Sequence[str]) -> dict[str, Any]:
    """Runs a scenario on the kernels `on` (its own choice if empty) and writes its result.

    An error within the scenario becomes a reason in the result; the remaining kernels still run.

    Raises:
        LabError: there is no such scenario, or the programs could not be built.
    """
    scenario = load(name)
    directory = results_directory() / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULT).unlink(missing_ok=True)
    programs = binaries.build(scenario.features)
    better = dict.fromkeys(scenario.more_is_better, "more")
    runs = []
    for kernel in on or scenario.kernels:
        found, bounds = _run_one(scenario, kernel, directory, programs)
        runs.append(found)
        better.update(bounds.better)
    whole = runs[0] if len(runs) == 1 else results.merged(runs, better)
    whole = {"scenario": name, **whole}
    results.write(directory / RESULT, whole)
    return whole


def _run_one(
    scenario: Scenario, kernel: str, directory: Path, programs: dict[str, Path]
) -> tuple[results.Figures, results.Bounds]:
    begin = time.monotonic()
    bounds = results.Bounds()
    figures: results.Figures = {}
    try:
        lab = Lab(scenario.name, kernels.kernel(kernel), directory, programs)
        bounds = lab.bounds
        figures = scenario.run(lab)
    except LabError as error:
        bounds.reasons.append(str(error))
    except Exception as error:  # noqa: BLE001 -- an error in a scenario must not discard the other kernels' results
        bounds.reasons.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    return results.run_result(kernel, figures, bounds, time.monotonic() - begin), bounds
