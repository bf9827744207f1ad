"""Tests of conformal bounds, of reliability by group, and of thresholds with margins. Require only numpy."""

from __future__ import annotations

import dataclasses

import pytest

np = pytest.importorskip("numpy")

from thermocline.learn import conformal, insensitive, reliability  # noqa: E402
from thermocline.learn.untouched import Night  # noqa: E402
from thermocline.learn.vms import DAY, GIB, Vms  # noqa: E402

PER_DAY = 2000


def night(day: int, *, lifetime: int = 3600, bias: float = 0.0, seed: int = 1, customers: int = 20) -> Night:
    """A day of VMs whose untouched share is uniform and whose prediction by one quantile is as it is, but for noise and a bias."""
    chance = np.random.default_rng(seed * 1000 + day)
    ratio = chance.random(PER_DAY)
    arrival = day * DAY + np.sort(chance.integers(DAY - lifetime, size=PER_DAY)) if lifetime < DAY else np.full(PER_DAY, day * DAY)
    text = np.full(PER_DAY, "")
    vms = Vms(
        id=np.arange(PER_DAY), arrival=arrival, departure=arrival + lifetime, cores=np.full(PER_DAY, 4),
        memory_bytes=chance.choice([4, 64], size=PER_DAY) * GIB, customer=chance.integers(customers, size=PER_DAY),
        vm_type=text, guest_os=text, location=text, untouched_ratio=ratio,
    )  # fmt: skip
    return Night(day, vms, np.clip(ratio + bias + 0.1 * chance.standard_normal(PER_DAY), 0, 1)[None])


def overpredicted(predicted: object, of: Night) -> float:
    return float(np.mean(predicted > of.vms.untouched_ratio))


@pytest.mark.parametrize("kind", conformal.KINDS)
@pytest.mark.parametrize("target", [0.01, 0.04, 0.1])
def test_predictions_that_are_too_high_are_lowered_to_the_target(kind: str, target: float) -> None:
    nights = [night(day, bias=0.2) for day in range(4)]
    assert overpredicted(nights[3].predicted[0], nights[3]) > 0.9
    lowered = conformal.predictions(nights[3], nights[:3], target, conformal.KINDS[kind], (0.04,))
    assert 0.2 * target < overpredicted(lowered, nights[3]) < target + 2.5 * (target / PER_DAY) ** 0.5
    assert lowered.mean() > 0.1


def test_predictions_are_never_raised() -> None:
    # 0 is also the answer for a VM that the model cannot predict.
    nights = [night(day, bias=-0.4) for day in range(4)]
    predicted = conformal.predictions(nights[3], nights[:3], 0.04, conformal.one_for_all, (0.04,))
    assert (predicted == nights[3].predicted[0]).all()


def test_only_vms_that_have_ended_calibrate() -> None:
    honest, other = [night(day, lifetime=5 * DAY) for day in range(4)], [night(day, lifetime=5 * DAY, bias=0.4) for day in range(4)]
    # All VMs of the past still run: what they will leave untouched changes nothing.
    for nights in (honest, other):
        assert conformal.ended(nights[:3], 3 * DAY).ratio.size == 0
        assert conformal.choose(nights[:3], 0.04, 3 * DAY, (0.04,)) == conformal.Setting(0.04, 0.0)
    # Nor do VMs from before the calibrated days.
    late = 3 + conformal.CALIBRATION_DAYS
    assert conformal.ended([night(0), night(late - 1)], late * DAY).ratio.size == PER_DAY


def test_a_customer_is_lowered_for_what_its_own_vms_exceeded() -> None:
    nights = [night(day) for day in range(4)]
    # The VMs of customer 0 leave much less untouched than predicted.
    odd = [one.vms.customer == 0 for one in nights]
    nights = [
        Night(one.day, one.vms, np.where(mask, np.minimum(one.predicted + 0.3, 1), one.predicted))
        for one, mask in zip(nights, odd, strict=True)
    ]
    same = conformal.predictions(nights[3], nights[:3], 0.04, conformal.one_for_all, (0.04,))
    own = conformal.predictions(nights[3], nights[:3], 0.04, conformal.by_customer, (0.04,))
    actual = nights[3].vms.untouched_ratio
    assert np.mean(same[odd[3]] > actual[odd[3]]) > 0.3
    assert np.mean(own[odd[3]] > actual[odd[3]]) < 0.15
    assert own[~odd[3]].mean() > same[~odd[3]].mean()


def test_classes_are_lowered_apart() -> None:
    past = conformal.Past(np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.3]), np.array([1, 1, 1, 1, 1, 2]), 0.5)
    small, large = conformal.by_class(past, np.array([2, 1])).tolist()
    # The class of customer 2 has one VM. With the VM to come as a second one, half of them are within 0.3, and no fewer.
    assert (small, large) == (0.3, 0.0)
    assert conformal.by_class(past, np.array([3])).tolist() == [0.3]
    assert conformal.by_class(dataclasses.replace(past, target=0.4), np.array([2])).tolist() == [1.0]


def test_without_enough_vms_for_a_target_nothing_is_predicted() -> None:
    past = conformal.Past(np.linspace(-1, 0, 50), np.zeros(50), 0.01)
    assert past.lowered_by(np.ones(50)) == 1.0
    assert dataclasses.replace(past, target=0.1).lowered_by(np.ones(50)) == 0.0
    assert dataclasses.replace(past, excess=past.excess + 1, target=0.1).lowered_by(np.ones(50)) == pytest.approx(45 / 49)


def test_the_quantile_that_promises_most_is_chosen() -> None:
    def both(day: int) -> Night:
        of = night(day)
        # The second quantile does not distinguish VMs.
        return Night(day, of.vms, np.concatenate([of.predicted, np.full_like(of.predicted, 0.5)]))

    nights = [both(day) for day in range(3)]
    assert conformal.choose(nights, 0.04, 3 * DAY, (0.04, 0.1)).quantile == 0.04
    assert [day for day, _ in conformal.nightly([*nights, both(3)], 0.04, (0.04, 0.1))] == [3]


def test_a_curve_has_the_target_as_its_setting_and_no_future() -> None:
    nights = [night(day, bias=0.2) for day in range(4)]
    curve = conformal.curve(nights, 4 * DAY, (0.04,))
    assert [point.setting for point in curve] == list(conformal.TARGETS)
    assert all(point.wrong < point.setting + 0.005 for point in curve)
    running = [
        Night(one.day, dataclasses.replace(one.vms, departure=np.where(one.vms.id % 2, one.vms.departure, 9 * DAY)), one.predicted)
        for one in nights
    ]
    lost = [
        dataclasses.replace(one, vms=dataclasses.replace(one.vms, untouched_ratio=np.where(one.vms.id % 2, one.vms.untouched_ratio, 0.0)))
        for one in running
    ]
    assert conformal.curve(running, 4 * DAY, (0.04,)) == conformal.curve(lost, 4 * DAY, (0.04,))


def test_a_group_over_its_target_is_named() -> None:
    nights = [night(3), night(4)]
    ratio = np.concatenate([one.vms.untouched_ratio for one in nights])
    memory = np.concatenate([one.vms.memory_bytes for one in nights])
    counts = np.tile([0, 500], PER_DAY)
    predicted = np.where((memory == 64 * GIB) & (np.arange(len(ratio)) % 10 == 0), 1.0, 0.0)
    groups = reliability.groups(nights, counts, predicted, 0.04)
    # One VM in twenty is overpredicted, all of them large and of customers without history.
    assert {(one.kind, one.name) for one in groups if one.over and one.kind != "day"} == {
        ("memory_gib", "64 or more"),
        ("customer", "below 3"),
    }
    assert [one.over for one in groups if one.kind == "day"] == [one.overpredicted > 0.04 + 2 * one.standard_error for one in groups[-2:]]
    assert [one.name for one in groups] == ["below 3", "256 or more", "below 8", "64 or more", "3", "4"]
    for kind in ("customer", "memory_gib", "day"):
        of = [one for one in groups if one.kind == kind]
        assert sum(one.vms for one in of) == 2 * PER_DAY
        assert sum(one.vms * one.overpredicted for one in of) == pytest.approx((predicted > ratio).sum())


def test_a_margin_lowers_the_threshold_of_errors() -> None:
    score = np.repeat([0.9, 0.8, 0.7, 0.6], [30, 30, 30, 10])
    truth = np.ones(100, dtype=bool)
    truth[[35, 65, 95]] = False
    held = insensitive.Held(score, truth, 100)
    chosen = {bound: insensitive.threshold(held, 0.02, bound).gain for bound in (insensitive.as_validated, insensitive.with_one_more)}
    assert chosen == {insensitive.as_validated: 0.9, insensitive.with_one_more: 0.6}
    assert insensitive.threshold(held, 0.02, insensitive.with_standard_error).gain == 0.6
    # No false positive in 100 workloads does not show that there is less than one in 200.
    none = insensitive.threshold(held, 0.005, insensitive.with_one_more)
    assert (none.gain, none.setting) == (0.0, 2.0)
    assert insensitive.threshold(held, 0.005, insensitive.as_validated).gain == 0.3
