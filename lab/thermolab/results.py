"""Results of a scenario: figures, bounds, and the worst case over several kernels."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

_MORE, _LESS = "more", "less"


@dataclass(slots=True)
class Bounds:
    """Bounds checked so far: each failed bound adds a reason, and each records the better direction of a figure."""

    reasons: list[str] = field(default_factory=list)
    better: dict[str, str] = field(default_factory=dict)
    """Dotted name of a figure to "more" or "less"."""

    def at_most(self, name: str, value: float, bound: float) -> None:
        """Checks that `value` does not exceed `bound`; NaN fails."""
        self.better[name] = _LESS
        # Negated so that NaN fails.
        if not value <= bound:
            self.reasons.append(f"{name} = {value:g} exceeds its bound {bound:g}")

    def at_least(self, name: str, value: float, bound: float) -> None:
        """Checks that `value` is not below `bound`; NaN fails."""
        self.better[name] = _MORE
        if not value >= bound:
            self.reasons.append(f"{name} = {value:g} is below its bound {bound:g}")

    def holds(self, name: str, held: bool, why: str) -> None:
        """Checks that `held` is true; otherwise adds `why` to the reasons."""
        if not held:
            self.reasons.append(f"{name}: {why}")


def run_result(kernel: str, figures: Mapping[str, Any], bounds: Bounds, elapsed_seconds: float) -> Figures:
    """Returns the result of one scenario on one kernel."""
    return {
        "kernel": kernel,
        "passed": not bounds.reasons,
        "reasons": list(bounds.reasons),
        **figures,
        "elapsed_seconds": elapsed_seconds,
    }


def merged(runs: list[Figures], better: Mapping[str, str]) -> Figures:
    """Merges the results of several kernels: each run under `runs`, and the worst case of each figure beside it.

    The worst number is the largest, or the smallest if `better` is "more"; the worst truth value is false. Texts are
    kept if all runs agree. Lists, and figures that some run lacks, remain only in the runs.
    """
    whole = _worst(runs, better, "")
    whole["kernel"] = ", ".join(run["kernel"] for run in runs)
    whole["passed"] = all(run["passed"] for run in runs)
    whole["reasons"] = [f"{run['kernel']}: {reason}" for run in runs for reason in run["reasons"]]
    whole["elapsed_seconds"] = sum(run["elapsed_seconds"] for run in runs)
    whole["runs"] = runs
    return whole


def _worst(runs: list[Figures], better: Mapping[str, str], prefix: str) -> Figures:
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    whole: Figures = {}
    for name in shared:
        values = [run[name] for run in runs]
        dotted = f"{prefix}{name}"
        if _all_are(values, bool):
            whole[name] = all(values)
        elif _all_are(values, int | float):
            whole[name] = min(values) if better.get(dotted) == _MORE else max(values)
        elif _all_are(values, dict):
            whole[name] = _worst(values, better, f"{dotted}.")
        elif _all_are(values, str) and len(set(values)) == 1:
            whole[name] = values[0]
    return whole


def _all_are(values: Iterable[object], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def write(path: Path, result: Figures) -> None:
    """Writes `result` as JSON, atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, indent=2) + "\n")
    partial.replace(path)
