"""Parameters compared on weeks that none of them was tuned on: gains with their interval, the worst cluster and the worst day."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.tune import choose
from thermocline.tune.choose import Objective, Pair
from thermocline.tune.program import ModelRun

DRAWS = 2000
"""Resampled fleets from which an interval is taken."""

CONFIDENCE = 0.95

CLUSTERS_MIN = 5
"""With fewer clusters, resampling them says too little: there is no interval."""


def within(pair: Pair, rate_max: float) -> bool:
    """Returns whether a pair holds the objective as the paper states it: at the percentile, whatever its tail."""
    return pair.stored_bytes == 0 or (pair.rate is not None and pair.rate <= rate_max)


def row(run: ModelRun, pair: tuple[float, float], objective: Objective, days: Sequence[float | None]) -> dict[str, Any]:
    """Returns the results of a pair of K and S in one week: for the fleet, and for the cluster and the day of the highest rate.

    Args:
        run: the model's results.
        pair: K and S.
        objective: the objective of clusters and days, too.
        days: rate of each day under this pair, as `Program.days` returns it.
    """
    found = choose.at(run.pairs, *pair)
    if found is None:
        raise SystemExit(f"the model did not compute the pair {pair}")
    clusters = {name: one for name, pairs in run.groups.items() if (one := choose.at(pairs, *pair)) is not None and one.stored_bytes > 0}
    bounded = [one.rate for one in clusters.values() if one.rate is not None]
    return {
        "coverage": found.coverage,
        "saved": found.saved,
        "rate": found.rate,
        "tail": found.tail,
        "holds": within(found, objective.rate_max),
        "worst_cluster_rate": max(bounded, default=None) if len(bounded) == len(clusters) else None,
        "clusters": len(clusters),
        "clusters_held": sum(within(one, objective.rate_max) for one in clusters.values()),
        "worst_day_rate": None if None in days else max((rate for rate in days if rate is not None), default=None),
        "days": len(days),
        "days_held": sum(rate is not None and rate <= objective.rate_max for rate in days),
    }


def stored(run: ModelRun, pair: tuple[float, float]) -> dict[str, float]:
    """Returns the stored bytes of each cluster under a pair of K and S."""
    found = {name: choose.at(pairs, *pair) for name, pairs in run.groups.items()}
    return {name: one.stored_bytes for name, one in found.items() if one is not None}


def gain_interval(before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 1) -> tuple[float, float] | None:
    """Returns the interval of the gain in stored bytes over fleets of other clusters, by a bootstrap.

    The same clusters are drawn for both, because what a cluster stores varies far more between clusters than between parameters.
    `None` if there are too few clusters, or a draw stored nothing before.
    """
    names = sorted(before.keys() & after.keys())
    if len(names) < CLUSTERS_MIN:
        return None
    source = random.Random(seed)  # noqa: S311 - a bootstrap, not cryptography
    gains = []
    for _ in range(DRAWS):
        drawn = source.choices(names, k=len(names))
        base = sum(before[name] for name in drawn)
        if base <= 0:
            return None
        gains.append(sum(after[name] for name in drawn) / base - 1)
    gains.sort()
    outside = int(DRAWS * (1 - CONFIDENCE) / 2)
    return gains[outside], gains[-1 - outside]
