"""One look: a run of `thermocline model`, or of a command that measures what the model cannot replay.

The command is the boundary, and nothing of the policy is written a second time here: what a look finds is what the
agent's own code would have done.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import choose
from .choose import Objective, Pair

_MESSAGE_MAX = 500
"""Characters of a failed run's message that are kept."""


class Failed(Exception):
    """A run ended badly; the message is its own last words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What is replayed: recorded traces, or a fleet that is made up."""

    trace: tuple[str, ...] = ()
    """Files and directories, as `thermocline model --trace` takes them."""
    jobs: int = 0
    """Of a generated fleet: how many jobs run at any time."""
    days: int = 7
    seed: int = 1

    def __post_init__(self) -> None:
        if bool(self.trace) == bool(self.jobs):
            raise ValueError("give either traces, or the number of jobs of a fleet to generate")

    @property
    def arguments(self) -> list[str]:
        """As the program takes them."""
        if self.trace:
            return ["--trace", *self.trace]
        return ["--generate", str(self.jobs), "--days", str(self.days), "--seed", str(self.seed)]

    def __str__(self) -> str:
        if self.trace:
            return ", ".join(self.trace)
        return f"a generated fleet of {self.jobs} jobs over {self.days} d (seed {self.seed})"


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """What was replayed, on average over its span; none of it depends on the parameters."""

    jobs: int
    entries: int
    span_seconds: float
    used_bytes: float
    cold_bytes: float


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What a run of the model found under one setting of all but K and S."""

    fleet: Fleet
    configured: Pair
    """The K and S that the configuration has."""
    pairs: tuple[Pair, ...]
    groups: Mapping[str, tuple[Pair, ...]]
    """The same pairs by class of jobs, where they were asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """What a policy comes to that is judged by the time that far memory costs, in one class of jobs."""

    of_class: str
    far_bytes: float
    """On average over the trace, like all bytes."""
    cold_bytes: float
    lost: float | None
    """Share of their time that jobs lose, at the objective's percentile of the entries with far memory; None where
    there are none, or it is all of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Age:
    """A cold-age threshold, and what of a fleet lies at or above it."""

    seconds: float
    cold: float
    """Share of the memory."""
    accessed: float
    """Share of that which is accessed each minute."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The `thermocline` program, with the configuration that holds for what is not searched."""

    path: str = "thermocline"
    config: str | None = None
    timeout_seconds: float = 24 * 3600.0

    def version(self) -> str:
        """As it calls itself."""
        return self._run(["--version"], {}).strip()

    def knobs(self, settings: Mapping[str, str]) -> list[dict[str, Any]]:
        """The table of knobs, with the values in effect under `settings`."""
        table: list[dict[str, Any]] = self._json(["config", "knobs"], settings)
        return table

    def look(
        self,
        source: Source,
        settings: Mapping[str, str],
        objective: Objective,
        *,
        grid: Sequence[str] = (),
        by_class: bool,
    ) -> Look:
        """Replays `source` under `settings`, texts by keys. `grid`: the model's own arguments for K and S."""
        asked = ["model", *source.arguments, "--pairs", *grid]
        asked += ["--objective", repr(objective.rate_max), "--objective-percentile", repr(objective.percentile)]
        report = self._json(asked + (["--by", "class"] if by_class else []), settings)
        try:
            answer = report["answers"][0]
            fleet = Fleet(*(report[field.name] for field in dataclasses.fields(Fleet)))
            groups = {group["name"]: choose.pairs(group["pairs"]) for group in answer.get("groups", [])}
            return Look(fleet, choose.pairs([answer["configured"]])[0], choose.pairs(answer["pairs"]), groups)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Failed(f"{self.path} model answered otherwise than expected ({error!r}); is it of this version?") from error

    def waits(self, source: Source, settings: Mapping[str, str], policy: str, tier_latency: str, percentile: float) -> list[Waits]:
        """What `pressure` or `slowdown` would come to under `settings`, by class."""
        asked = ["model", *source.arguments, "--policy", policy, "--objective-percentile", repr(percentile)]
        report = self._json(asked + (["--tier-latency", tier_latency] if tier_latency else []), settings)
        try:
            fields = ("class", "far_bytes", "cold_bytes", "lost_ratio")
            return [Waits(*(row[field] for field in fields)) for row in report["classes"]]
        except (KeyError, TypeError) as error:
            raise Failed(f"{self.path} model --policy {policy} answered otherwise than expected ({error!r})") from error

    def ages(self, source: Source, settings: Mapping[str, str]) -> list[Age]:
        """How old a fleet's memory is, before anything is moved."""
        # One pair is enough: the survey does not depend on it.
        report = self._json(["model", *source.arguments, "--survey", "--percentiles", "100%", "--warmups", "0s"], settings)
        rows = report["fleet"]["ages"]
        return [Age(row["threshold_seconds"], row["cold_ratio"], row["accessed_ratio_per_min"]) for row in rows]

    def detail(self, source: Source, settings: Mapping[str, str]) -> dict[str, Any]:
        """What the parameters of `settings` come to by hour, machine and job, as the model prints it."""
        asked = ["model", *source.arguments, "--detail", "--percentiles", "100%", "--warmups", "0s"]
        told: dict[str, Any] = self._json(asked, settings)
        return told

    def _json(self, arguments: Sequence[str], settings: Mapping[str, str]) -> Any:
        printed = self._run([*arguments, "--format", "json"], settings)
        try:
            return json.loads(printed)
        except ValueError as error:
            raise Failed(f"{self.path} printed no JSON but {printed[:_MESSAGE_MAX]!r}") from error

    def _run(self, arguments: Sequence[str], settings: Mapping[str, str]) -> str:
        config = ["--config", self.config] if self.config else []
        sets = [word for key, text in settings.items() for word in ("--set", f"{key}={text}")]
        return run([self.path, *config, *sets, *arguments], self.timeout_seconds)


def run(command: Sequence[str], timeout_seconds: float) -> str:
    """What a command printed; `Failed` with its last words where it ended badly or not in time."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} was not done after {timeout_seconds:.0f} s; raise --timeout") from error
    except OSError as error:
        raise Failed(f"cannot run {command[0]}: {error.strerror}; name the program with --program") from error
    if ran.returncode != 0:
        words = ran.stderr.strip()[-_MESSAGE_MAX:] or "it said nothing"
        raise Failed(f"{command[0]} ended with {ran.returncode}: {words}")
    return ran.stdout


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a command of the operator's found: as `designers.Done` has it."""

    value: float
    excess: float
    took_seconds: float


def measure(command: Sequence[str], settings: Mapping[str, str], timeout_seconds: float) -> Measured:
    """Runs a command with `--set KEY=VALUE` for each knob; its last line must be `{"value": ..., "excess": ...}`."""
    began = time.monotonic()
    printed = run([*command, *(word for key, text in settings.items() for word in ("--set", f"{key}={text}"))], timeout_seconds)
    lines = printed.strip().splitlines()
    try:
        told = json.loads(lines[-1])
        return Measured(float(told["value"]), float(told["excess"]), time.monotonic() - began)
    except (IndexError, ValueError, KeyError, TypeError) as error:
        last = lines[-1][:_MESSAGE_MAX] if lines else ""
        raise Failed(f'the last line of {command[0]} must be {{"value": ..., "excess": ...}}, and was {last!r}') from error
