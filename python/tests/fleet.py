"""A substitute for the program that answers like `thermocline`, by a formula instead of a replay.

It is run as a program, because the tuner only runs programs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

KS, SS = (0.5, 0.9, 0.98, 0.99, 1.0), (0.0, 600.0, 3600.0)


def pair(k: float, s: float, rate: float, week: int) -> dict[str, float | None]:
    """A more aggressive setting (higher P, lower K) stores more and has a higher rate; a long warm-up stores slightly less."""
    boldness = rate / 0.002 * (1.6 - 0.6 * k)
    coverage = 0.2 * boldness**0.5 * (1 - s / 100_000) * (1 + 0.01 * week)
    # The second week may have more bursts of accesses than the others.
    bursts = float(os.environ.get("FAKE_BURSTS", "1")) if week == 2 else 1.0
    back = 0.0017 * boldness * (1 - s / 50_000) * bursts
    return {
        "percentile_ratio": k, "warmup_seconds": s, "coverage_ratio": coverage, "saved_ratio": coverage / 5,
        "stored_bytes": coverage * 1e12, "saved_bytes": coverage * 6e11, "rate_ratio_per_min": back,
        "tail_ratio_per_min": back * float(os.environ.get("FAKE_TAIL", "2")),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    count = Path(os.environ.get("FAKE_COUNT", os.devnull))
    settings = {
        arguments[i + 1].split("=")[0]: arguments[i + 1].split("=")[1] for i, argument in enumerate(arguments) if argument == "--set"
    }
    rate = float(settings.get("cold_age.promotion_rate", "0.2%").rstrip("%")) / 100
    if "--version" in arguments:
        print("thermocline 0.0-fake")
    elif "knobs" in arguments:
        search = {"low": 0.0002, "high": 0.02, "scale": "log"}
        row = {"unit": "ratio per minute", "number": 0.002, "value": "0.2%", "search": search}
        rows = [
            {"key": "cold_age.promotion_rate", **row},
            {
                "key": "cold_age.percentile",
                "unit": "percentile",
                "number": 0.99,
                "value": "99%",
                "search": {"low": 0.5, "high": 0.9999, "scale": "tail"},
            },
            {
                "key": "cold_age.warmup",
                "unit": "duration",
                "default": "600s",
                "number": 600.0,
                "value": "600s",
                "search": {"low": 60.0, "high": 14400.0, "scale": "log"},
            },
            {"key": "cold_age.thresholds", "unit": "number", "number": 32, "value": "32", "search": None},
            {
                "key": "pressure.ratio",
                "unit": "ratio",
                "number": 0.0005,
                "value": "0.05%",
                "search": {"low": 0.00005, "high": 0.01, "scale": "log"},
            },
            {"key": "class.aggressive.promotion_rate", **row, "number": 0.01},
        ]
        print(json.dumps(rows))
    elif "--survey" in arguments:
        shift = float(os.environ.get("FAKE_SHIFT", "0"))
        colds = (0.3 + shift, 0.2 + shift, 0.1)
        ages = [
            {"threshold_seconds": 120.0 * (i + 1), "cold_ratio": cold, "accessed_ratio_per_min": 0.1 / (i + 1)}
            for i, cold in enumerate(colds)
        ]
        print(json.dumps({"fleet": {"ages": ages}}))
    else:
        if os.environ.get("FAKE_FAIL") == "always" or (os.environ.get("FAKE_FAIL") == "bold" and rate > 0.01):
            print("thermocline: no such trace", file=sys.stderr)
            return 1
        with count.open("a") as file:
            file.write("run\n")
        week = int(arguments[arguments.index("--seed") + 1]) if "--seed" in arguments else 0
        k, s = (
            float(settings.get(f"cold_age.{name}", default).rstrip("%s")) for name, default in (("percentile", "99%"), ("warmup", "600s"))
        )
        pairs = [pair(k, s, rate, week) for k in KS for s in SS]
        times = float(arguments[arguments.index("--bursts") + 1]) if "--bursts" in arguments else 1.0
        for one in pairs:
            one["rate_ratio_per_min"] = (one["rate_ratio_per_min"] or 0.0) * times
        aggressive = [one | {"rate_ratio_per_min": (one["rate_ratio_per_min"] or 0.0) / 2} for one in pairs]
        groups = [{"name": "aggressive", "pairs": aggressive}, {"name": "web", "pairs": pairs}] if "--by" in arguments else []
        answer = {"configured": pair(k / 100, s, rate, week), "pairs": pairs, "groups": groups}
        used = 2e12 + int(os.environ.get("FAKE_GROWTH", "0"))
        if os.environ.get("FAKE_UNRESOLVED") and "--allow-unresolved" not in arguments:
            print("thermocline: no entry answers the question", file=sys.stderr)
            return 1
        warnings = ["P 0.2%/min, best pair: 100% of the entries"] if os.environ.get("FAKE_UNRESOLVED") else []
        report = {"jobs": 10, "entries": 100, "span_seconds": 6e5, "used_bytes": used, "cold_bytes": 1e12, "answers": [answer]}
        print(json.dumps(report | {"warnings": warnings}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
