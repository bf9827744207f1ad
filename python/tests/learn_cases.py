"""Creates small models with the trainer's predictions, for the tests of `crates/pool/predict`: `python tests/learn_cases.py`.

Run it after a change of features or format, and inspect the changes in `crates/pool/predict/testdata`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from thermocline.learn import export, features, generate, insensitive, untouched, workloads
from thermocline.learn.curves import Point
from thermocline.learn.vms import DAY, RUNNING, Vms

TO = Path(__file__).resolve().parents[2] / "crates/pool/predict/testdata"
VMS, WORKLOADS = 150, 40


def request(vms: Vms, at: int) -> dict[str, Any]:
    """Returns a VM as a request (`crates/pool/predict/src/request.rs`)."""
    names = {name: str(getattr(vms, name)[at]) for name in ("vm_type", "guest_os", "location")}
    return names | {name: int(getattr(vms, name)[at]) for name in ("customer", "cores", "memory_bytes", "arrival")}


def untouched_cases() -> tuple[Any, list[dict[str, Any]]]:
    """Returns a small model, and VMs of the following day as requests with their history and prediction."""
    known = features.known(generate.generate(generate.Spec(vms=6000, days=9, customers=60), seed=5))
    trained = untouched.train(known, 0.05, 8 * DAY, rounds=12)
    of = known.where(known.vms.arrival >= 8 * DAY)
    inputs = features.matrix(of, trained.encoding)
    able = features.answerable(of, inputs) & untouched.in_range(inputs, trained.low, trained.high)
    answers = trained.answers(of)
    cases = []
    for at in np.linspace(0, len(of.vms) - 1, VMS).astype(int):
        vms = of.vms
        cases.append({"request": request(vms, at), "untouched_ratio": float(answers[at]) if able[at] else None})
    ended = known.vms.where(known.vms.departure != RUNNING)
    order = np.lexsort((ended.id, ended.departure))
    records = [[int(ended.customer[at]), int(ended.departure[at]), round(float(ended.untouched_ratio[at]), 6)] for at in order]
    return export.untouched_model(trained, 0.05), [{"ended": records}, *cases]


def insensitive_cases() -> tuple[Any, list[dict[str, Any]]]:
    """Returns a small forest, and held-out workloads with their scores."""
    of = workloads.generate(158, seed=5)
    truth = insensitive.labels(of, 1.82, insensitive.PDM)
    forest = insensitive.fit(of.values, truth, 5, trees=12)
    point = Point(0.02, 0.3, 0.75)
    trained = insensitive.Trained(forest, of.counters, *insensitive.ranges(of.values), 0.75, 1.82, insensitive.PDM, point)
    others = workloads.generate(WORKLOADS, seed=6)
    scores = insensitive.scores(forest, others.values)
    able = untouched.in_range(others.values, trained.low, trained.high)
    cases = [
        {"counters": {name: float(value) for name, value in zip(of.counters, row, strict=True)}, "score": float(score) if fit else None}
        for row, score, fit in zip(others.values, scores, able, strict=True)
    ]
    return export.insensitive_model(trained, 0.02), cases


def main() -> None:
    for name, (model, cases) in {"untouched": untouched_cases(), "insensitive": insensitive_cases()}.items():
        size = export.write(model, TO / f"{name}.onnx")
        (TO / f"{name}.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
        answered = sum(case.get("untouched_ratio", case.get("score")) is not None for case in cases)
        print(f"{name}: {size} bytes, {len(cases)} lines, {answered} with an answer")


if __name__ == "__main__":
    main()
