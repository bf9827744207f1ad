"""Designers that learn the shape of the space: a Gaussian process each for what is wanted and for what is feared.

000 section 5.3 calls it GP Bandit. Both are by well-kept libraries; what is here is how a study looks to them. Neither
keeps anything between two calls: the process is fitted anew, which takes a fraction of a second at a hundred points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .designers import Designer, Done, Missing, fresh, generator, latin_square
from .space import Space, identity

FIRST_PER_KNOB = 2
"""Points by chance before a process is fitted, for each knob, and as many more."""

_EXCESS_MAX = 3.0
"""Where the excess of a point is cut: beyond it a point is hopeless, and how hopeless would bend the process."""


def egobox() -> Designer:
    """The Gaussian process of egobox, with a constraint of its own."""
    try:
        import egobox as library
        import numpy
    except ImportError as error:
        raise Missing("designer egobox is not installed; pip install 'thermocline[tune]', or take random or grid") from error

    def suggest(space: Space, done: Sequence[Done], *, seed: int) -> dict[str, float]:
        first = _first(space, done, seed)
        if first is not None:
            return first
        found = _seen_by_a_process(done)
        x = numpy.array([space.shares(one.point) for one in done])
        y = numpy.array([[-value, excess] for value, excess in found])
        optimizer = library.Egor([[0.0, 1.0]] * len(space), n_cstr=1)
        shares = optimizer.suggest(x, y, seed=generator(seed, len(done)).randrange(2**31))[0]
        return _new(space, done, [float(share) for share in shares], seed)

    return suggest


def optuna() -> Designer:
    """Optuna's tree of Parzen estimators, with the same constraint. Its own Gaussian process needs 5 GB of packages."""
    try:
        import optuna as library
    except ImportError as error:
        raise Missing("designer optuna is not installed; pip install 'thermocline[optuna]', or take egobox") from error
    library.logging.set_verbosity(library.logging.WARNING)

    def suggest(space: Space, done: Sequence[Done], *, seed: int) -> dict[str, float]:
        first = _first(space, done, seed)
        if first is not None:
            return first
        axes = {knob.key: library.distributions.FloatDistribution(0.0, 1.0) for knob in space.knobs}

        draw = generator(seed, len(done)).randrange(2**31)
        sampler = library.samplers.TPESampler(seed=draw, multivariate=True)
        study = library.create_study(direction="maximize", sampler=sampler)
        for one, (value, excess) in zip(done, _seen_by_a_process(done), strict=True):
            shares = dict(zip(axes, space.shares(one.point), strict=True))
            trial = library.trial.create_trial(params=shares, distributions=axes, value=value, constraints={"excess": excess})
            study.add_trial(trial)
        asked = study.ask(axes)
        return _new(space, done, [float(asked.params[knob.key]) for knob in space.knobs], seed)

    return suggest


def _first(space: Space, done: Sequence[Done], seed: int) -> dict[str, float] | None:
    """A point spread by chance while there are too few to learn from."""
    wanted = FIRST_PER_KNOB * (len(space) + 1)
    seen = {identity(one.point) for one in done}
    answered = sum(one.value is not None for one in done)
    if len(done) >= wanted and answered > len(space):
        return None
    for shares in latin_square(space, wanted, seed):
        point = space.at(shares)
        if identity(point) not in seen:
            return point
    return fresh(space, done, generator(seed, len(done)))


def _seen_by_a_process(done: Sequence[Done]) -> list[tuple[float, float]]:
    """Values and excesses without gaps.

    A look that failed counts as the worst that was seen, so that its surroundings are left alone rather than looked at for ever.
    """
    answered = [(one.value, one.excess) for one in done if one.value is not None and one.excess is not None]
    worst = min(value for value, _ in answered)
    feared = max(0.5, *(excess for _, excess in answered))
    filled = [(worst, feared) if one.value is None or one.excess is None else (one.value, one.excess) for one in done]
    return [(value, min(excess, _EXCESS_MAX) if math.isfinite(excess) else _EXCESS_MAX) for value, excess in filled]


def _new(space: Space, done: Sequence[Done], shares: Sequence[float], seed: int) -> dict[str, float]:
    """The point at these shares; or, where that was looked at already, one near it, farther off from try to try."""
    seen = {identity(one.point) for one in done}
    rng = generator(seed, f"near/{len(done)}")
    for reach in range(100):
        spread = reach / 400
        point = space.at([share + rng.gauss(0, spread) if reach else share for share in shares])
        if identity(point) not in seen:
            return point
    return fresh(space, done, rng)
