"""Designers that model the search space: a Gaussian process each for the value and for the constraint.

(SDFM section 5.3) calls this GP Bandit. Both designers use established libraries; this module converts a study to their
input. Neither keeps state between two calls: the process is fitted again, which takes a fraction of a second for a hundred
points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .sampling import Designer, Evaluation, Missing, fresh, generator, latin_square
from .space import Space, identity

FIRST_PER_KNOB = 2
"""Initial random points before a process is fitted: this many for each knob, and as many more."""

_EXCESS_MAX = 3.0
"""Upper bound of the excess that the process sees. Larger values would distort it; the point is infeasible anyway."""


def egobox() -> Designer:
    """The Gaussian process of egobox, with a second process for the constraint."""
    try:
        import egobox as library
        import numpy
    except ImportError as error:
        raise Missing("designer egobox is not installed; pip install 'thermocline[tune]', or use random or grid") from error

    def suggest(space: Space, done: Sequence[Evaluation], *, seed: int) -> dict[str, float]:
        first = _first(space, done, seed)
        if first is not None:
            return first
        found = _complete(done)
        x = numpy.array([space.shares(one.point) for one in done])
        y = numpy.array([[-value, excess] for value, excess in found])
        optimizer = library.Egor([[0.0, 1.0]] * len(space), n_cstr=1)
        shares = optimizer.suggest(x, y, seed=generator(seed, len(done)).randrange(2**31))[0]
        return _new(space, done, [float(share) for share in shares], seed)

    return suggest


def optuna() -> Designer:
    """Optuna's tree-structured Parzen estimator, with the same constraint. Its Gaussian process needs 5 GB of packages."""
    try:
        import optuna as library
    except ImportError as error:
        raise Missing("designer optuna is not installed; pip install 'thermocline[optuna]', or use egobox") from error
    library.logging.set_verbosity(library.logging.WARNING)

    def suggest(space: Space, done: Sequence[Evaluation], *, seed: int) -> dict[str, float]:
        first = _first(space, done, seed)
        if first is not None:
            return first
        axes = {knob.key: library.distributions.FloatDistribution(0.0, 1.0) for knob in space.knobs}

        draw = generator(seed, len(done)).randrange(2**31)
        sampler = library.samplers.TPESampler(seed=draw, multivariate=True)
        study = library.create_study(direction="maximize", sampler=sampler)
        for one, (value, excess) in zip(done, _complete(done), strict=True):
            shares = dict(zip(axes, space.shares(one.point), strict=True))
            trial = library.trial.create_trial(params=shares, distributions=axes, value=value, constraints={"excess": excess})
            study.add_trial(trial)
        suggestion = study.ask(axes)
        return _new(space, done, [float(suggestion.params[knob.key]) for knob in space.knobs], seed)

    return suggest


def _first(space: Space, done: Sequence[Evaluation], seed: int) -> dict[str, float] | None:
    """Returns an initial random point, or `None` if there are enough evaluations to fit a process."""
    required = FIRST_PER_KNOB * (len(space) + 1)
    seen = {identity(one.point) for one in done}
    answered = sum(one.value is not None for one in done)
    if len(done) >= required and answered > len(space):
        return None
    for shares in latin_square(space, required, seed):
        point = space.at(shares)
        if identity(point) not in seen:
            return point
    return fresh(space, done, generator(seed, len(done)))


def _complete(done: Sequence[Evaluation]) -> list[tuple[float, float]]:
    """Returns values and excesses without gaps.

    A failed evaluation counts as the worst result so far, so that the search avoids its surroundings.
    """
    answered = [(one.value, one.excess) for one in done if one.value is not None and one.excess is not None]
    worst = min(value for value, _ in answered)
    worst_excess = max(0.5, *(excess for _, excess in answered))
    filled = [(worst, worst_excess) if one.value is None or one.excess is None else (one.value, one.excess) for one in done]
    return [(value, min(excess, _EXCESS_MAX) if math.isfinite(excess) else _EXCESS_MAX) for value, excess in filled]


def _new(space: Space, done: Sequence[Evaluation], shares: Sequence[float], seed: int) -> dict[str, float]:
    """Returns the point at these shares. If it has been evaluated, returns one at random nearby, at a growing distance."""
    seen = {identity(one.point) for one in done}
    rng = generator(seed, f"near/{len(done)}")
    for reach in range(100):
        spread = reach / 400
        point = space.at([share + rng.gauss(0, spread) if reach else share for share in shares])
        if identity(point) not in seen:
            return point
    return fresh(space, done, rng)
