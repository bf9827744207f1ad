"""Evaluations of a point: a run of `thermocline model`, or of a command that measures what the model cannot replay.

The tuner only runs commands and contains no copy of the policy, so an evaluation is what the agent's own code would do.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from . import choose
from .choose import Objective, Pair

By = Literal["", "class", "cluster"]
"""The groups of jobs that the model shows one by one, if any."""

_MESSAGE_MAX = 500
"""Largest number of characters kept of a failed run's message."""


class RunFailed(Exception):
    """A run failed; the message is the end of its standard error."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The input of the model: recorded traces, or a generated fleet."""

    trace: tuple[str, ...] = ()
    """Files and directories, as `thermocline model --trace` takes them."""
    jobs: int = 0
    """Jobs of a generated fleet that run at any time."""
    days: int = 7
    seed: int = 1
    character: str = "mixed"
    """What most promotions of a generated fleet are caused by."""
    bursts: float = 1.0
    """How many times as many sweeps and phases as usual it has."""
    resample: int = 0
    """Jobs that are resampled from the traces, over `days` days; 0 replays the traces as they are."""
    worst_days: int = 0
    """Only so many of the traces' days are resampled: those in which most cold memory was accessed; 0 for all."""

    def __post_init__(self) -> None:
        if bool(self.trace) == bool(self.jobs):
            raise ValueError("give either traces or the number of jobs of a generated fleet")
        if (self.resample and not self.trace) or (self.worst_days and not self.resample):
            raise ValueError("only traces are resampled, and only of a resampled fleet the worst days are known")

    @property
    def arguments(self) -> list[str]:
        """The program's arguments."""
        if self.resample:
            worst = ["--worst-days", str(self.worst_days)] if self.worst_days else []
            drawn = ["--resample", str(self.resample), "--days", str(self.days), "--seed", str(self.seed)]
            return ["--trace", *self.trace, *drawn, *worst]
        if self.trace:
            return ["--trace", *self.trace]
        made = ["--generate", str(self.jobs), "--days", str(self.days), "--seed", str(self.seed)]
        return [*made, "--character", self.character, "--bursts", repr(self.bursts)]

    def __str__(self) -> str:
        if self.resample:
            days = f"the {self.worst_days} worst days of " if self.worst_days else ""
            return f"{self.resample} jobs resampled from {days}{', '.join(self.trace)}"
        if self.trace:
            return ", ".join(self.trace)
        kind = "" if self.character == "mixed" else f"{self.character} "
        bursts = "" if self.bursts == 1 else f", {self.bursts:g} times the bursts"
        return f"a generated {kind}fleet of {self.jobs} jobs over {self.days} d (seed {self.seed}{bursts})"


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """The replayed fleet, averaged over its span. Independent of the parameters."""

    jobs: int
    entries: int
    span_seconds: float
    used_bytes: float
    cold_bytes: float


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRun:
    """The results of a model run for all pairs of K and S, with all other knobs fixed."""

    fleet: Fleet
    configured: Pair
    """The result of the configured K and S."""
    pairs: tuple[Pair, ...]
    groups: Mapping[str, tuple[Pair, ...]]
    """The same pairs by class of jobs or by cluster, if requested."""
    warnings: tuple[str, ...] = ()
    """What the results cannot be sure of, as the model prints it."""


@dataclasses.dataclass(frozen=True, slots=True)
class TimeCost:
    """The results of a policy that is judged by the time that far memory costs, for one class of jobs."""

    of_class: str
    far_bytes: float
    """Mean over the trace, as for all bytes."""
    cold_bytes: float
    lost: float | None
    """Share of their time that jobs lose, at the objective's percentile of the entries with far memory; `None` if there are
    no such entries, or all time is lost."""


@dataclasses.dataclass(frozen=True, slots=True)
class Age:
    """A cold-age threshold, and the share of a fleet's memory at or above it."""

    seconds: float
    cold: float
    """Share of all memory."""
    accessed: float
    """Share of that memory that is accessed per minute."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The `thermocline` program, with the configuration for knobs that are not searched."""

    path: str = "thermocline"
    config: str | None = None
    timeout_seconds: float = 24 * 3600.0

    def version(self) -> str:
        """Returns the version that the program prints."""
        return self._run(["--version"], {}).strip()

    def knobs(self, settings: Mapping[str, str]) -> list[dict[str, Any]]:
        """Returns the table of knobs, with the values in effect under `settings`."""
        table: list[dict[str, Any]] = self._json(["config", "knobs"], settings)
        return table

    def evaluate(
        self,
        source: Source,
        settings: Mapping[str, str],
        objective: Objective,
        *,
        grid: Sequence[str] = (),
        by: By = "",
    ) -> ModelRun:
        """Replays `source` under `settings` (text by key).

        `grid` are further arguments of the model: those for K and S, and `--allow-unresolved`.
        """
        command = ["model", *source.arguments, "--pairs", *grid]
        command += ["--objective", repr(objective.rate_max), "--objective-percentile", repr(objective.percentile)]
        report = self._json(command + (["--by", by] if by else []), settings)
        try:
            answer = report["answers"][0]
            fleet = Fleet(*(report[field.name] for field in dataclasses.fields(Fleet)))
            groups = {group["name"]: choose.pairs(group["pairs"]) for group in answer.get("groups", [])}
            return ModelRun(
                fleet, choose.pairs([answer["configured"]])[0], choose.pairs(answer["pairs"]), groups, tuple(report.get("warnings", ()))
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RunFailed(
                f"{self.path} model printed an unexpected result ({error!r}); check that it has the version of this package"
            ) from error

    def time_costs(self, source: Source, settings: Mapping[str, str], policy: str, tier_latency: str, percentile: float) -> list[TimeCost]:
        """Returns the results of `pressure` or `slowdown` under `settings`, by class."""
        command = ["model", *source.arguments, "--policy", policy, "--objective-percentile", repr(percentile)]
        report = self._json(command + (["--tier-latency", tier_latency] if tier_latency else []), settings)
        try:
            fields = ("class", "far_bytes", "cold_bytes", "lost_ratio")
            return [TimeCost(*(row[field] for field in fields)) for row in report["classes"]]
        except (KeyError, TypeError) as error:
            raise RunFailed(f"{self.path} model --policy {policy} printed an unexpected result ({error!r})") from error

    def ages(self, source: Source, settings: Mapping[str, str]) -> list[Age]:
        """Returns the age distribution of a fleet's memory, before any is moved."""
        # One pair is enough: the ages do not depend on it. Nor do they depend on whether a tracker resolved its threshold.
        command = ["model", *source.arguments, "--survey", "--allow-unresolved", "--percentiles", "100%", "--warmups", "0s"]
        report = self._json(command, settings)
        rows = report["fleet"]["ages"]
        return [Age(row["threshold_seconds"], row["cold_ratio"], row["accessed_ratio_per_min"]) for row in rows]

    def detail(self, source: Source, settings: Mapping[str, str]) -> dict[str, Any]:
        """Returns the results of `settings` by hour, machine and job, as the model prints them."""
        command = ["model", *source.arguments, "--detail", "--percentiles", "100%", "--warmups", "0s"]
        details: dict[str, Any] = self._json(command, settings)
        return details

    def days(self, source: Source, settings: Mapping[str, str], objective: Objective) -> list[float | None]:
        """Returns the promotion rate of each day under `settings`, K and S among them; `None` if it is unbounded."""
        command = ["model", *source.arguments, "--detail", "--percentiles", "100%", "--warmups", "0s"]
        report = self._json([*command, "--objective-percentile", repr(objective.percentile)], settings)
        try:
            return [row["rate_ratio_per_min"] for row in report["detail"]["days"]]
        except (KeyError, TypeError) as error:
            raise RunFailed(f"{self.path} model --detail printed an unexpected result ({error!r})") from error

    def _json(self, arguments: Sequence[str], settings: Mapping[str, str]) -> Any:
        printed = self._run([*arguments, "--format", "json"], settings)
        try:
            return json.loads(printed)
        except ValueError as error:
            raise RunFailed(f"{self.path} did not print JSON but {printed[:_MESSAGE_MAX]!r}") from error

    def _run(self, arguments: Sequence[str], settings: Mapping[str, str]) -> str:
        config = ["--config", self.config] if self.config else []
        sets = [argument for key, text in settings.items() for argument in ("--set", f"{key}={text}")]
        return run([self.path, *config, *sets, *arguments], self.timeout_seconds)


def run(command: Sequence[str], timeout_seconds: float) -> str:
    """Returns the standard output of a command. Raises `RunFailed` if it fails or exceeds the timeout."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{command[0]} did not finish within {timeout_seconds:.0f} s; increase --timeout") from error
    except OSError as error:
        raise RunFailed(f"cannot run {command[0]}: {error.strerror}; name the program with --program") from error
    if ran.returncode != 0:
        message = ran.stderr.strip()[-_MESSAGE_MAX:] or "no message on standard error"
        raise RunFailed(f"{command[0]} exited with {ran.returncode}: {message}")
    return ran.stdout


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a user's command, with the fields of `sampling.Evaluation`."""

    value: float
    excess: float
    took_seconds: float


def measure(command: Sequence[str], settings: Mapping[str, str], timeout_seconds: float) -> Measurement:
    """Runs a command with `--set KEY=VALUE` for each knob; its last line must be `{"value": ..., "excess": ...}`."""
    began = time.monotonic()
    printed = run([*command, *(argument for key, text in settings.items() for argument in ("--set", f"{key}={text}"))], timeout_seconds)
    lines = printed.strip().splitlines()
    try:
        result = json.loads(lines[-1])
        return Measurement(float(result["value"]), float(result["excess"]), time.monotonic() - began)
    except (IndexError, ValueError, KeyError, TypeError) as error:
        last = lines[-1][:_MESSAGE_MAX] if lines else ""
        raise RunFailed(f'the last line of {command[0]} must be {{"value": ..., "excess": ...}}, found {last!r}') from error
