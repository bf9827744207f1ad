"""The commands of the models."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import bitbrains, conformal, curves, export, features, generate, insensitive, lives, pair, reliability, untouched, vms, workloads
from .curves import Point
from .lives import Failed

Act = Callable[[argparse.Namespace], int]

DIFFERENCE_MAX = 1e-5
"""Largest difference between the predictions of a model as ONNX and of its trainer."""

_CHECKED = 5000
"""Number of VMs or workloads in that check."""


def generate_vms(options: argparse.Namespace) -> int:
    """Generates VMs."""
    spec = generate.Spec(options.vms, options.days, options.customers, tuple(options.shift_day))
    made = generate.generate(spec, seed=options.seed)
    vms.write(made, options.out, f"thermocline.learn generate vms, seed {options.seed}", spec.days * vms.DAY)
    return _fitted(options, generate.fit(made), f"{len(made)} VMs")


def generate_workloads(options: argparse.Namespace) -> int:
    """Generates workloads."""
    made = workloads.generate(options.count, seed=options.seed)
    workloads.write(made, options.out)
    return _fitted(options, workloads.fit(made), f"{len(made)} workloads")


def _fitted(options: argparse.Namespace, fit: Sequence[generate.Fitted], description: str) -> int:
    lines = [f"wrote {options.out}: {description}, generated; published and generated figures:"]
    lines += [f"  {one.published:8.3f} {one.measured:8.3f}  {one.name}" for one in fit]
    _print(
        options,
        {"written": str(options.out), "seed": options.seed, "fit": [dataclasses.asdict(one) for one in fit]},
        "\n".join(lines) + "\n",
    )
    return 0


def train_untouched(options: argparse.Namespace) -> int:
    """Trains the untouched-memory model as of the end of a trace, or of the records of pool hosts."""
    _progress(f"reading {options.trace or options.lives}")
    known = features.known(vms.read(options.trace) if options.trace else lives.read(options.lives, options.program))
    now = int(known.vms.arrival.max()) + 1
    today = now // vms.DAY
    first = int(known.vms.arrival.min()) // vms.DAY
    days = [day for day in range(today - conformal.CALIBRATION_DAYS, today) if day > first + 1]
    nights = untouched.roll(known, days, _progress, conformal.QUANTILES)
    setting = conformal.choose(nights, options.target, now)
    _progress(f"training with quantile {setting.quantile} on the VMs that had ended at second {now}")
    result = _train_untouched(known, setting, now, options.target, options.out)
    summary = (
        f"quantile {setting.quantile} lowered by {setting.lowered:.1%} of memory, from {result['trained_on']} VMs; "
        f"the ONNX model is within {result['difference_max']:.1g} of the trainer"
    )
    _print(options, result, f"wrote {options.out}: {summary}\n")
    return 0


def train_nights(options: argparse.Namespace) -> int:
    """Trains the untouched-memory model for every night of a trace."""
    _progress(f"reading {options.trace}")
    known = features.known(vms.read(options.trace))
    last = int(known.vms.arrival.max()) // vms.DAY
    if options.first_day > last:
        raise Failed(f"{options.trace} ends on day {last}, before --first-day {options.first_day}: there is no night to train for")
    # The setting of the first night is chosen from the nights before it.
    began = max(1, options.first_day - conformal.CALIBRATION_DAYS)
    nights: list[untouched.Night] = []
    written = []
    for day in range(began, last + 1):
        if day >= options.first_day:
            setting = conformal.choose(nights, options.target, day * vms.DAY)
            written.append(_train_untouched(known, setting, day * vms.DAY, options.target, options.out / f"untouched-{day:04}.onnx"))
        nights = [*nights[1 - conformal.CALIBRATION_DAYS :], *untouched.roll(known, [day], _progress, conformal.QUANTILES)]
    _print(options, {"nights": written}, f"wrote the models of {len(written)} nights to {options.out}\n")
    return 0


def _train_untouched(known: features.Known, setting: conformal.Setting, now: int, target: float, out: Path) -> dict[str, Any]:
    """Trains on the VMs that had ended before `now`, writes the model, and returns a summary."""
    trained = untouched.train(known, setting.quantile, now, lowered=setting.lowered)
    model = export.untouched_model(trained, target)
    inputs = features.matrix(known.where(np.arange(len(known.vms)) >= len(known.vms) - _CHECKED), trained.encoding)
    inputs = inputs[~np.isnan(inputs).any(axis=1)]
    difference = _difference(trained.booster.predict(inputs.astype(np.float64), num_threads=1), export.run(model, inputs))
    return {"written": str(out), "bytes": export.write(model, out), "quantile": setting.quantile,
            "lowered_ratio": setting.lowered, "trained_on": trained.vms, "trained_until": now, "difference_max": difference}  # fmt: skip


def train_insensitive(options: argparse.Namespace) -> int:
    """Trains the latency-insensitivity model."""
    result = _train_insensitive(options)
    summary = f"{result['insensitive_ratio']:.1%} insensitive with {result['false_positive_ratio']:.1%} false positives in validation"
    difference = result["difference_max"]
    _print(options, result, f"wrote {options.out}: {summary}; the ONNX model is within {difference:.1g} of the trainer\n")
    return 0


def _train_insensitive(options: argparse.Namespace) -> dict[str, Any]:
    """Trains on all samples, writes the model, and returns a summary."""
    of = workloads.read(options.samples)
    trained = insensitive.train(
        of, options.latency, options.target, seed=options.seed, progress=_progress, pdm=options.pdm, folds=options.folds
    )
    model = export.insensitive_model(trained, options.target)
    shown = of.values[:_CHECKED]
    difference = _difference(insensitive.scores(trained.forest, shown), export.run(model, shown))
    expected = trained.expected
    return {"written": str(options.out), "bytes": export.write(model, options.out), "threshold": trained.threshold,
            "insensitive_ratio": expected.gain, "false_positive_ratio": expected.wrong, "difference_max": difference}  # fmt: skip


def train_pair(options: argparse.Namespace) -> int:
    """Solves, verifies and trains both models for one promise. Returns 3, and writes nothing, if held-out data breaks it."""
    _progress(f"reading {options.trace}")
    known, of = features.known(vms.read(options.trace)), workloads.read(options.samples)
    promise = pair.Promise(options.tp, options.pdm, options.latency)
    solved_on, held_out = pair.days(known, options.days, options.held_out)
    nights = untouched.roll(known, [*solved_on, *held_out], _progress, conformal.QUANTILES)
    how: dict[str, Any] = {"seed": options.seed, "folds": options.folds, "progress": _progress}
    solution = curves.solve(pair.forest_curve(of, promise, **how), pair.memory_curve(nights[: len(solved_on)]), 1 - promise.tp)
    verified = pair.verify(nights, held_out, pair.quarters(of, promise, **how), solution)
    holds = verified.holds(promise.tp)
    written = _write_pair(options, known, nights, solution) if holds else []
    result = {
        **dataclasses.asdict(promise),
        "solved": {"days": options.days, **_errors(solution.insensitive, solution.untouched)},
        "held_out": {
            "days": len(held_out), "vms": verified.vms, "workloads": verified.workloads,
            **_errors(verified.insensitive, verified.untouched),
            "wrong_ratio": verified.wrong, "standard_error": verified.standard_error,
        },
        "holds": holds,
        "written": written,
    }  # fmt: skip
    lines = [
        "                     insensitive  false positives  untouched  overpredicted",
        _pair_line(f"solved on {options.days} days", solution.insensitive, solution.untouched),
        _pair_line(f"held out, {len(held_out)} days", verified.insensitive, verified.untouched),
        f"errors on held-out data: {verified.wrong:.2%} +- {verified.standard_error:.2%}, where {1 - promise.tp:.2%} may be",
    ]
    if holds:
        lines += [f"wrote {name}" for name in written] or ["nothing was written: no setting of either model keeps the promise"]
    else:
        lines.append("the promise does not hold on held-out data, and nothing was written: a larger --tp is solved with a margin")
    _print(options, result, "\n".join(lines) + "\n")
    return 0 if holds else 3


def _write_pair(
    options: argparse.Namespace, known: features.Known, nights: Sequence[untouched.Night], solution: curves.Solution
) -> list[str]:
    """Trains both models on all data for the solved errors, and writes those that are used."""
    written = []
    if solution.untouched != curves.NOTHING:
        now = int(known.vms.arrival.max()) + 1
        target = solution.untouched.setting
        setting = conformal.choose(nights, target, now)
        written.append(_train_untouched(known, setting, now, target, options.out / "untouched.onnx")["written"])
    if solution.insensitive != curves.NOTHING:
        of = argparse.Namespace(**{**vars(options), "target": solution.insensitive.wrong, "out": options.out / "insensitive.onnx"})
        written.append(_train_insensitive(of)["written"])
    return written


def _errors(first: Point, second: Point) -> dict[str, float]:
    names = ("insensitive_ratio", "false_positive_ratio", "untouched_ratio", "overpredicted_ratio")
    return dict(zip(names, (first.gain, first.wrong, second.gain, second.wrong), strict=True))


def _pair_line(name: str, first: Point, second: Point) -> str:
    return f"{name:20} {first.gain:11.1%}  {first.wrong:15.2%}  {second.gain:9.1%}  {second.wrong:13.2%}"


def _difference(trainer: Any, served: Any) -> float:
    """Returns the largest difference between trainer and ONNX Runtime. Raises `Failed` if it is too large."""
    difference = float(np.abs(trainer - served).max(initial=0.0))
    if not difference <= DIFFERENCE_MAX:
        raise Failed(f"the model as ONNX differs from the trainer by {difference}, more than {DIFFERENCE_MAX}; nothing was written")
    return difference


def evaluate_untouched(options: argparse.Namespace) -> int:
    """Evaluates the untouched-memory model on the last days of a trace."""
    _progress(f"reading {options.trace}")
    known = features.known(vms.read(options.trace))
    last = int(known.vms.arrival.max() + 1) // vms.DAY
    nights = untouched.roll(known, range(last - options.days, last), _progress)
    model, static = untouched.curve(nights), untouched.static_curve(nights)
    sliced = untouched.curve(untouched.nights_in_slices(nights))
    static_sliced = untouched.static_curve(nights, in_whole_gib=True)
    compared = [_compared(nights, target) for target in sorted({*_TARGETS, options.target})]
    reliable = _reliability(known, nights, options.target)
    result = {
        "nights": len(nights),
        "vms": sum(len(night.vms) for night in nights),
        "model": points(model, "untouched"),
        "static": points(static, "untouched"),
        "model_in_slices": points(sliced, "untouched"),
        "static_in_slices": points(static_sliced, "untouched"),
        "targets": compared,
        "reliability": [dataclasses.asdict(group) for group in reliable],
        "nightly": [
            {"day": day, **_named(point, "untouched")} for day, point in conformal.nightly(nights, options.target, untouched.QUANTILES)
        ],
    }
    lines = [
        f"{result['vms']} VMs of {len(nights)} days, predicted by the models of the previous nights",
        "                                                             in whole GiB",
        "  quantile  untouched  overpredicted   static overpredicts   untouched  overpredicted   static overpredicts",
    ]
    for one, whole in zip(model, sliced, strict=True):
        exact = f"{one.gain:9.1%}  {one.wrong:13.1%}   {_static_at(static, one.gain):19}"
        lines.append(f"  {one.setting:8.1%}  {exact}   {whole.gain:9.1%}  {whole.wrong:13.1%}   {_static_at(static_sliced, whole.gain)}")
    lines += _compared_lines(compared, len(nights) - untouched.CHOICE_DAYS) + _reliability_lines(reliable, options.target)
    return _curve(options, result, lines)


_TARGETS = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Targets that the ways to keep one are compared at."""


def _compared(nights: Sequence[untouched.Night], target: float) -> dict[str, Any]:
    """Returns the results of the ways to keep a target: choosing the night's quantile, and lowering predictions."""
    daily = {"quantile": untouched.nightly(nights, target)}
    daily |= {name: conformal.nightly(nights, target, untouched.QUANTILES, lower=lower) for name, lower in conformal.KINDS.items()}
    counts = [len(night.vms) for night in nights[untouched.CHOICE_DAYS :]]
    found: dict[str, Any] = {"target": target}
    for name, days in daily.items():
        over = sum(
            point.wrong > target + reliability.ERRORS_BEYOND * (target * (1 - target) / count) ** 0.5
            for (_, point), count in zip(days, counts, strict=True)
        )
        wrong = sum(point.wrong * count for (_, point), count in zip(days, counts, strict=True)) / max(1, sum(counts))
        found[name] = {"untouched_ratio": float(np.mean([point.gain for _, point in days])) if days else 0.0,
                       "overpredicted_ratio": wrong, "days_over": over}  # fmt: skip
    return found


def _compared_lines(compared: Sequence[Mapping[str, Any]], days: int) -> list[str]:
    if days < 1:
        return []
    lines = [
        f"each night's setting from the {untouched.CHOICE_DAYS} days before it, on {days} days",
        "    target  setting             untouched  overpredicted  days over the target by two standard errors",
    ]
    for row in compared:
        for name in ("quantile", *conformal.KINDS):
            one = row[name]
            shown = name if name == "quantile" else f"lowered {name}"
            results = f"{one['untouched_ratio']:8.1%}  {one['overpredicted_ratio']:13.2%}  {one['days_over']:9}"
            lines.append(f"  {row['target']:8.1%}  {shown:20}{results}")
    return lines


def _reliability(known: features.Known, nights: Sequence[untouched.Night], target: float) -> list[reliability.Group]:
    """Returns the groups of the VMs of all nights but the first, which only calibrate."""
    first = untouched.CHOICE_DAYS
    if len(nights) <= first:
        return []
    predicted = [
        conformal.predictions(night, nights[:at], target, conformal.one_for_all, untouched.QUANTILES)
        for at, night in enumerate(nights)
        if at >= first
    ]
    counts = [known.counts[known.vms.arrival // vms.DAY == night.day] for night in nights[first:]]
    return reliability.groups(nights[first:], np.concatenate(counts), np.concatenate(predicted), target)


def _reliability_lines(groups: Sequence[reliability.Group], target: float) -> list[str]:
    lines = [f"overpredicted by group, with a target of {target:.1%} and predictions lowered one_for_all"] if groups else []
    for one in groups:
        said = "   OVER the target by more than two standard errors" if one.over else ""
        lines.append(f"  {one.kind:11} {one.name:12} {one.vms:6} VMs {one.untouched:7.1%} untouched {one.overpredicted:7.2%} "
                     f"overpredicted, standard error {one.standard_error:.2%}{said}")  # fmt: skip
    over = sum(one.over for one in groups)
    return [*lines, f"{over} of {len(groups)} groups are over"] if groups else []


def _static_at(static: Sequence[Point], gain: float) -> str:
    try:
        return f"{curves.wrong_at(static, gain):.1%}"
    except ValueError:
        return "-"


def evaluate_insensitive(options: argparse.Namespace) -> int:
    """Compares the random forest with one-counter heuristics."""
    of = workloads.read(options.samples)
    result: dict[str, Any] = {"workloads": len(of), "folds": options.folds, "latency_ratio": options.latency, "pdm_ratio": options.pdm}
    lines = [
        f"{len(of)} workloads at {options.latency:.0%} of local latency, {options.folds} splits in halves; insensitive at false positives",
        "                  0.5 %   1 %     2 %     5 %",
    ]
    for name, folds in insensitive.validate(
        of, options.latency, seed=options.seed, progress=_progress, pdm=options.pdm, folds=options.folds
    ).items():
        curve = insensitive.curve(folds)
        result["model" if name == "RandomForest" else name] = points(curve, "insensitive")
        shares = "  ".join(f"{curves.gain_at(curve, limit).gain:6.1%}" for limit in (0.005, 0.01, 0.02, 0.05))
        lines.append(f"  {name:14}  {shares}")
    return _curve(options, result, lines)


def _curve(options: argparse.Namespace, result: Mapping[str, Any], lines: Sequence[str]) -> int:
    if options.curve:
        options.curve.parent.mkdir(parents=True, exist_ok=True)
        options.curve.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        _progress(f"wrote {options.curve}")
    _print(options, result, "\n".join(lines) + "\n")
    return 0


def evaluate_bitbrains(options: argparse.Namespace) -> int:
    """Evaluates the untouched-memory model on the Bitbrains trace."""
    result, lines = bitbrains_report(options.data, _progress)
    _print(options, result, "\n".join(lines) + "\n")
    return 0


def bitbrains_report(path: Path, progress: untouched.Progress) -> tuple[dict[str, Any], list[str]]:
    """Returns the results of the model and the static policy on the trace, for lifetimes of a day and of a week."""
    days, counted = bitbrains.read(path)
    known = features.known(days)
    result: dict[str, Any] = {"lives": counted, "generated": False}
    lines = [
        f"{counted['used']} of {counted['vm_days']} VM-days; "
        f"skipped: {counted['resized']} resized, {counted['without_memory']} without memory"
    ]
    for name, length in (("day", 1), ("week", 7)):
        compared, tested = bitbrains.compare(bitbrains.lasting(known, length), untouched.QUANTILES, progress)
        result[name] = {
            "tested": tested,
            "settings": [
                {**_named(one.model, "untouched"), "static_overpredicted_ratio": one.static.wrong,
                 "times_better": one.static.wrong / one.model.wrong if one.model.wrong else None}
                for one in compared
            ],
        }  # fmt: skip
        lines += [f"lifetimes of a {name}, {tested} tested", "  untouched  overpredicted   static overpredicts"]
        lines += [f"  {one.model.gain:9.1%}  {one.model.wrong:13.1%}   {one.static.wrong:.1%}" for one in compared]
    return result, lines


def solve(options: argparse.Namespace) -> int:
    """Finds the best pair of settings of both models."""
    solution = curves.solve(_points(options.insensitive, "insensitive"), _points(options.untouched, "untouched"), 1 - options.tp)
    first, second = solution.insensitive, solution.untouched
    result = {
        "tp_ratio": options.tp,
        "insensitive": _named(first, "insensitive"),
        "untouched": _named(second, "untouched"),
        "pool_ratio": solution.pool,
        "slow_ratio": solution.slow,
    }
    text = (
        f"{first.gain:.1%} insensitive at {first.wrong:.2%} false positives, "
        f"{second.gain:.1%} untouched at {second.wrong:.2%} overpredictions\n"
        f"{solution.pool:.1%} of DRAM on the pool, if {curves.WITH_HISTORY:.0%} of VMs have a history of counters\n"
    )
    _print(options, result, text)
    return 0


def points(curve: Sequence[Point], kind: str) -> list[dict[str, float]]:
    """Returns a curve in its file format."""
    return [_named(point, kind) for point in curve]


def _named(point: Point, kind: str) -> dict[str, float]:
    wrong = {"untouched": "overpredicted_ratio", "insensitive": "false_positive_ratio"}[kind]
    return {f"{kind}_ratio": point.gain, wrong: point.wrong, "setting": point.setting}


def _points(path: Path, kind: str) -> list[Point]:
    """Reads a curve that `evaluate --curve` wrote."""
    wrong = {"untouched": "overpredicted_ratio", "insensitive": "false_positive_ratio"}[kind]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["model"]
        return [Point(float(row[wrong]), float(row[f"{kind}_ratio"]), float(row["setting"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path}: not a curve of `evaluate {kind} --curve`: {error!r}") from error


def _print(options: argparse.Namespace, result: Any, text: str) -> None:
    sys.stdout.write(json.dumps(result) + "\n" if options.format == "json" else text)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
