"""Paired measurements: the ratio of two conditions that were measured alternately, with its confidence interval."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, by degrees of freedom from 1; the last value is used for more, which widens the interval."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Returns the geometric mean of the pairs' ratios; one pair has no interval and gets an infinite one.

    Logarithms are averaged because a ratio and its inverse are the same deviation. The interval is Student's, over
    pairs: what disturbs both runs of a pair alike cancels.

    Raises:
        ValueError: there is no pair, a run has no partner, or a value is not positive.
    """
    logarithms = [math.log(n / d) for n, d in zip(numerators, denominators, strict=True) if d > 0 and n > 0]
    if not logarithms or len(logarithms) < len(numerators):
        raise ValueError(f"{len(numerators)} pairs of positive values expected: {numerators} and {denominators}")
    mean = statistics.fmean(logarithms)
    if len(logarithms) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf)
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    margin = _T_975[min(len(logarithms) - 1, len(_T_975)) - 1] * error
    return Ratio(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))
