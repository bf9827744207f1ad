"""Generates customers and their VMs: untouched memory together with features known to a scheduler, which no public trace has.

The published figures describe all VMs together (Pond sections 3.2 and 6.4.2): half of them leave half of their memory
untouched, one in eight leaves less than a fifth. These are fitted exactly, by rank. How much of the variance is explained by
the customer is published only indirectly, through the accuracy of Pond's model: `_OWN` and `_STRAY` were chosen so that our
model comes close to it. The accuracy of our model on such VMs therefore shows that training and serving work, and not that
Pond's accuracy can be reached elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from .vms import DAY, GIB, RUNNING, Vms, by_arrival

MARGINAL = ((0.0, 0.0), (0.10, 0.15), (0.12, 0.20), (0.5, 0.5), (0.9, 0.86), (1.0, 0.99))
"""Share of VMs, and the untouched share below which they are (Pond figure 19, static policy, and section 3.2)."""

_TYPES = tuple((f"{family}{cores}", cores, ratio) for family, ratio in (("F", 2), ("D", 4), ("E", 8)) for cores in (2, 4, 8, 16, 32))
_SYSTEMS = ("linux-a", "linux-b", "linux-c", "windows-a", "windows-b")
_LOCATIONS = tuple(f"region-{letter}" for letter in "abcdefgh")

_CUSTOMER, _GROUP, _SYSTEM, _LOCATION, _OWN = 0.55, 0.28, 0.04, 0.03, 0.10
"""Shares of the variance of untouched memory: customer, group of similar VMs, system, region, and the VM itself."""

_GROUPS = 4
"""Groups of similar VMs of a customer."""

_STRAY = 0.055
"""Share of VMs that are independent of their customer."""

_DRIFT = 0.06
"""Standard deviation of a customer's change per day."""

_SHIFTED = 0.2
"""Share of customers whose VMs behave differently from a day of `Spec.shift_days` on."""
_NEW = 0.05
"""Share of customers that have their first VM on a day of `Spec.shift_days`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """Size of the generated trace."""

    vms: int = 60_000
    days: int = 28
    customers: int = 400
    shift_days: tuple[int, ...] = ()
    """Days on which many customers change at once, and new ones appear. Without any, a trace is as before."""

    def __post_init__(self) -> None:
        if not (100 <= self.vms <= 20_000_000 and 2 <= self.days <= 3650 and 1 <= self.customers <= self.vms):
            raise ValueError(
                f"cannot generate {self.vms} VMs of {self.customers} customers over {self.days} days; "
                "give 100 to 20000000 VMs, 2 to 3650 days, and at most one customer per VM"
            )
        for day in self.shift_days:
            if not 1 <= day < self.days:
                raise ValueError(f"cannot shift customers on day {day} of {self.days}; give a day from 1 to {self.days - 1}")


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A published figure and its generated value."""

    name: str
    published: float
    measured: float


def generate(spec: Spec, *, seed: int) -> Vms:
    """Generates VMs, sorted by arrival. Pure: equal arguments give equal VMs."""
    chance = np.random.default_rng(seed)
    count = spec.vms
    shifts = _Shifts.of(spec, seed)
    customer = chance.choice(spec.customers, size=count, p=_popularity(spec.customers))
    # A customer deploys a few groups of similar VMs with one type, system and region each.
    group = customer * _GROUPS + chance.choice(_GROUPS, size=count, p=(0.55, 0.25, 0.13, 0.07))
    kinds = spec.customers * _GROUPS
    weights = np.array([1 / (1 + cores) for _, cores, _ in _TYPES])
    kind_type = chance.choice(len(_TYPES), size=kinds, p=weights / weights.sum())
    kind_system = chance.integers(len(_SYSTEMS), size=kinds)
    kind_location: Any = np.repeat(chance.integers(len(_LOCATIONS), size=spec.customers), _GROUPS)
    arrival = _arrivals(chance, count, spec.days)
    customer, group = shifts.without_new(customer, group, arrival // DAY)
    departure = arrival + _lifetimes(chance, count)
    latent = (
        math.sqrt(_CUSTOMER) * chance.standard_normal(spec.customers)[customer]
        + math.sqrt(_GROUP) * chance.standard_normal(kinds)[group]
        + math.sqrt(_SYSTEM) * chance.standard_normal(len(_SYSTEMS))[kind_system[group]]
        + math.sqrt(_LOCATION) * np.clip(chance.standard_normal(len(_LOCATIONS)), -1, 1)[kind_location[group]]
        + math.sqrt(_OWN) * chance.standard_normal(count)
        + (_drift(chance, spec) + shifts.changes)[customer, arrival // DAY]
    )
    stray = chance.random(count) < _STRAY
    latent = np.where(stray, chance.standard_normal(count) * latent.std() + latent.mean(), latent)
    rank = (np.argsort(np.argsort(latent)) + 0.5) / count
    untouched = np.interp(rank, [share for share, _ in MARGINAL], [ratio for _, ratio in MARGINAL])
    cores = np.array([cores for _, cores, _ in _TYPES])[kind_type[group]]
    ratio = np.array([ratio for _, _, ratio in _TYPES])[kind_type[group]]
    end = spec.days * DAY
    return by_arrival(
        Vms(
            id=np.arange(count, dtype=np.int64),
            arrival=arrival,
            departure=np.where(departure < end, departure, RUNNING),
            cores=cores.astype(np.int64),
            memory_bytes=(cores * ratio).astype(np.int64) * GIB,
            customer=customer.astype(np.int64),
            vm_type=np.array([name for name, _, _ in _TYPES])[kind_type[group]],
            guest_os=np.array(_SYSTEMS)[kind_system[group]],
            location=np.array(_LOCATIONS)[kind_location[group]],
            untouched_ratio=untouched,
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Shifts:
    """What happens on the days of `Spec.shift_days`. Random numbers of its own leave a trace without shifts as it is."""

    changes: Any
    """Change of each customer's level, by day."""
    first_day: Any
    """The day of each customer's first VM."""
    instead: Any
    """The customer that has the VMs of a customer that has not appeared yet."""

    @classmethod
    def of(cls, spec: Spec, seed: int) -> _Shifts:
        chance = np.random.default_rng([seed, 1])
        steps: Any = np.zeros((spec.customers, spec.days))
        first: Any = np.zeros(spec.customers, dtype=np.int64)
        for day in spec.shift_days:
            shifted = chance.random(spec.customers) < _SHIFTED
            steps[shifted, day] += chance.normal(0, 1, size=int(shifted.sum()))
            first[(chance.random(spec.customers) < _NEW) & (first == 0)] = day
        # The most popular customer is there from the first day, so that there is always another one.
        first[0] = 0
        return cls(np.cumsum(steps, axis=1), first, chance.choice(np.flatnonzero(first == 0), size=spec.customers))

    def without_new(self, customer: Any, group: Any, day: Any) -> tuple[Any, Any]:
        """Returns customers and groups with the VMs of customers that have not appeared yet given to others."""
        early = day < self.first_day[customer]
        instead = np.where(early, self.instead[customer], customer)
        return instead, group + (instead - customer) * _GROUPS


def fit(vms: Vms) -> list[Fitted]:
    """Compares the published figures with these VMs."""
    ratio = vms.untouched_ratio
    worst = min(float(np.mean(ratio[vms.location == name] > 0.2)) for name in np.unique(vms.location))
    return [
        Fitted("median untouched share (3.2)", 0.5, float(np.median(ratio))),
        Fitted("VMs that touch more than 80 % (figure 19, static at 20 %)", 0.12, float(np.mean(ratio < 0.20))),
        Fitted("VMs that touch more than 85 % (6.5, static at 15 %)", 0.10, float(np.mean(ratio < 0.15))),
        Fitted("VMs with over 20 % untouched, least of all clusters (3.2: more than)", 0.5, worst),
    ]


def _popularity(customers: int) -> Any:
    """Returns the share of VMs of each customer: a few customers have many."""
    weights = 1 / (np.arange(customers) + 3.0) ** 0.9
    return weights / weights.sum()


def _arrivals(chance: np.random.Generator, count: int, days: int) -> Any:
    """Returns arrivals in seconds: more at noon than at night, fewer on two days in seven."""
    hours = np.arange(days * 24)
    weights = 1 + 0.4 * np.sin((hours % 24 - 6) / 24 * 2 * math.pi)
    weights *= np.where(hours // 24 % 7 >= 5, 0.7, 1.0)
    hour = chance.choice(hours, size=count, p=weights / weights.sum())
    return np.asarray(hour * 3600 + chance.integers(3600, size=count), dtype=np.int64)


def _lifetimes(chance: np.random.Generator, count: int) -> Any:
    """Returns lifetimes in seconds: hours at the median, weeks for a few VMs."""
    return np.asarray(np.clip(np.exp(chance.normal(math.log(3 * 3600), 1.8, size=count)), 300, 90 * DAY), dtype=np.int64)


def _drift(chance: np.random.Generator, spec: Spec) -> Any:
    """Returns each customer's accumulated change by day. Within a week, one customer in a hundred changes completely."""
    steps = chance.normal(0, _DRIFT, size=(spec.customers, spec.days))
    resets = chance.random((spec.customers, spec.days)) < 0.01 / 7
    steps[resets] = chance.normal(0, 1, size=int(resets.sum()))
    return np.cumsum(steps, axis=1)
