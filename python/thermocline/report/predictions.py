"""Untouched memory of real VMs, predicted each night: `make reproduce-predictions BITBRAINS=DIR` (Pond section 5).

Every Parquet file of the directory is a month of the Bitbrains trace. Each day after the first two weeks is predicted from the
days before it, by the calibrated rule and by the one-line rule; the gradient-boosted model is trained once, on the first three
weeks, and tested on the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thermocline.learn import bitbrains, calibrated, features, untouched
from thermocline.learn.vms import DAY, Vms

FIRST_DAY = 14
"""The first day that is predicted."""


def main(arguments: Sequence[str]) -> int:
    """Evaluates every month, prints the figures and writes them."""
    options = _parser().parse_args(arguments)
    months = sorted(options.bitbrains.glob("*.parquet"))
    if not months:
        raise SystemExit(f"{options.bitbrains} has no .parquet file; give a directory with months of the Bitbrains trace")
    figures = {path.stem: _month(path, options.target) for path in months}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"target_ratio": options.target, "months": figures}, indent=1) + "\n"
    options.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _month(path: Path, target: float) -> dict[str, Any]:
    lives, _ = bitbrains.read(path)
    known = features.known(lives)
    day = known.vms.arrival // DAY
    days = range(FIRST_DAY, int(day.max()) + 1)
    tested = np.isin(day, list(days))
    at_target = bitbrains.compare(known, [one for one in untouched.QUANTILES if one <= target][-1:], lambda _: None)[0][0]
    return {
        "days": len(days),
        "lives": int(tested.sum()),
        **_figures(calibrated.nightly(known, days, target), known.vms, days, target),
        "one_line_rule": _figures(calibrated.rule(known), known.vms, days, target),
        "model": {"promised_ratio": at_target.model.gain, "overpredicted_ratio": at_target.model.wrong},
    }


def _figures(promised: Any, vms: Vms, days: Sequence[int], target: float) -> dict[str, float]:
    """Returns what is promised and overpredicted on these days; a day is over the target if it is by two standard errors."""
    day = vms.arrival // DAY
    over = 0
    for one in days:
        there = day == one
        wrong = float((promised[there] > vms.untouched_ratio[there]).mean())
        over += wrong > target + 2 * (target * (1 - target) / int(there.sum())) ** 0.5
    there = np.isin(day, list(days))
    found = untouched.point(promised[there], vms.untouched_ratio[there], vms.memory_bytes[there], target)
    return {"promised_ratio": found.gain, "overpredicted_ratio": found.wrong, "days_over_target": over}


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m thermocline.report.predictions", description=__doc__.split("\n\n")[0])
    made.add_argument(
        "--bitbrains", type=Path, required=True, metavar="DIR", help="directory with months of the Bitbrains trace as Parquet"
    )
    made.add_argument("--target", type=float, default=0.03, metavar="RATIO", help="share of VMs that may be overpredicted (default: 3%%)")
    made.add_argument(
        "--out", type=Path, default=Path("target/reproduce/predictions.json"), metavar="FILE", help="output file (default: %(default)s)"
    )
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
