"""What the commands do."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import bitbrains, curves, export, features, generate, insensitive, untouched, vms, workloads
from .curves import Point

Act = Callable[[argparse.Namespace], int]

DIFFERENCE_MAX = 1e-5
"""How far a model as ONNX may be from its trainer."""

_CHECKED = 5000
"""VMs or workloads by which that is checked."""


class Failed(Exception):
    """What was asked for cannot be done."""


def generate_vms(asked: argparse.Namespace) -> int:
    """`generate vms`."""
    spec = generate.Spec(asked.vms, asked.days, asked.customers)
    made = generate.generate(spec, seed=asked.seed)
    vms.write(made, asked.out, f"thermocline.learn generate vms, seed {asked.seed}", spec.days * vms.DAY)
    return _fitted(asked, generate.fit(made), f"{len(made)} VMs")


def generate_workloads(asked: argparse.Namespace) -> int:
    """`generate workloads`."""
    made = workloads.generate(asked.count, seed=asked.seed)
    workloads.write(made, asked.out)
    return _fitted(asked, workloads.fit(made), f"{len(made)} workloads")


def _fitted(asked: argparse.Namespace, fit: Sequence[generate.Fitted], what: str) -> int:
    lines = [f"wrote {asked.out}: {what}, made up; published and here:"]
    lines += [f"  {one.published:8.3f} {one.measured:8.3f}  {one.name}" for one in fit]
    _print(asked, {"written": str(asked.out), "seed": asked.seed, "fit": [dataclasses.asdict(one) for one in fit]}, "\n".join(lines) + "\n")
    return 0


def train_untouched(asked: argparse.Namespace) -> int:
    """`train untouched`."""
    _say(f"reading {asked.trace}")
    known = features.known(vms.read(asked.trace))
    now = int(known.vms.arrival.max()) + 1
    today = now // vms.DAY
    first = int(known.vms.arrival.min()) // vms.DAY
    days = [day for day in range(today - untouched.CHOICE_DAYS, today) if day > first + 1]
    nights = untouched.roll(known, days, _say)
    quantile = untouched.QUANTILES[untouched.choose(nights, asked.target, now)]
    _say(f"training with quantile {quantile} on what had ended by second {now}")
    told = _train_untouched(known, quantile, now, asked.target, asked.out)
    words = f"quantile {quantile} of {told['trained_on']} VMs, within {told['difference_max']:.1g} of the trainer as ONNX"
    _print(asked, told, f"wrote {asked.out}: {words}\n")
    return 0


def train_nights(asked: argparse.Namespace) -> int:
    """`train nights`."""
    _say(f"reading {asked.trace}")
    known = features.known(vms.read(asked.trace))
    last = int(known.vms.arrival.max()) // vms.DAY
    if asked.first_day > last:
        raise Failed(f"{asked.trace} ends on day {last}; --first-day {asked.first_day} is after that, and there is no night to train for")
    # The nights before the first are those that its setting is chosen by.
    began = max(1, asked.first_day - untouched.CHOICE_DAYS)
    nights: list[untouched.Night] = []
    written = []
    for day in range(began, last + 1):
        if day >= asked.first_day:
            quantile = untouched.QUANTILES[untouched.choose(nights, asked.target, day * vms.DAY)]
            written.append(_train_untouched(known, quantile, day * vms.DAY, asked.target, asked.out / f"untouched-{day:04}.onnx"))
        nights = [*nights[1 - untouched.CHOICE_DAYS :], *untouched.roll(known, [day], _say)]
    _print(asked, {"nights": written}, f"wrote the models of {len(written)} nights to {asked.out}\n")
    return 0


def _train_untouched(known: features.Known, quantile: float, now: int, target: float, out: Path) -> dict[str, Any]:
    """Trains on what had ended by a time, writes the model, and tells how it went."""
    trained = untouched.train(known, quantile, now)
    model = export.untouched_model(trained, target)
    inputs = features.matrix(known.where(np.arange(len(known.vms)) >= len(known.vms) - _CHECKED), trained.encoding)
    inputs = inputs[~np.isnan(inputs).any(axis=1)]
    difference = _difference(trained.booster.predict(inputs.astype(np.float64), num_threads=1), export.run(model, inputs))
    return {"written": str(out), "bytes": export.write(model, out), "quantile": quantile, "trained_on": trained.vms,
            "trained_until": now, "difference_max": difference}  # fmt: skip


def train_insensitive(asked: argparse.Namespace) -> int:
    """`train insensitive`."""
    of = workloads.read(asked.samples)
    trained = insensitive.train(of, asked.latency, asked.target, seed=asked.seed, say=_say, pdm=asked.pdm, folds=asked.folds)
    model = export.insensitive_model(trained, asked.target)
    shown = of.values[:_CHECKED]
    difference = _difference(insensitive.scores(trained.forest, shown), export.run(model, shown))
    expected = trained.expected
    told = {"written": str(asked.out), "bytes": export.write(model, asked.out), "threshold": trained.threshold,
            "insensitive_ratio": expected.gain, "false_positive_ratio": expected.wrong, "difference_max": difference}  # fmt: skip
    words = f"{expected.gain:.1%} insensitive with {expected.wrong:.1%} false positives in validation"
    _print(asked, told, f"wrote {asked.out}: {words}, within {difference:.1g} of the trainer as ONNX\n")
    return 0


def _difference(trainer: Any, served: Any) -> float:
    """How far ONNX Runtime is from the trainer at most; a model that differs is not written."""
    difference = float(np.abs(trainer - served).max(initial=0.0))
    if not difference <= DIFFERENCE_MAX:
        raise Failed(f"the model as ONNX differs from the trainer by {difference}, more than {DIFFERENCE_MAX}; nothing was written")
    return difference


def evaluate_untouched(asked: argparse.Namespace) -> int:
    """`evaluate untouched`."""
    _say(f"reading {asked.trace}")
    known = features.known(vms.read(asked.trace))
    last = int(known.vms.arrival.max() + 1) // vms.DAY
    nights = untouched.roll(known, range(last - asked.days, last), _say)
    model, static = untouched.curve(nights), untouched.static_curve(nights)
    daily = untouched.nightly(nights, asked.target)
    told = {
        "nights": len(nights),
        "vms": sum(len(night.vms) for night in nights),
        "model": points(model, "untouched"),
        "static": points(static, "untouched"),
        "nightly": [{"day": day, **_named(point, "untouched")} for day, point in daily],
    }
    lines = [f"{told['vms']} VMs of {len(nights)} days, by models of the nights before", "  untouched  overpredicted   static overpredicts"]
    for point in model:
        lines.append(f"  {point.gain:9.1%}  {point.wrong:13.1%}   {_static_at(static, point.gain)}")
    return _curve(asked, told, lines)


def _static_at(static: Sequence[Point], gain: float) -> str:
    try:
        return f"{curves.wrong_at(static, gain):.1%}"
    except ValueError:
        return "-"


def evaluate_insensitive(asked: argparse.Namespace) -> int:
    """`evaluate insensitive`."""
    of = workloads.read(asked.samples)
    told: dict[str, Any] = {"workloads": len(of), "folds": asked.folds, "latency_ratio": asked.latency, "pdm_ratio": asked.pdm}
    lines = [f"{len(of)} workloads at {asked.latency:.0%} of local latency, {asked.folds} splits in halves; insensitive at false positives",
             "                  0.5 %   1 %     2 %     5 %"]  # fmt: skip
    for name, folds in insensitive.validate(of, asked.latency, seed=asked.seed, say=_say, pdm=asked.pdm, folds=asked.folds).items():
        curve = insensitive.curve(folds)
        told["model" if name == "RandomForest" else name] = points(curve, "insensitive")
        shares = "  ".join(f"{curves.gain_at(curve, limit).gain:6.1%}" for limit in (0.005, 0.01, 0.02, 0.05))
        lines.append(f"  {name:14}  {shares}")
    return _curve(asked, told, lines)


def _curve(asked: argparse.Namespace, told: Mapping[str, Any], lines: Sequence[str]) -> int:
    if asked.curve:
        asked.curve.parent.mkdir(parents=True, exist_ok=True)
        asked.curve.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        _say(f"wrote {asked.curve}")
    _print(asked, told, "\n".join(lines) + "\n")
    return 0


def evaluate_bitbrains(asked: argparse.Namespace) -> int:
    """`evaluate bitbrains`."""
    told, lines = bitbrains_report(asked.data, _say)
    _print(asked, told, "\n".join(lines) + "\n")
    return 0


def bitbrains_report(path: Path, say: untouched.Say) -> tuple[dict[str, Any], list[str]]:
    """What the model and the static policy come to on the trace, by how long a life is taken to last."""
    days, counted = bitbrains.read(path)
    known = features.known(days)
    told: dict[str, Any] = {"lives": counted, "generated": False}
    lines = [
        f"{counted['used']} VM-days of {counted['vm_days']}; {counted['resized']} were resized, {counted['without_memory']} had no memory"
    ]
    for name, length in (("day", 1), ("week", 7)):
        compared, tested = bitbrains.compare(bitbrains.lasting(known, length), untouched.QUANTILES, say)
        told[name] = {
            "tested": tested,
            "settings": [
                {**_named(one.model, "untouched"), "static_overpredicted_ratio": one.static.wrong,
                 "times_better": one.static.wrong / one.model.wrong if one.model.wrong else None}
                for one in compared
            ],
        }  # fmt: skip
        lines += [f"lives of a {name}, {tested} tested", "  untouched  overpredicted   static overpredicts"]
        lines += [f"  {one.model.gain:9.1%}  {one.model.wrong:13.1%}   {one.static.wrong:.1%}" for one in compared]
    return told, lines


def solve(asked: argparse.Namespace) -> int:
    """`solve`."""
    solution = curves.solve(_points(asked.insensitive, "insensitive"), _points(asked.untouched, "untouched"), 1 - asked.tp)
    first, second = solution.insensitive, solution.untouched
    told = {
        "tp_ratio": asked.tp,
        "insensitive": _named(first, "insensitive"),
        "untouched": _named(second, "untouched"),
        "pool_ratio": solution.pool,
        "slow_ratio": solution.slow,
    }
    text = (
        f"{first.gain:.1%} insensitive at {first.wrong:.2%} false positives, "
        f"{second.gain:.1%} untouched at {second.wrong:.2%} overpredictions\n"
        f"{solution.pool:.1%} of DRAM on the pool, where {curves.WITH_HISTORY:.0%} of VMs have a history of counters\n"
    )
    _print(asked, told, text)
    return 0


def points(curve: Sequence[Point], kind: str) -> list[dict[str, float]]:
    """A curve as it is written."""
    return [_named(point, kind) for point in curve]


def _named(point: Point, kind: str) -> dict[str, float]:
    wrong = {"untouched": "overpredicted_ratio", "insensitive": "false_positive_ratio"}[kind]
    return {f"{kind}_ratio": point.gain, wrong: point.wrong, "setting": point.setting}


def _points(path: Path, kind: str) -> list[Point]:
    """A curve out of a file that `evaluate --curve` wrote."""
    wrong = {"untouched": "overpredicted_ratio", "insensitive": "false_positive_ratio"}[kind]
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["model"]
        return [Point(float(row[wrong]), float(row[f"{kind}_ratio"]), float(row["setting"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path}: not a curve of `evaluate {kind} --curve`: {error!r}") from error


def _print(asked: argparse.Namespace, told: Any, text: str) -> None:
    sys.stdout.write(json.dumps(told) + "\n" if asked.format == "json" else text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
